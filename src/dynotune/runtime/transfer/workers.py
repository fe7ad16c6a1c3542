"""Run jobs in threads."""

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

EXIT_S = 1.0  # longer than a copy of frames takes

_Jobs = SimpleQueue[Callable[[], object] | None]


class Workers:
    """Threads that start jobs in the order of their submission.

    The threads end with `stop`, with the last reference to the workers, or with the program.

    The executors of the standard library refuse jobs once the main thread has ended, although other threads may go on.

    `num`: largest number of threads; each runs one job after the other.
    """

    def __init__(self, name: str, num: int = 1) -> None:
        self._jobs: _Jobs = SimpleQueue()
        # Daemons: a job that waits for what never comes must not keep the interpreter from its exit.
        self._threads = [threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True) for _ in range(num)]
        self._num_started = 0
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _end, self._jobs, self._threads)

    def start(self, job: Callable[[], object]) -> None:
        """Submit `job`, which must not raise.

        Raises RuntimeError if the workers were stopped, or no thread can be started.
        """
        with self._lock:
            if not self._end.alive:
                raise RuntimeError("A job was given to workers that were stopped.")
            if self._num_started < len(self._threads):
                try:
                    self._threads[self._num_started].start()
                    self._num_started += 1
                except RuntimeError:
                    # A limit of threads: those that there are do it, later.
                    if not self._num_started:
                        raise
            self._jobs.put(job)

    def stop(self) -> None:
        """Wait for all submitted jobs; refuse further jobs."""
        with self._lock:
            self._end()
        for thread in self._threads[: self._num_started]:
            thread.join()


def _end(jobs: _Jobs, threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
    # An interpreter that ends under a thread in C++ aborts the process. The last reference may go in a thread itself.
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(EXIT_S)


def _run(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # while waiting nothing is held
