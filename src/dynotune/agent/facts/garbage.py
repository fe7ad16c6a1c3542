"""Measure the time that Python's garbage collections take, and find the lines that ask for collections."""

from __future__ import annotations

import gc
import linecache
import sys
from time import thread_time

from ..core import source_location
from ..core.writer import GARBAGE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONG_S = 0.001
_ASKS = "collect("
"""Part of a line that calls `gc.collect()`. A collection that Python begins by itself may begin at any
line."""


class Garbage:
    """Measure the processor time of Python's garbage collections, through `gc.callbacks`.

    Processor time leaves out waits: finalizers may wait for the device or a lock, which is no work of the
    collector.
    """

    def __init__(self) -> None:
        self._begin_s = 0.0
        self._in_step = 0
        self._asked_at = ""
        self.reset()

    def install(self) -> None:
        if self._called not in gc.callbacks:
            gc.callbacks.append(self._called)

    def remove(self) -> None:
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def reset(self) -> None:
        self.num = self.num_oldest = 0
        self.total_s = self.longest_s = 0.0
        self._asked_s: dict[str, float] = {}

    def flag(self) -> int:
        """Return GARBAGE if a significant garbage collection has ended since the last call."""
        flag, self._in_step = self._in_step, 0
        return flag

    def facts(self) -> dict[str, Any]:
        """Return the fields of `schema.host.Collections`."""
        return {
            "num": self.num,
            "num_oldest": self.num_oldest,
            "total_s": self.total_s,
            "longest_s": self.longest_s,
            # Counting takes as long as a collection, so it is done only for a program that had long ones.
            "num_objects": len(gc.get_objects()) if self.num_oldest else None,
            "asked_s": sum(self._asked_s.values()),
            "asked_at": max(self._asked_s, key=self._asked_s.__getitem__, default=""),
        }

    def _called(self, phase: str, info: dict[str, int]) -> None:
        # An error here must not be raised, because it would be printed.
        if phase == "start":
            self._asked_at = _asking_place() if info.get("generation") == 2 else ""
            self._begin_s = thread_time()
            return
        took_s = thread_time() - self._begin_s
        oldest = info.get("generation") == 2
        self.num += 1
        self.num_oldest += oldest
        self.total_s += took_s
        self.longest_s = max(self.longest_s, took_s)
        if self._asked_at:
            self._asked_s[self._asked_at] = self._asked_s.get(self._asked_at, 0.0) + took_s
        if oldest or took_s > LONG_S:
            self._in_step = GARBAGE


def _asking_place() -> str:
    """Return the place in the user's code that asks for a collection; "" if Python itself began the
    collection."""
    try:
        frame = sys._getframe(2)  # none, if the collection begins as the interpreter ends
        asks = _ASKS in linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        return source_location.place() if asks else ""
    except Exception:  # an error in a callback of the collector would be printed
        return ""
