"""Device memory in the terminal: the terms of a run or of a snapshot, and what fits."""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.memory.account import LOOKS, memory_report

__all__ = ["LOOKS", "memory_report"]

__getattr__ = lazy_face(__name__, {"LOOKS": "account", "memory_report": "account"})
