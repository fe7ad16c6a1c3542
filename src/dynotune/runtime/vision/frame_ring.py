"""Move frames from the host into a network's input: copy into pinned memory, upload, resize.

A few frames travel as one chunk, which owns its pinned memory, its device memory and, for the first few frame
sizes, a captured graph of upload and resize: one launch instead of a dozen. A chunk is taken when its frames
are copied, by the caller or by the ring's own threads, and is free again when the work that was then enqueued
for the chunk has ended. All chunks use one stream.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from dynotune.runtime.engine.graphs import CapturedGraph, Capturer
from dynotune.runtime.errors import CaptureError
from dynotune.runtime.streams import Stream, Streams
from dynotune.runtime.transfer import host_threads
from dynotune.runtime.transfer.host_arrays import HostArray, host_array
from dynotune.runtime.transfer.host_threads import Workers
from dynotune.runtime.transfer.pinned import num_bytes_of
from dynotune.runtime.transfer.staging import StagerStats
from dynotune.runtime.vision.letterbox import Letterbox

_log = logging.getLogger(__name__)

MAX_PREPARED = 4  # frame sizes with graphs, which hold memory; others are resized launch by launch


class _Chunk:
    """Memory for a few frames. `num_bytes`: bytes of that many of the largest frames."""

    def __init__(self, device_streams: Streams, num_bytes: int) -> None:
        self._host = device_streams.pinned(num_bytes)
        # On the CPU frames are resized from where they were copied to.
        self._there = (
            torch.empty(num_bytes, dtype=torch.uint8, device=device_streams.device)
            if device_streams.pins
            else self._host
        )
        self.num_bytes = num_bytes
        self.free = device_streams.event()
        self.is_used = False
        # By number, height and width of frames: of other heights as many rows may be read.
        self.graphs: dict[tuple[int, int, int], CapturedGraph] = {}

    def views(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return views `[num, height, width, 3]` of the chunk on the host and on the device."""
        num_bytes = num_bytes_of(shape, torch.uint8)
        return self._host[:num_bytes].view(tuple(shape)), self._there[:num_bytes].view(tuple(shape))

    def close(self) -> None:
        """Free graphs and memory, even if the chunk is still referenced."""
        for graph in self.graphs.values():
            graph.reset()
        self._host = self._there = torch.empty(0, dtype=torch.uint8)


@dataclass(eq=False, slots=True)
class Copied:
    """Frames that are in a chunk, or will be; they are to be sent once. If nobody sends them, the chunk is
    freed.

    `shape`: shape of all frames together.
    """

    shape: tuple[int, ...]
    _free: SimpleQueue[_Chunk]
    _chunk: _Chunk | Future[_Chunk] | None

    def wait(self) -> None:
        """Wait until the frames are copied; raise the error of the copy, if any."""
        if isinstance(self._chunk, Future):
            self._chunk.result()

    def take(self) -> _Chunk:
        """Return the chunk, which the caller must free from now on. Waits and raises as `wait`."""
        chunk = self._chunk
        assert chunk is not None
        taken = chunk.result() if isinstance(chunk, Future) else chunk
        self._chunk = None
        return taken

    def drop(self) -> None:
        """Free the chunk once the frames are copied; does not wait."""
        chunk, self._chunk = self._chunk, None
        if isinstance(chunk, Future):
            chunk.add_done_callback(partial(_free_copied, self._free))
        elif chunk is not None:
            self._free.put(chunk)

    # The chunk's owner may be interrupted between any two lines.
    __del__ = drop


def _free_copied(free: SimpleQueue[_Chunk], copying: Future[_Chunk]) -> None:
    if copying.exception() is None:
        free.put(copying.result())


@dataclass(eq=False, slots=True)
class _Filling:
    """A chunk into which several threads copy, one thread per frame: threads that share a frame would all
    wait for the slowest.

    `num_left`: number of frames not copied yet. `done`: receives the chunk, or the first error; the chunk is
        then free.
    """

    chunk: _Chunk
    num_left: int
    done: Future[_Chunk]
    free: SimpleQueue[_Chunk]
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
            self.done.set_result(self.chunk)
        else:
            self.free.put(self.chunk)
            self.done.set_exception(self.error)


