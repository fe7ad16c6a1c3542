"""Run jobs in threads, choose how many threads copy, and limit torch's threads for the calling thread alone.

`torch.set_num_threads` does not suit: the number that it sets also applies to every thread that first asks
later.
"""

import ctypes
import functools
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import torch

_OPENMP = re.compile(r"lib(g|i|)omp\d?[-.]")  # of GNU, Intel and LLVM

# A parallel copy ends with its slowest thread: one that shares a core with a thread that launches, or waits,
# holds up all others. On 16 cores 10 threads were fastest, and 16, beside one that spins, slower by far.
SHARE = 0.625
EXIT_S = 1.0  # longer than a copy of frames takes

_Jobs = SimpleQueue[Callable[[], object] | None]


def num_copying() -> int:
    """Return how many of torch's threads copies may use, so that some cores stay free to launch and wait.
    Return 1 if OpenMP is not found: each copying thread would then start all of torch's threads."""
    num_threads: int = torch.get_num_threads()
    if _openmp() is None:
        return 1
    return min(num_threads, max(1, int(SHARE * len(os.sched_getaffinity(0)))))


def use_one_thread() -> None:
    """Let the calling thread work without torch's other threads from now on, if OpenMP is found."""
    if torch.get_num_threads() > 1 and (openmp := _openmp()) is not None:
        openmp.omp_set_num_threads(1)


@contextmanager
def fewer() -> Iterator[None]:
    """Leave some cores to other threads while the calling thread copies; do nothing if OpenMP is not
    found."""
    before = torch.get_num_threads()  # also settles what a new thread starts with
    openmp, wanted = _openmp(), num_copying()
    if openmp is None or before == wanted:
        yield
        return
    openmp.omp_set_num_threads(wanted)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)


@functools.cache
def _openmp() -> ctypes.PyDLL | None:
    """Return the OpenMP library that runs torch's threads; a process may have loaded several."""
    before = torch.get_num_threads()
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for path in sorted(
        {line.split(maxsplit=5)[-1] for line in lines if _OPENMP.match(line.rpartition("/")[2])}
    ):
        try:
            library = ctypes.PyDLL(path)  # keeps Python's lock: its calls are shorter than getting that back
            library.omp_set_num_threads(before + 1)
            is_torchs = torch.get_num_threads() == before + 1
            library.omp_set_num_threads(before)
        except (OSError, AttributeError):
            continue
        if is_torchs:
            return library
    return None


class Workers:
    """Threads that start jobs in the order of their submission.

    The threads end with `stop`, with the last reference to the workers, or with the program.

    The executors of the standard library refuse jobs once the main thread has ended, although other threads
    may go on.

    `num`: largest number of threads; each runs one job after the other.
    """

    def __init__(self, name: str, num: int = 1) -> None:
        self._jobs: _Jobs = SimpleQueue()
        # Daemon threads: a job that waits forever must not keep the interpreter from exiting.
        self._threads = [
            threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True) for _ in range(num)
        ]
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
    # An interpreter that ends under a thread in C++ aborts the process. The last reference may go in a thread
    # itself.
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(EXIT_S)


def _run(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # while waiting nothing is held
