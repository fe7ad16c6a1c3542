"""Time the pinning of batches in the process that draws them."""

from __future__ import annotations

import importlib
from time import perf_counter

from ..core.covers import cover_outermost
from ..core.errors import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.annotations import Event, Log
    from ..core.hooks import AfterImport

_EVENT_S = 0.5


class Pinning:
    """Count calls of torch's `pin_memory`, and write an event `pinning` twice a second."""

    def __init__(self, event: Event, log: Log) -> None:
        self._event = event
        self._log = log
        self._busy: set[int] = set()
        self._num = 0
        self._pin_s = 0.0
        self._said_s = perf_counter()

    def install(self, hooks: AfterImport) -> None:
        hooks.call("torch", self._cover)

    def _cover(self, torch: object) -> None:
        def pinned(_: object, begin_s: float, args: object) -> None:
            guarded(self._log, "pin", self._pinned, begin_s, perf_counter())

        module = importlib.import_module("torch.utils.data._utils.pin_memory")
        cover_outermost(module, "pin_memory", self._busy, lambda thread: True, pinned)

    def _pinned(self, begin_s: float, end_s: float) -> None:
        self._num += 1
        self._pin_s += end_s - begin_s
        if end_s - self._said_s >= _EVENT_S:
            self._said_s = end_s
            self._event({"event": "pinning", "at_s": end_s, "num": self._num, "pin_s": self._pin_s})
