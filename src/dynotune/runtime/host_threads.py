"""How many of torch's threads work for the calling thread, without a change for any other.

`torch.set_num_threads` is not it: the number it keeps is also that of every thread which first asks later.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

__all__ = ["fewer"]

_OPENMP = re.compile(r"lib(g|i|)omp\d?[-.]")  # of GNU, Intel and LLVM

# A parallel copy ends with its slowest thread: one that shares a core with a thread that launches, or waits, holds up
# all others. On 16 cores 10 threads were fastest, and 16, beside one that spins, slower by far.
SHARE = 0.625


@contextmanager
def fewer() -> Iterator[None]:
    """Leaves some cores to other threads while the calling one copies; does nothing where OpenMP is not found."""
    before = torch.get_num_threads()  # also settles what a new thread starts with
    openmp = _openmp()
    wanted = max(1, int(SHARE * len(os.sched_getaffinity(0))))
    if openmp is None or before <= wanted:
        yield
        return
    openmp.omp_set_num_threads(wanted)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch's threads belong to; a process may hold several."""
    before = torch.get_num_threads()
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for path in sorted({line.split(maxsplit=5)[-1] for line in lines if _OPENMP.match(line.rpartition("/")[2])}):
        try:
            library = ctypes.CDLL(path)
            library.omp_set_num_threads(before + 1)
            is_torchs = torch.get_num_threads() == before + 1
            library.omp_set_num_threads(before)
        except (OSError, AttributeError):
            continue
        if is_torchs:
            return library
    return None
