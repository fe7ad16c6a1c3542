"""A thread that does what it is given, one thing after the other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["Worker"]

EXIT_S = 1.0  # longer than a copy of frames takes

T = TypeVar("T")
_Jobs = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class Worker:
    """Runs jobs in a thread of its own, in the order in which they come. The thread ends with `stop`, with the last
    reference to the worker, or with the program.

    The standard library's executors take no jobs any more once the main thread has ended, though others may go on.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: _Jobs = SimpleQueue()
        # A daemon: a job that waits for what never comes must not keep the interpreter from its exit.
        self._thread = threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True)
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._jobs, self._thread)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Has `job` run after all that came before it; what it returns or raises."""
        future: Future[T] = Future()
        with self._lock:
            if not self._end.alive:
                raise RuntimeError("A job was given to a worker that was stopped.")
            if self._thread.ident is None:
                self._thread.start()
            self._jobs.put((future, job))
        return future

    def stop(self) -> None:
        """Waits for all jobs that came; no more are taken."""
        with self._lock:
            self._end()
        if self._thread.ident is not None:
            self._thread.join()


def _end(jobs: _Jobs, thread: threading.Thread) -> None:
    jobs.put(None)
    # An interpreter that ends under a thread in C++ aborts the process. The last reference may go in the thread itself.
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join(EXIT_S)


def _run(jobs: _Jobs) -> None:
    while (item := jobs.get()) is not None:
        _do(*item)
        del item  # while waiting nothing is held


def _do(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        result = job()
    except BaseException as error:
        future.set_exception(error)
        del future  # the error's traceback would hold what holds the error
    else:
        future.set_result(result)
