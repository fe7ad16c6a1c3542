"""The kernel's counters, read once: cores, a process tree, the CPU quota, swap.

Each reader takes the root under which `/proc` and `/sys` stand; what the kernel does not count is Unknown.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dynotune.probe.samples import Cores, Quota, Swap, Tree
from dynotune.schema.facts import Unknown

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cores(cpus: Collection[int], root: Path = Path("/")) -> Cores | Unknown:
    """Time of the cores `cpus`, summed. Source: proc_stat(5).

    Only these: in a container `/proc/stat` may be the host's, with cores that we may not use.
    """
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = idle = steal = num_found = 0
    try:
        with (root / "proc/stat").open() as file:
            for line in file:
                name, *rest = line.split()
                if not name.startswith("cpu"):
                    break
                if name in wanted:
                    user, nice, system, idling, iowait, _irq, _softirq, stolen = map(int, rest[:8])
                    num_found += 1
                    # Interrupts belong to no process: time in them is nobody's, not another's.
                    busy += user + nice + system
                    idle += idling + iowait
                    steal += stolen
    except (OSError, ValueError) as error:
        return Unknown(f"/proc/stat cannot be read: {error}")
    if num_found != len(wanted):
        return Unknown(f"/proc/stat lists {num_found} of our {len(wanted)} cores")
    return Cores(num_cpus=num_found, busy_s=busy * TICK_S, idle_s=idle * TICK_S, steal_s=steal * TICK_S)


class _Usage(NamedTuple):
    """Of one process: itself, and the children it has waited for, with theirs."""

    own_ticks: int
    own_faults: int
    waited_ticks: int
    waited_faults: int


class TreeCounter:
    """CPU time and major faults of a process tree whose members come and go.

    When a process ends, its counts pass to whoever waits for it, or are lost when nobody in the tree does.
    So the growth of three things is summed: what living processes used themselves, what new ones bring
    along, and what ended children handed over, less what was already counted of those that vanished.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._seen: dict[tuple[int, int], _Usage] = {}
        # Counted already, but not yet handed over: a process may end between the reading of its parent and
        # its own. Kept for one reading, since what nobody waits for is never handed over.
        self._owed = (0, 0)
        self._ticks = 0
        self._faults = 0
        self._pids: set[int] = set()

    @property
    def pids(self) -> frozenset[int]:
        """Every process id that has been in the tree."""
        return frozenset(self._pids)

    def read(self, pids: Iterable[int]) -> Tree:
        """Count once more. A process seen before belongs to the tree until it ends; ending is no error."""
        listed = set(pids)
        living: dict[tuple[int, int], _Usage] = {}
        # Parents first: a child read before its parent could end in between and be counted in both.
        for pid in sorted(listed | {pid for pid, _ in self._seen}):
            found = self._usage(pid)
            if found is not None and (pid in listed or (pid, found[0]) in self._seen):
                living[pid, found[0]] = found[1]
        self._pids |= {pid for pid, _ in living}
        vanished = [usage for key, usage in self._seen.items() if key not in living]
        before = {key: self._seen.get(key, _Usage(0, 0, 0, 0)) for key in living}
        grown = _Usage(*(sum(now[at] - before[key][at] for key, now in living.items()) for at in range(4)))
        owed_ticks = sum(gone.own_ticks + gone.waited_ticks for gone in vanished)
        owed_faults = sum(gone.own_faults + gone.waited_faults for gone in vanished)
        ticks = grown.waited_ticks - self._owed[0] - owed_ticks
        faults = grown.waited_faults - self._owed[1] - owed_faults
        self._ticks += max(0, grown.own_ticks) + max(0, ticks)
        self._faults += max(0, grown.own_faults) + max(0, faults)
        self._owed = (min(owed_ticks, max(0, -ticks)), min(owed_faults, max(0, -faults)))
        self._seen = living
        return Tree(cpu_s=self._ticks * TICK_S, num_major_faults=self._faults, num_processes=len(living))

    def _usage(self, pid: int) -> tuple[int, _Usage] | None:
        """Start time, which tells a reused process id apart, and counts. Source: proc_pid_stat(5)."""
        try:
            line = (self._root / "proc" / str(pid) / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name may hold blanks and brackets; the numbers begin after the last one, with field 3.
        fields = line[line.rindex(")") + 2 :].split()
        faults, waited_faults = int(fields[9]), int(fields[10])
        user, system, waited_user, waited_system = map(int, fields[11:15])
        return int(fields[19]), _Usage(user + system, faults, waited_user + waited_system, waited_faults)


def descendants(pid: int, root: Path = Path("/")) -> list[int]:
    """`pid` and every process below it, parents before children; empty when it is gone."""
    tree: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        threads = root / "proc" / str(current) / "task"
        try:
            tasks = list(threads.iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
        tree.append(current)
        for task in tasks:
            try:
                waiting.extend(map(int, (task / "children").read_text().split()))
            except (FileNotFoundError, ProcessLookupError):
                if task.exists():
                    return _descendants_by_parent(pid, root)
    return tree


def _descendants_by_parent(pid: int, root: Path) -> list[int]:
    """The same where the kernel lists no children (CONFIG_PROC_CHILDREN): every process names its parent."""
    children: dict[int, list[int]] = {}
    for stat in (root / "proc").glob("[0-9]*/stat"):
        try:
            line = stat.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(line[line.rindex(")") + 2 :].split()[1]), []).append(int(stat.parent.name))
    tree = [pid] if (root / "proc" / str(pid)).exists() else []
    for current in tree:
        tree.extend(children.get(current, ()))
    return tree


def quota(limits: Mapping[Path, float] | Unknown) -> Quota | Unknown | None:
    """How the CPU bandwidth limit was felt; None where there is no limit.

    Args:
        limits: as `container.cpu_limits` gives them. The tightest one is looked at.
    """
    if isinstance(limits, Unknown):
        return limits
    if not limits:
        return None
    level = min(limits, key=lambda level: limits[level])
    try:
        words = (level / "cpu.stat").read_text().split()
        stat = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        # Version 2 counts microseconds, version 1 nanoseconds and its usage in a file of its own.
        version_2 = "usage_usec" in stat
        throttled_s = stat["throttled_usec"] / 1e6 if version_2 else stat["throttled_time"] / 1e9
        num_throttled = stat["nr_throttled"]
    except (OSError, ValueError, KeyError) as error:
        return Unknown(f"cpu.stat does not say how often the CPU quota was felt: {error}")
    usage_s = stat["usage_usec"] / 1e6 if version_2 else _usage_version_1(level)
    return Quota(cores=limits[level], num_throttled=num_throttled, throttled_s=throttled_s, usage_s=usage_s)


def _usage_version_1(level: Path) -> float | Unknown:
    try:
        return int((level / "cpuacct.usage").read_text()) / 1e9
    except (OSError, ValueError) as error:
        return Unknown(f"the control group does not count its CPU time: {error}")


def swap(root: Path = Path("/")) -> Swap | Unknown:
    """Pages swapped in and out by the machine."""
    found: dict[str, int] = {}
    try:
        with (root / "proc/vmstat").open() as file:
            for line in file:
                if line.startswith(("pswpin ", "pswpout ")):
                    name, value = line.split()
                    found[name] = int(value)
    except (OSError, ValueError) as error:
        return Unknown(f"/proc/vmstat cannot be read: {error}")
    if len(found) != 2:
        return Unknown("/proc/vmstat does not count swapping")
    return Swap(num_in=found["pswpin"], num_out=found["pswpout"])
