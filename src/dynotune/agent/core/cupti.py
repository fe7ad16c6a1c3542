"""Keep CUPTI, the interface through which profilers watch the GPU, from changing the program that is measured.

After a session of torch's profiler, CUPTI stays attached to the process, and each CUDA call takes longer from then on.
Kineto, the library below torch's profiler, detaches CUPTI if the variable `TEARDOWN_CUPTI` is 1 when a session ends: a
thread of its own waits for the next CUDA runtime call and detaches CUPTI as that call returns, which is the moment that
NVIDIA names as safe. The variable is set for this moment only, so the program's own sessions are as without dynotune.

Two variables matter: `TEARDOWN_CUPTI`, and `DISABLE_CUPTI_LAZY_REINIT`, with which Kineto attaches CUPTI again at once.
torch sets both against a teardown where CUDA graphs are compiled, since before CUDA 12.6 a session after a teardown
crashes a program that has graphs (pytorch#112507). Up to torch 2.7, torch does so with any CUDA.
"""

from __future__ import annotations

import os
import re
from time import perf_counter, sleep

from .annotations import Any
from .device import has_cuda, synchronise

TEARDOWN, NO_LAZY_START = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
SAFE_WITH_GRAPHS = (12, 6)  # the CUDA version from which a teardown is safe in a program with CUDA graphs
# Detaching takes 4 ms. If Kineto's thread has not ended after this time, CUPTI counts as attached.
MOST_S, LOOK_S = 2.0, 0.001
# Profilers that start a program load one of these libraries into the program: Nsight Systems, Nsight Compute, the
# compute sanitizer, and tools that the variable names.
INJECTION = re.compile(r"/[^/\s]*(?:injection|sanitizer-collection)[^/\s]*\.so\S*", re.IGNORECASE)
INJECTION_VARIABLE = "CUDA_INJECTION64_PATH"


class Teardown:
    """Context in which a session of torch's profiler ends; afterwards CUPTI is detached from the process.

    Args:
        has_graphs: whether the program has captured CUDA graphs.

    Attributes:
        stays: why CUPTI is still attached after the context; "" if CUPTI is detached.
    """

    def __init__(self, torch: Any, *, has_graphs: bool) -> None:
        self._torch = torch
        self._has_cuda = has_cuda(torch)
        self._variables: dict[str, str | None] = {}
        self._threads: set[str] = set()
        self.stays = ""
        if self._has_cuda and has_graphs and _cuda_version(torch) < SAFE_WITH_GRAPHS:
            self.stays = "the program has CUDA graphs, and its CUDA %s is older than 12.6" % torch.version.cuda

    def __enter__(self) -> Teardown:
        if self._has_cuda and not self.stays:
            self._variables = {name: os.environ.get(name) for name in (TEARDOWN, NO_LAZY_START)}
            # Not through os.environ, where the program would see the change.
            os.putenv(TEARDOWN, "1")
            os.unsetenv(NO_LAZY_START)
            self._threads = _threads()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._variables:
            return
        try:
            self._wait()
        finally:
            for name, value in self._variables.items():
                if value is None:
                    os.unsetenv(name)
                else:
                    os.putenv(name, value)

    def _wait(self) -> None:
        """Wait for the threads that began in the context, one of which detaches CUPTI after a CUDA call."""
        begun, until_s = _threads() - self._threads, perf_counter() + MOST_S
        while begun & _threads():
            if perf_counter() > until_s:
                self.stays = "torch's profiler did not detach it within %.0f s" % MOST_S
                return
            synchronise(self._torch)
            sleep(LOOK_S)


def other_profiler() -> str:
    """Return the file name of a profiler's library in this process; "" without one. torch's own does not count."""
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
