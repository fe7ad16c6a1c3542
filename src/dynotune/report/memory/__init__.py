"""Device memory in the terminal: the terms of a run, what fits, and snapshots of the allocator."""

from typing import TYPE_CHECKING

from dynotune.lazy_face import lazy_face

if TYPE_CHECKING:
    from dynotune.report.memory.account import LABELS, memory_report
    from dynotune.report.memory.snapshot import snapshot_report

__all__ = ["LABELS", "memory_report", "snapshot_report"]

__getattr__ = lazy_face(__name__, {"LABELS": "account", "memory_report": "account", "snapshot_report": "snapshot"})
