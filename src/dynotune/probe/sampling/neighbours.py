"""Measure how much of the cores other programs use before dynotune starts the command."""

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from dynotune.probe.sources import counters
from dynotune.schema.facts import Unknown

LOOK_S = 0.3


class Neighbours(NamedTuple):
    """Other programs on this machine.

    Args:
        num_cores: number of cores that the other programs used on average.
        pid, name: process that used most CPU time; 0 and "" if no process is visible, as from another container.
    """

    num_cores: float
    pid: int = 0
    name: str = ""
    most_cores: float = 0.0


def neighbours(cpus: Collection[int], *, root: Path = Path("/"), look_s: float = LOOK_S) -> Neighbours | None:
    """Measure the use of `cpus` for `look_s` seconds; None if the kernel does not report the use."""
    before, processes_before, began_s = counters.cores(cpus, root), _processes(root), time.monotonic()
    time.sleep(look_s)
    after, processes, took_s = counters.cores(cpus, root), _processes(root), time.monotonic() - began_s
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return None
    used = {pid: cpu_s - processes_before[pid][1] for pid, (_, cpu_s) in processes.items() if pid in processes_before}
    used.pop(os.getpid(), None)
    pid = max(used, key=lambda one: used[one], default=0)
    found = Neighbours((after.busy_s - before.busy_s + after.steal_s - before.steal_s) / took_s)
    return found if not pid else found._replace(pid=pid, name=processes[pid][0], most_cores=used[pid] / took_s)


def _processes(root: Path) -> dict[int, tuple[str, float]]:
    """Return name and processor time of each visible process."""
    found = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (stat := counters.stat_fields(str(folder))) is not None:
                ticks = int(stat[1][counters.USER_TICKS]) + int(stat[1][counters.SYSTEM_TICKS])
                found[int(folder.name)] = stat[0], ticks * counters.TICK_S
    return found
