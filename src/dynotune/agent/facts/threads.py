"""Report how long threads of this process waited for a free core in the window, by the kernel's counters."""

from __future__ import annotations

import os
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NANOSECOND = 1e-9


class Threads:
    """Read the threads' counters at the window's begin and end; each read takes microseconds, outside the
    timed part.

    `folder`: folder of this process in `/proc`.
    """

    def __init__(self, folder: str = "/proc/self") -> None:
        self._folder = folder
        self._before: dict[str, int] = {}
        self._begin_s = 0.0

    def begin(self) -> None:
        self._before = self._waited_ns()
        self._begin_s = perf_counter()

    def facts(self) -> dict[str, Any]:
        """Return the facts `live.*` without the prefix; a thread that ended within the window does not
        count."""
        took_s = perf_counter() - self._begin_s
        after = self._waited_ns()
        if not after or not self._begin_s:
            reason = "this kernel does not count how long threads wait for a core"
            return {"core_wait_s_per_s": {"type": "unknown", "reason": reason}}
        grown_ns = sum(waited - self._before.get(thread, 0) for thread, waited in after.items())
        return {"core_wait_s_per_s": grown_ns * _NANOSECOND / took_s}

    def _waited_ns(self) -> dict[str, int]:
        """Return each thread's wait for a core in ns; an empty dict if the kernel does not count waits."""
        found = {}
        try:
            threads = os.listdir(self._folder + "/task")
        except OSError:
            return {}
        for thread in threads:
            _ran, waited, num_turns = schedstat("%s/task/%s" % (self._folder, thread)) or (0, 0, 0)
            if num_turns:  # a kernel that does not count gives 0 everywhere
                found[thread] = waited
        return found


def schedstat(folder: str) -> tuple[int, int, int] | None:
    """Return a thread's run time and wait for a core in ns, and its number of runs; None if the thread
    ended."""
    try:
        with open(folder + "/schedstat", encoding="ascii") as file:
            ran, waited, num_turns = map(int, file.read().split())
            return ran, waited, num_turns
    except (OSError, ValueError):
        return None
