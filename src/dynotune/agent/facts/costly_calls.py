"""Count calls that cost more than expected, within the timed window.

Such calls empty caches, pin memory or switch the detection of anomalies on. The place at which the program
runs torch's profiler is recorded, too.
"""

from __future__ import annotations

import sys

from ..core import source_location
from ..core.covers import covers, replace
from ..core.profiler_session import PastSessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.annotations import Log


class _Counted:
    def __init__(self) -> None:
        self.num = 0
        self.num_before = 0
        self.place = ""

    @property
    def num_in_window(self) -> int:
        return self.num - self.num_before


class Calls:
    """Count costly calls from the program's start; `begin` marks the start of the timed window."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._torch: Any = None
        self._empty_cache = _Counted()
        self._pin_memory = _Counted()
        self._anomaly = _Counted()
        self.profiler: Any = None  # a ProgramsProfiler, set before torch is imported
        self._num_before = 0
        self._past = PastSessions()

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        is_compiling = torch.compiler.is_compiling
        self._count(torch.cuda, "empty_cache", self._empty_cache, is_compiling)
        replace(torch.cuda.memory, "empty_cache", torch.cuda.empty_cache)
        self._count(torch, "set_anomaly_enabled", self._anomaly, is_compiling, _is_enabled)
        self._cover_pin_memory(torch)

    def begin(self) -> None:
        for counted in (self._empty_cache, self._pin_memory, self._anomaly):
            counted.num_before = counted.num
        if self._torch is not None:
            self._num_before = self.profiler.num_begun - self.profiler.in_the_way()
            self._past = self.profiler.past

    def facts(self) -> dict[str, Any]:
        """Return the facts `live.*` without the prefix; without torch the program made no such calls."""
        torch, profiler = self._torch, self.profiler
        anomalous = torch is not None and bool(torch.is_anomaly_enabled())
        profiled = torch is not None and (profiler.num_begun > self._num_before or profiler.in_the_way())
        return {
            "empty_cache_calls": self._empty_cache.num_in_window,
            "empty_cache_place": self._empty_cache.place,
            "pin_memory_calls": self._pin_memory.num_in_window,
            "pin_memory_place": self._pin_memory.place,
            "anomaly_mode": anomalous or self._anomaly.num_in_window > 0,
            "anomaly_place": self._anomaly.place,
            "profiler_place": (profiler.place or "elsewhere") if profiled else "",
            "profiled_sessions": self._past.num,
            "profiled_place": self._past.place,
            "profiled_activities": sorted(self._past.activities),
            "profiled_teardown": self._past.takes_cupti_down,
        }

    def _count(
        self,
        owner: Any,
        name: str,
        counted: _Counted,
        is_compiling: Callable[[], bool],
        counts: Callable[..., bool] = lambda *args, **kwargs: True,
    ) -> None:
        original = getattr(owner, name)

        @covers(owner, name)
        def function(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            result = original(*args, **kwargs)
            if counts(*args, **kwargs):
                counted.num += 1
                counted.place = source_location.line()
            return result

    def _cover_pin_memory(self, torch: Any) -> None:
        original, counted = torch.Tensor.pin_memory, self._pin_memory
        is_tracing = getattr(torch.compiler, "is_dynamo_compiling", lambda: False)

        @covers(torch.Tensor, "pin_memory")
        def pin_memory(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            # In a trace, this folds to the method that torch.compile knows by its name.
            if is_tracing():
                return tensor.pin_memory(*args, **kwargs)
            result = original(tensor, *args, **kwargs)
            # Ignore pinning of batches by a loader, in whatever thread.
            if sys._getframe(1).f_globals.get("__name__") != "torch.utils.data._utils.pin_memory":
                counted.num += 1
                counted.place = source_location.line()
            return result


def _is_enabled(mode: Any = False, *args: Any, **kwargs: Any) -> bool:
    return bool(mode or kwargs.get("enabled"))
