"""Copy frames into pinned memory, in the calling thread or in threads of their own.

Threads of their own take one frame each: threads that share a frame would all wait for the slowest.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dynotune.runtime.transfer import host_threads
from dynotune.runtime.transfer.host_arrays import HostArray, host_array
from dynotune.runtime.transfer.host_threads import Workers


@dataclass(eq=False, slots=True)
class Copied:
    """Frames that are in the memory they were copied to, or will be; `done` is None if they are there."""

    num_bytes: int
    done: Future[None] | None = None

    def wait(self) -> None:
        """Wait until the frames are copied; raise the error of the copy, if any."""
        if self.done is not None:
            self.done.result()

    def ended(self) -> None:
        """Wait until no thread writes into the memory any more."""
        if self.done is not None:
            self.done.exception()


@dataclass(eq=False, slots=True)
class _Copying:
    """Frames that several threads copy. `num_left`: number of frames not copied yet. `done`: gets the first
    error, once no thread copies any more."""

    num_left: int
    done: Future[None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None

    def copy(self, frame: HostArray, into: Tensor) -> None:
        """Copy one of the frames; never raises."""
        try:
            host_threads.use_one_thread()
            frame.write(into)
        except BaseException as error:
            # The traceback would hold what holds the error, and frames with it.
            self.ended(1, error.with_traceback(None))
        else:
            self.ended(1)

    def ended(self, num: int, error: BaseException | None = None) -> None:
        """Count `num` more frames as copied or, with an `error`, as failed."""
        with self.lock:
            self.num_left -= num
            self.error = self.error or error
            if self.num_left:
                return
        if self.error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.error)


class FrameCopier:
    """Copies frames of the host into memory that belongs to a batch. Its owner holds a lock for `copy`."""

    def __init__(self) -> None:
        self._workers = Workers("dynotune-copier", host_threads.num_copying())

    def copy(
        self, frames: Sequence[Any], into: Tensor, *, rows: Tensor | None = None, later: bool = False
    ) -> Copied:
        """Copy frames one after the other into `into`.

        Args:
            frames: numpy arrays or CPU tensors, uint8, of one size. The caller may change the frames as soon
                as they are copied.
            into: uint8, flat and at least as large as the rows of all frames.
            rows: indices of the rows to copy, int64 on the host; None copies all rows.
            later: return at once; the copier's own threads do the work.

        Raises InputError if a frame cannot be read.
        """
        source = host_array(list(frames), torch.uint8, rows=rows)
        places = into[: source.num_bytes].view(source.shape)
        if not later:
            with host_threads.fewer():
                source.write(places)
            return Copied(source.num_bytes)
        done: Future[None] = Future()
        copying = _Copying(len(source.parts), done)
        for number, (frame, place) in enumerate(zip(source.parts, places.unbind(), strict=True)):
            try:
                self._workers.start(partial(copying.copy, frame, place))
            except RuntimeError as error:
                copying.ended(len(source.parts) - number, error.with_traceback(None))
                break
        return Copied(source.num_bytes, done)

    def stop(self) -> None:
        """Wait for copies under way; no later copies are possible afterwards."""
        self._workers.stop()
