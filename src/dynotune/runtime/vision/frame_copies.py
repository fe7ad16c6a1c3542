"""Copy frames into pinned memory, in the calling thread or in threads of their own.

Threads of their own take one frame after the other, each a whole one: threads that share a frame would all
wait for the slowest. numpy copies numpy's arrays, since a call of torch holds Python's lock for longer.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynotune.runtime.transfer import host_threads
from dynotune.runtime.transfer.host_arrays import host_array
from dynotune.runtime.transfer.host_threads import Workers

Write = Callable[[int], object]
"""Copies the frame of a number."""

SLOW_BYTES_PER_S = 4e9  # of one thread alone, also with other programs beside it
FEWEST_ALONE, MOST_ALONE = 256, 4096


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


class _Copying:
    """Frames that several threads copy. `done`: gets the first error, once no thread copies any more."""

    def __init__(self, write: Write, num: int) -> None:
        self.done: Future[None] = Future()
        self._write: Write | None = write
        self._num = self._num_left = num
        self._next = 0
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Copy frames that no other thread has taken; never raises."""
        while True:
            with self._lock:
                number, write = self._next, self._write
                if number >= self._num or write is None:
                    return
                self._next += 1
            try:
                write(number)
            except BaseException as error:
                # The traceback would hold what holds the error, and frames with it.
                self._ended(1, error.with_traceback(None))
            else:
                self._ended(1)
            del write

    def refuse(self, error: BaseException) -> None:
        """Let frames that no thread has taken fail."""
        with self._lock:
            num, self._next = self._num - self._next, self._num
        if num:
            self._ended(num, error.with_traceback(None))

    def _ended(self, num: int, error: BaseException | None = None) -> None:
        with self._lock:
            self._num_left -= num
            self._error = self._error or error
            if self._num_left:
                return
            self._write = None
        if self._error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self._error)


class _Pace:
    """Chooses whether the calling thread copies alone or with torch's threads.

    Several threads are done when the slowest is: where other programs take the cores, that one waits for a
    core for longer than one thread takes to copy. After two such copies in a row, as the first may only have
    found the threads asleep, one thread copies alone for a while, which doubles each time.
    """

    def __init__(self) -> None:
        self._num_alone, self._next_alone = 0, FEWEST_ALONE
        self._was_slow = False

    def is_alone(self) -> bool:
        """Return whether the next copy is made by one thread."""
        self._num_alone = max(0, self._num_alone - 1)
        return self._num_alone > 0

    def took(self, time_s: float, num_bytes: int) -> None:
        """Note how long a copy by several threads took."""
        is_slow = time_s * SLOW_BYTES_PER_S > num_bytes
        if not is_slow:
            self._next_alone = FEWEST_ALONE
        elif self._was_slow:
            self._num_alone, self._next_alone = self._next_alone, min(MOST_ALONE, 2 * self._next_alone)
        self._was_slow = is_slow and not self._was_slow


class FrameCopier:
    """Copies frames of the host into memory that belongs to a batch. Its owner holds a lock for `copy`."""

    def __init__(self) -> None:
        self._num_threads = host_threads.num_copying()
        self._workers = Workers("dynotune-copier", self._num_threads)
        self._pace = _Pace()

    def copy(
        self, frames: Sequence[Any], into: Tensor, *, rows: Tensor | None = None, later: bool = False
    ) -> Copied:
        """Copy frames one after the other into `into`.

        Args:
            frames: numpy arrays or CPU tensors, uint8 `[height, width, 3]`, of one size. The caller may
                change the frames as soon as they are copied.
            into: uint8, flat and at least as large as the rows of all frames.
            rows: indices of the rows to copy, int64 on the host; None copies all rows.
            later: return at once; the copier's own threads do the work.

        Raises InputError if a frame cannot be read.
        """
        height, width, num_colors = frames[0].shape
        num_rows = height if rows is None else len(rows)
        num_bytes = len(frames) * num_rows * width * num_colors
        places = into[:num_bytes].view(len(frames), num_rows, width, num_colors)
        write = _numpys_write(frames, places, rows)
        if later:
            copying = _Copying(write or _torchs_write(frames, places, rows), len(frames))
            try:
                for _ in range(min(self._num_threads, len(frames))):
                    self._workers.start(copying.run)
            except RuntimeError as error:
                copying.refuse(error)
            return Copied(num_bytes, copying.done)
        if write is not None and self._pace.is_alone():
            for number in range(len(frames)):
                write(number)
        else:
            begun_s = time.perf_counter()
            with host_threads.fewer():
                host_array(list(frames), torch.uint8, rows=rows).write(places)
            self._pace.took(time.perf_counter() - begun_s, num_bytes)
        return Copied(num_bytes)

    def stop(self) -> None:
        """Wait for copies under way; no later copies are possible afterwards."""
        self._workers.stop()


def _torchs_write(frames: Sequence[Any], places: Tensor, rows: Tensor | None) -> Write:
    """Return a function that copies the frame of a number by torch, with one thread."""
    parts = host_array(list(frames), torch.uint8, rows=rows).parts

    def write(number: int) -> None:
        host_threads.use_one_thread()
        parts[number].write(places[number])

    return write


def _numpys_write(frames: Sequence[Any], places: Tensor, rows: Tensor | None) -> Write | None:
    """Return a function that copies the frame of a number by numpy; None if not all are its arrays."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not all(type(frame) is numpy.ndarray for frame in frames):
        return None
    into = places.numpy()
    if rows is None:
        return lambda number: numpy.copyto(into[number], frames[number])
    chosen = _numpys_rows(rows)
    if isinstance(chosen, slice):
        return lambda number: numpy.copyto(into[number], frames[number][chosen])
    return lambda number: numpy.take(frames[number], chosen, 0, into[number], "clip")


@functools.lru_cache(maxsize=64)
def _numpys_rows(rows: Tensor) -> Any:
    """Return the rows as a slice, if they follow each other at equal distances, else as an array."""
    steps = set(rows.diff().tolist())
    if len(steps) != 1:
        return rows.numpy()
    step = steps.pop()
    return slice(int(rows[0]), int(rows[-1]) + 1, step)
