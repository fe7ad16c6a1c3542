"""Serve many camera-like sources with one detector: a thread per source, batches of waiting frames, fair
turns."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile
from typing import Literal

from dynotune.runtime.errors import DynotuneRuntimeError, InputError, SourceError
from dynotune.runtime.lifetime import Closing, Lifetime
from dynotune.runtime.vision import pipeline
from dynotune.runtime.vision.frames import Frame
from dynotune.runtime.vision.stages import Detections, Lanes

__all__ = ["Drop", "Served", "Server", "SourceStats"]

_log = logging.getLogger(__name__)

Drop = Literal["never", "oldest", "newest"]


@dataclass(frozen=True, slots=True)
class Served:
    """The result for one frame.

    Args:
        source: name of the source.
        index: number of the frame within its source, from 0; dropped frames are counted, too.
        frame: the frame as the source gave it.
        detections: detections in the frame.
        arrived_s: time at which the source gave the frame, by `time.monotonic()`.
        latency_s: seconds from then until the result was ready.
    """

    source: str
    index: int
    frame: Frame
    detections: Detections
    arrived_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Counts of one source: `num_read = num_served + num_dropped + num_discarded + num_waiting +
    num_under_way`.

    Args:
        num_dropped: frames dropped by the `drop` policy.
        num_discarded: frames discarded when the server was closed or ended by an error.
        error: the error that ended the source; None if there was none.
    """

    num_read: int
    num_served: int
    num_dropped: int
    num_discarded: int
    num_waiting: int
    num_under_way: int
    ended: bool
    error: DynotuneRuntimeError | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    source: _Source
    index: int
    frame: Frame
    key: tuple[int, int]
    arrived_s: float


@dataclass(eq=False)
class _Source:
    name: str
    frames: Iterable[Frame]
    room: threading.Condition
    waiting: deque[_Waiting] = field(default_factory=deque)
    last_key: tuple[int, int] | None = None
    num_read: int = 0
    num_taken: int = 0
    num_served: int = 0
    num_dropped: int = 0
    ended: bool = False
    error: DynotuneRuntimeError | None = None

    def may_add(self, key: tuple[int, int], queue: int) -> bool:
        """Return whether a future frame of this source could join a batch of `key`; waiting frames come
        first.

        A source is assumed to continue in the size of its last frame.
        """
        here = len(self.waiting) < queue and all(waiting.key == key for waiting in self.waiting)
        return here and not self.ended and self.last_key in (None, key)


