"""Run batches through three threads at once: one reads and copies, one launches, the caller's takes results.

    source ─▶ [reader: read, copy] ─▶ [launcher: upload, letterbox, forward, NMS] ─▶ [caller: results]

At most `depth` batches are under way. Order is kept: each thread passes batches on in the order of arrival.
"""

import atexit
import threading
from collections.abc import Callable, Generator, Iterator
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from dynotune.runtime.lifetime import Lifetime

EXIT_S = 1.0  # longer than a camera's frame takes

Staged = TypeVar("Staged")
Launched = TypeVar("Launched")
Result = TypeVar("Result", covariant=True)
Tag = TypeVar("Tag")


class Stages(Protocol[Staged, Launched, Result]):
    """The work of the three threads. Each method is called from one thread at a time."""

    def stage(self, frames: list[Any]) -> Staged: ...
    def launch(self, staged: Staged) -> Launched: ...
    def collect(self, launched: Launched) -> Result: ...
    def abandon(self, staged: Staged) -> None:
        """Free what `stage` took."""

    def discard(self, launched: Launched) -> None:
        """Free what `launch` holds, without a result."""


def started(
    threads: list[threading.Thread], lifetime: Lifetime, close: Callable[[], None]
) -> Callable[[], None]:
    """Start threads, and return a function registered for the interpreter's exit: `close`, then wait briefly
    for them.

    Ending the interpreter while a thread is inside a source's C++ code, such as a decoder's, would abort the
    process.
    """

    def end() -> None:
        if lifetime.is_ours:
            close()
            for thread in threads:
                thread.join(EXIT_S)

    atexit.register(end)
    for thread in threads:
        thread.start()
    return end


class _End:
    """Marks the end of results; `error` is the cause, if not the end of the source."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Pipeline(Generic[Staged, Launched, Result, Tag]):
    """A pipeline without references to the caller's iterator, so that dropping the iterator ends the
    threads."""

    def __init__(
        self, stages: Stages[Staged, Launched, Result], batches: Iterator[tuple[list[Any], Tag]], depth: int
    ) -> None:
        self._stages, self._batches = stages, batches
        self._room = threading.Semaphore(depth)
        self._lock = threading.Lock()
        self._stopped = False
        self._staged: SimpleQueue[tuple[Staged, Tag] | _End] = SimpleQueue()
        self._launched: SimpleQueue[tuple[Launched, Tag] | _End] = SimpleQueue()
        self._ended = False
        self._lifetime = Lifetime("A stream of results")
        # Set while the reader holds nothing that belongs to the stages.
        self._handed_on = threading.Event()
        self._handed_on.set()
        # Daemons: a source that never returns must not keep the interpreter from its exit.
        jobs = {"reader": self._read, "launcher": self._launch}
        threads = [
            threading.Thread(target=job, name=f"dynotune-{name}", daemon=True) for name, job in jobs.items()
        ]
        self._at_exit: Callable[[], None] | None = None
        self._at_exit = started(threads, self._lifetime, self.close)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            while True:
                # Before the frames are drawn, so that none lies unprocessed in a batch of its own.
                self._room.acquire()
                if self._stopped:
                    break
                try:
                    frames, tag = next(self._batches)
                except StopIteration:
                    break
                if not self._stage(frames, tag):
                    break
        except BaseException as caught:
            error = caught
        with self._lock:
            if not self._stopped:
                self._staged.put(_End(error))

    def _stage(self, frames: list[Any], tag: Tag) -> bool:
        """Return False if the caller has stopped meanwhile: then nothing of the stages may be touched any
        more."""
        with self._lock:
            if self._stopped:
                return False
            self._handed_on.clear()
        try:
            staged = self._stages.stage(frames)
            with self._lock:
                wanted = not self._stopped
                if wanted:
                    self._staged.put((staged, tag))
            if not wanted:
                self._stages.abandon(staged)
            return wanted
        finally:
            self._handed_on.set()

    def _launch(self) -> None:
        end: _End | None = None
        while True:
            item = self._staged.get()
            if isinstance(item, _End):
                self._launched.put(end or item)
                return
            staged, tag = item
            try:
                if end is not None or self._stopped:
                    self._stages.abandon(staged)
                    continue
                self._launched.put((self._stages.launch(staged), tag))
            except BaseException as error:
                end = _End(error)
                self._room.release()
                with self._lock:
                    # Raise the error at once: the reader may wait for its source for a long time.
                    if not self._stopped:
                        self._stopped = True
                        self._staged.put(end)

    def next(self) -> tuple[Result, Tag] | None:
        """Return the next batch's result; None at the end. Raises the error that ended the pipeline."""
        self._lifetime.check()
        if self._ended:
            return None
        item = self._launched.get()
        if isinstance(item, _End):
            self._ended = True
            if item.error is not None:
                raise item.error
            return None
        launched, tag = item
        try:
            return self._stages.collect(launched), tag
        finally:
            self._room.release()

    def close(self) -> None:
        """End the threads and free everything; waits for work in flight, never for the source.

        In a forked child there are no threads to end and nothing to free.
        """
        if not self._lifetime.is_ours:
            return
        unregister, self._at_exit = self._at_exit, None  # it holds this pipeline, and so its source
        if unregister is not None:
            atexit.unregister(unregister)
        with self._lock:
            first, self._stopped = not self._stopped, True
            if first:
                self._staged.put(_End())
        self._room.release()
        self._handed_on.wait()
        while not self._ended:
            item = self._launched.get()
            if isinstance(item, _End):
                self._ended = True
            else:
                self._stages.discard(item[0])


def run(
    stages: Stages[Staged, Launched, Result], batches: Iterator[tuple[list[Any], Tag]], depth: int
) -> Generator[tuple[Result, Tag], None, None]:
    """Yield the results of `batches` (frames and a tag each) in order, each with its tag.

    Closing or dropping the iterator ends it early: batches in flight are waited for and freed.

    Raises the exception of a stage or of `batches`, after the results of all earlier batches.
    """
    pipeline = _Pipeline(stages, batches, depth)
    try:
        while (done := pipeline.next()) is not None:
            yield done
    finally:
        pipeline.close()
