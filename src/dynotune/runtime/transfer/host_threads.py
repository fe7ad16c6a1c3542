"""Choose how many threads copy on the host, and limit torch's threads for the calling thread alone.

`torch.set_num_threads` does not suit: the number that it sets also applies to every thread that first asks later.
"""

import ctypes
import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_OPENMP = re.compile(r"lib(g|i|)omp\d?[-.]")  # of GNU, Intel and LLVM

# A parallel copy ends with its slowest thread: one that shares a core with a thread that launches, or waits, holds up
# all others. On 16 cores 10 threads were fastest, and 16, beside one that spins, slower by far.
SHARE = 0.625


def num_copying() -> int:
    """Return how many of torch's threads copies may use, so that some cores stay free to launch and wait. Return 1 if
    OpenMP is not found: each copying thread would then start all of torch's threads."""
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
    """Leave some cores to other threads while the calling thread copies; do nothing if OpenMP is not found."""
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
    for path in sorted({line.split(maxsplit=5)[-1] for line in lines if _OPENMP.match(line.rpartition("/")[2])}):
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