class _Mux:
    """Reads the sources and forms batches, without a reference to the server: dropping the server ends the
    reading."""

    def __init__(
        self,
        lanes: Lanes,
        sources: Mapping[str, Iterable[Frame]],
        *,
        max_wait_s: float,
        max_batch: int,
        drop: Drop,
        queue: int,
    ) -> None:
        self._lanes = lanes
        self._max_wait_s, self._max_batch, self._drop, self._queue = max_wait_s, max_batch, drop, queue
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self.sources = [
            _Source(name, frames, threading.Condition(self._lock)) for name, frames in sources.items()
        ]
        self._turn = 0
        self._stopped = False
        self._closed = False
        self.lifetime = Lifetime("Server")
        self._at_exit: Callable[[], None] | None = None

    def start(self) -> None:
        # Daemons: a camera that never answers must not keep the interpreter from its exit.
        threads = [
            threading.Thread(
                target=self._read, args=(source,), name=f"dynotune-source-{source.name}", daemon=True
            )
            for source in self.sources
        ]
        self._at_exit = pipeline.started(threads, self.lifetime, self.stop)

    def stop(self) -> None:
        """Stop each reader when its source next gives a frame; from now on no frame is accepted."""
        if not self.lifetime.is_ours:
            return
        unregister, self._at_exit = self._at_exit, None  # it holds this, and so the sources
        if unregister is not None:
            atexit.unregister(unregister)
        with self._lock:
            self._stopped = True
            self._arrived.notify_all()
            for source in self.sources:
                source.waiting.clear()
                source.room.notify_all()

    def close(self) -> None:
        """Count frames still under way as discarded; call this once no thread works on their batches any
        more."""
        with self._lock:
            self._closed = True

    def _read(self, source: _Source) -> None:
        error: DynotuneRuntimeError | None = None
        try:
            for index, frame in enumerate(source.frames):
                waiting = _Waiting(source, index, frame, self._lanes.key(frame), time.monotonic())
                if not self._enqueue(source, waiting):
                    return
        except DynotuneRuntimeError as caught:
            error = caught
        except Exception as caught:
            error = SourceError(f"The source {source.name!r} raised {type(caught).__name__}: {caught}")
            error.__cause__ = caught
        with self._lock:
            source.ended, source.error = True, error
            self._arrived.notify_all()
        if error is not None:
            _log.warning("the source %r has ended: %s", source.name, error.message)

    def _enqueue(self, source: _Source, waiting: _Waiting) -> bool:
        """Return False if nobody takes frames any more."""
        with self._lock:
            source.num_read += not self._stopped
            while self._drop == "never" and len(source.waiting) >= self._queue and not self._stopped:
                source.room.wait()
            if self._stopped:
                return False
            source.last_key = waiting.key
            if len(source.waiting) >= self._queue:
                source.num_dropped += 1
                if self._drop == "newest":
                    return True
                source.waiting.popleft()
            source.waiting.append(waiting)
            self._arrived.notify()
            return True

    def batches(self) -> Iterator[tuple[list[Frame], list[_Waiting]]]:
        """Yield batches until all sources have ended; each is formed when the next stage has room for it."""
        while (batch := self._next()) is not None:
            yield [waiting.frame for waiting in batch], batch

    def _next(self) -> list[_Waiting] | None:
        with self._lock:
            while not self._stopped:
                oldest_s = self._oldest_s()
                if not oldest_s:
                    if all(source.ended for source in self.sources):
                        return None
                    self._arrived.wait()
                    continue
                overdue_s = time.monotonic() - self._max_wait_s
                due = [
                    key for key, arrived_s in oldest_s.items()
                    if arrived_s <= overdue_s or self._is_as_full_as_it_gets(key)
                ]  # fmt: skip
                if due:
                    return self._take(min(due, key=oldest_s.__getitem__))
                self._arrived.wait(min(oldest_s.values()) - overdue_s)
            return None

    def _oldest_s(self) -> dict[tuple[int, int], float]:
        """Return, for each key of which a batch could be formed now, when its oldest frame arrived."""
        oldest_s: dict[tuple[int, int], float] = {}
        for source in self.sources:
            if source.waiting:
                head = source.waiting[0]
                oldest_s[head.key] = min(head.arrived_s, oldest_s.get(head.key, head.arrived_s))
        return oldest_s

    def _is_as_full_as_it_gets(self, key: tuple[int, int]) -> bool:
        """Return whether waiting would add no frame: the batch is full, or no source can give a matching
        frame."""
        if self._num_alike(key) >= self._max_batch:
            return True
        return not any(source.may_add(key, self._queue) for source in self.sources)

    def _num_alike(self, key: tuple[int, int]) -> int:
        fitting = (takewhile(lambda waiting: waiting.key == key, source.waiting) for source in self.sources)
        return sum(1 for _ in chain.from_iterable(fitting))

    def _take(self, key: tuple[int, int]) -> list[_Waiting]:
        """Take one frame from each source in turn, repeatedly, until the batch is full or no frame fits."""
        batch: list[_Waiting] = []
        first, num, taken = self._turn, len(self.sources), True
        while taken and len(batch) < self._max_batch:
            taken = False
            for offset in range(num):
                index = (first + offset) % num
                source = self.sources[index]
                if source.waiting and source.waiting[0].key == key:
                    batch.append(source.waiting.popleft())
                    source.num_taken += 1
                    source.room.notify()
                    self._turn, taken = (index + 1) % num, True
                    if len(batch) == self._max_batch:
                        break
        return batch

    def stats(self) -> dict[str, SourceStats]:
        with self._lock:
            return {source.name: self._stats_of(source) for source in self.sources}

    def _stats_of(self, source: _Source) -> SourceStats:
        num_waiting = source.num_read - source.num_dropped - source.num_taken
        num_under_way = source.num_taken - source.num_served
        return SourceStats(
            num_read=source.num_read,
            num_served=source.num_served,
            num_dropped=source.num_dropped,
            num_discarded=(num_waiting if self._stopped else 0) + (num_under_way if self._closed else 0),
            num_waiting=0 if self._stopped else num_waiting,
            num_under_way=0 if self._closed else num_under_way,
            ended=source.ended,
            error=source.error,
        )