class FrameRing:
    """A ring of `depth` chunks that move frames into a network's input. Its owner holds one lock for `copy`
    and another for `send`, but not the latter while it waits for copies: other threads may need that lock to
    free a chunk.

    `num_frames`: largest number of frames per chunk; a power of two. `frame_bytes`: bytes of the largest
        frame.
    """

    def __init__(
        self, device_streams: Streams, *, num_frames: int, frame_bytes: int, depth: int, graphs: bool
    ) -> None:
        self.num_frames = num_frames
        self._streams = device_streams
        self._chunks = [_Chunk(device_streams, num_frames * frame_bytes) for _ in range(depth)]
        self._depth = depth
        self._free: SimpleQueue[_Chunk] = SimpleQueue()
        for chunk in self._chunks:
            self._free.put(chunk)
        self._copiers = Workers("dynotune-copier", host_threads.num_copying())
        # After those that it gives jobs to, as a program's end stops the newest first.
        self._filler = Workers("dynotune-filler")
        self._newest: Future[_Chunk] | None = None  # of those that are copied later
        self._capturer = Capturer(device_streams.device) if graphs and device_streams.pins else None
        self._prepared: set[tuple[int, int]] = set()
        self._counting = threading.Lock()
        self._num_puts = self._num_bytes = self._num_waits = 0
        self._wait_s = 0.0

    def copy(self, frames: Sequence[Any], *, rows: Tensor | None = None, later: bool = False) -> Copied:
        """Copy frames into a chunk; wait until a chunk is free.

        Args:
            frames: numpy arrays or CPU tensors, uint8, of one size; their number is a power of two, at most
                `num_frames`. The caller may change the frames as soon as they are copied.
            rows: indices of the rows to copy, int64 on the host; None copies all rows.
            later: return at once; the ring's own threads do the work, and take chunks in the order of the
                calls. Frames that arrive while other frames wait in these threads are copied there, too: if
                they took the next free chunk, they might be sent after frames that came before.

        Raises InputError if a frame cannot be read.
        """
        source = host_array(list(frames), torch.uint8, rows=rows)
        if not later and (self._newest is None or self._newest.done()):
            return Copied(source.shape, self._free, self._filled(source))
        done: Future[_Chunk] = Future()
        self._filler.start(partial(self._fill, source, done))
        self._newest = done
        return Copied(source.shape, self._free, done)

    def _filled(self, source: HostArray) -> _Chunk:
        chunk = self._free.get()
        try:
            self._wait_for(chunk)
            with host_threads.fewer():
                source.write(chunk.views(source.shape)[0])
        except BaseException:
            self._free.put(chunk)
            raise
        return chunk

    def _fill(self, source: HostArray, done: Future[_Chunk]) -> None:
        """Fill a chunk and pass it to `done`; wait for the chunk, not for the frames."""
        chunk = self._free.get()
        try:
            self._wait_for(chunk)
            places = chunk.views(source.shape)[0].unbind()
        except BaseException as error:
            self._free.put(chunk)
            done.set_exception(error.with_traceback(None))
            return
        filling = _Filling(chunk, len(places), done, self._free)
        for number, (frame, place) in enumerate(zip(source.parts, places, strict=True)):
            try:
                self._copiers.start(partial(filling.copy, frame, place))
            except RuntimeError as error:
                filling.ended(len(places) - number, error.with_traceback(None))
                return

    def send(self, copied: Copied, letterbox: Letterbox, region: Tensor, *, stream: Stream) -> None:
        """Upload and resize copied frames; waits only to capture a new frame size.

        Args:
            copied: frames of the letterbox's size, with the rows that it reads.
            region: part of the input for the pictures, see `Letterbox.region`.
            stream: the current stream, always the same.
        """
        chunk = copied.take()
        at = letterbox.placement
        try:
            self._prepare(letterbox)
            chunk.is_used = True
            graph = chunk.graphs.get((copied.shape[0], at.frame_height, at.frame_width))
            if graph is not None:
                graph.replay()
                picture = graph.outputs
            else:
                host, there = chunk.views(copied.shape)
                picture = letterbox.picture(
                    there.copy_(host, non_blocking=True) if self._streams.pins else host
                )
            region.copy_(picture)
        finally:
            # Also after an error: some of it may be under way.
            try:
                chunk.free.record(stream)
            finally:
                self._free.put(chunk)
        with self._counting:
            self._num_puts += 1
            self._num_bytes += num_bytes_of(copied.shape, torch.uint8)

    def _prepare(self, letterbox: Letterbox) -> None:
        """Capture upload and resize for frames of this size once, if there is room for more graphs."""
        at = letterbox.placement
        size = (at.frame_height, at.frame_width)
        if self._capturer is None or size in self._prepared or len(self._prepared) >= MAX_PREPARED:
            return
        self._prepared.add(size)
        nums = [1 << power for power in range(self.num_frames.bit_length())]
        try:
            for chunk in self._chunks:
                for num in reversed(nums):
                    shape = (num, letterbox.num_rows, at.frame_width, 3)
                    chunk.graphs[num, *size] = self._captured(self._capturer, chunk, shape, letterbox)
        except (CaptureError, torch.cuda.OutOfMemoryError) as error:
            # Without graphs, the same kernels are launched one by one.
            _log.warning(
                "upload and resize of %d by %d are not captured: %s", at.frame_height, at.frame_width, error
            )

    @staticmethod
    def _captured(
        capturer: Capturer, chunk: _Chunk, shape: tuple[int, ...], letterbox: Letterbox
    ) -> CapturedGraph:
        host, there = chunk.views(shape)

        def upload(there: Tensor) -> Tensor:
            return letterbox.picture(there.copy_(host, non_blocking=True))

        return capturer(upload, (there,), lambda: [host, *letterbox.tables])

    def _wait_for(self, chunk: _Chunk) -> None:
        if not chunk.is_used or chunk.free.query():
            return
        started_s = time.perf_counter()
        chunk.free.synchronize()
        with self._counting:
            self._num_waits += 1
            self._wait_s += time.perf_counter() - started_s

    def stats(self) -> StagerStats:
        pinned_bytes = sum(chunk.num_bytes for chunk in self._chunks)
        return StagerStats(
            self._num_puts, self._num_bytes, self._num_waits, self._wait_s, self._depth, pinned_bytes
        )

    def stop(self) -> None:
        """Wait for copies under way; no later copies are possible afterwards."""
        self._filler.stop()
        self._copiers.stop()

    def close(self) -> None:
        """Wait for work under way and free graphs and memory; no frame can be copied or sent afterwards."""
        self.stop()
        for chunk in self._chunks:
            self._wait_for(chunk)
            chunk.close()
        self._chunks = []
