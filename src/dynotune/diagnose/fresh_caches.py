"""Compile caches that a program puts into a new folder in each run, so that nothing compiled is found
again."""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.schema.facts import Facts
from dynotune.schema.observation import FRESH_CACHES, ProcessState

CACHE_FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


def fresh_caches(processes: Sequence[ProcessState]) -> Facts:
    """Return the variables that name a compile cache and point to a new folder in each run."""
    changes = [change for process in processes for change in process.environment_changes]
    fresh = [
        change.name
        for change in changes
        if change.name in CACHE_FOLDERS and change.fresh and not change.kept and "/torch/" not in change.file
    ]
    return {FRESH_CACHES: " ".join(dict.fromkeys(fresh))} if fresh else {}