class Server(Closing):
    """Yields the results of many sources as they become ready: `for served in server`. Order is kept within a
    source.

    Ends when every source has ended, or by `close()`. `Detector.serve` makes it.

    Raises (while iterated): SourceError, after the last result, if sources have raised or given unusable
    frames (`stats()` lists them at any time); NumericsError if the model's output is not finite.
    """

    def __init__(
        self, lanes: Lanes, sources: Mapping[str, Iterable[Frame]] | Sequence[Iterable[Frame]], *,
        max_wait_s: float, max_batch: int, drop: Drop, queue: int, depth: int,
    ) -> None:  # fmt: skip
        named = (
            sources
            if isinstance(sources, Mapping)
            else {str(number): one for number, one in enumerate(sources)}
        )
        if not named:
            raise InputError("There are no sources to serve.")
        if drop not in ("never", "oldest", "newest"):
            raise InputError(f"drop is {drop!r}; it is 'never', 'oldest' or 'newest'.")
        if queue < 1 or depth < 1 or max_wait_s < 0:
            raise InputError(
                f"queue={queue} and depth={depth} are at least 1, max_wait_s={max_wait_s} at least 0."
            )
        self._mux = _Mux(lanes, named, max_wait_s=max_wait_s, max_batch=max_batch, drop=drop, queue=queue)
        self._results = _results(self._mux, pipeline.run(lanes, self._mux.batches(), depth))
        self._taking, self._lifetime = threading.Lock(), self._mux.lifetime
        self._mux.start()
        # A server that is dropped ends its threads.
        self._end = weakref.finalize(self, self._mux.stop)
        self._end.atexit = False

    def __iter__(self) -> Iterator[Served]:
        return self

    def __next__(self) -> Served:
        with self._taking:
            return next(self._results)

    def stats(self) -> dict[str, SourceStats]:
        """Return each source's counts by name, at any time."""
        return self._mux.stats()

    def close(self) -> None:
        """Stop reading and free everything. Waits for work under way, never for a source."""
        self._end()
        # Another thread may be waiting for a result: it comes back now that nothing is read any more.
        with self._taking:
            self._results.close()


def _results(
    mux: _Mux, under_way: Generator[tuple[list[Detections], list[_Waiting]], None, None]
) -> Generator[Served, None, None]:
    try:
        for results, batch in under_way:
            ready_s = time.monotonic()
            for found, waiting in zip(results, batch, strict=True):
                waiting.source.num_served += 1
                yield Served(
                    source=waiting.source.name,
                    index=waiting.index,
                    frame=waiting.frame,
                    detections=found,
                    arrived_s=waiting.arrived_s,
                    latency_s=ready_s - waiting.arrived_s,
                )
    finally:
        mux.stop()
        under_way.close()
        mux.close()
    failed = {source.name: source.error for source in mux.sources if source.error is not None}
    if failed:
        error = next(iter(failed.values()))
        raise SourceError(
            f"{len(failed)} of {len(mux.sources)} sources ended with an error: "
            f"{', '.join(map(repr, failed))}. "
            f"The first: {error.message}",
            hint="All other frames were served; Server.stats() has every error.",
        ) from error
