"""Keep CUPTI, the interface through which profilers watch the GPU, from changing the program that is
measured.

After a session of torch's profiler, CUPTI stays attached to the process, and each CUDA call takes longer from
then on. Kineto, the library below torch's profiler, detaches CUPTI if the variable `TEARDOWN_CUPTI` is 1 when
a session ends: a thread of its own waits for the next CUDA runtime call and detaches CUPTI as that call
returns, which is the moment that NVIDIA names as safe. The variable is set for this moment only, so the
program's own sessions are as without dynotune.

With the variable `DISABLE_CUPTI_LAZY_REINIT`, Kineto attaches CUPTI again at once. torch sets both variables
against a teardown where CUDA graphs are compiled, since before CUDA 12.6 a session after a teardown crashes a
program that has graphs (pytorch#112507). Any program may capture graphs later, so CUPTI is left attached with
an older CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from time import perf_counter, sleep

from .device import has_cuda, synchronise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

TEARDOWN, NO_LAZY_START = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
SAFE_FROM = (12, 6)  # the CUDA version from which a teardown is safe in a program with CUDA graphs
# Detaching takes 4 ms. If Kineto's thread has not ended after this time, CUPTI counts as attached.
MOST_S, LOOK_S = 2.0, 0.001
# Profilers that start a program load one of these libraries into the program: Nsight Systems, Nsight Compute,
# the compute sanitizer, and tools that the variable names.
INJECTION = re.compile(r"/[^/\s]*(?:injection|sanitizer-collection)[^/\s]*\.so\S*", re.IGNORECASE)
INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"


class Teardown:
    """Context in which a session of torch's profiler ends; afterwards CUPTI is detached from the process.

    Attributes:
        stays: why CUPTI is still attached after the context; "" if CUPTI is detached.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._variables: dict[str, bytes | None] = {}
        self._threads: set[str] = set()
        self.stays = ""

    def __enter__(self) -> Teardown:
        if not has_cuda(self._torch):
            return self
        if _cuda_version(self._torch) < SAFE_FROM:
            self.stays = "CUDA %s cannot detach it safely, unlike CUDA 12.6" % self._torch.version.cuda
            return self
        self._variables = {name: _getenv(name) for name in (TEARDOWN, NO_LAZY_START)}
        _setenv(TEARDOWN, b"1")
        _setenv(NO_LAZY_START, None)
        self._threads = _threads()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._variables:
            return
        try:
            self._wait()
        finally:
            for name, value in self._variables.items():
                _setenv(name, value)

    def _wait(self) -> None:
        """Wait for the threads that began in the context, one of which detaches CUPTI after a CUDA call.

        Without such a thread, another thread's CUDA call has let Kineto's thread end already.
        """
        begun, until_s = _threads() - self._threads, perf_counter() + MOST_S
        while begun & _threads():
            if perf_counter() > until_s:
                self.stays = "torch's profiler did not detach it within %.0f s" % MOST_S
                return
            synchronise(self._torch)
            sleep(LOOK_S)


@contextlib.contextmanager
def variables_kept() -> Iterator[None]:
    """Undo what torch itself writes to the two variables in this block, as a session's begin may do."""
    before = {name: os.environ.get(name) for name in (TEARDOWN, NO_LAZY_START)}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            elif os.environ.get(name) != value:
                os.environ[name] = value


def other_profiler() -> str:
    """Return the file name of a profiler's library in this process; "" without one. torch's own does not
    count."""
    path = os.environ.get(INJECTION_VARIABLE, "")
    if not path:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            match = INJECTION.search(file.read())
        path = match.group() if match else ""
    return os.path.basename(path)


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def _cuda_version(torch: Any) -> tuple[int, ...]:
    """Return the CUDA version that torch was built with, as numbers; (0,) if torch does not name one."""
    numbers = re.findall(r"\d+", str(torch.version.cuda or ""))[:2]
    return tuple(map(int, numbers)) or (0,)


def _getenv(name: str) -> bytes | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(os.fsencode(name))
    return value


def _setenv(name: str, value: bytes | None) -> None:
    """Set or unset a variable for C code alone: Python code that watches or keeps variables does not see
    it."""
    if value is None:
        ctypes.CDLL(None).unsetenv(os.fsencode(name))
    else:
        ctypes.CDLL(None).setenv(os.fsencode(name), value, 1)
