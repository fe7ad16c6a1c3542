"""Read the kernel's counters once: cores, a process tree and its memory, the CPU quota, swap.

Each reader takes the root that contains `/proc` and `/sys`. A value that the kernel does not count is
Unknown.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dynotune.probe.sources import kernel_files
from dynotune.probe.sources.samples import ByName, Cores, Quota, Tree
from dynotune.schema.facts import Unknown, needed, or_unknown

TICK_S = 1 / os.sysconf("SC_CLK_TCK")

VMSTAT = frozenset({"pswpin", "pswpout", "numa_pte_updates"})

_PSS = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)

MIN_THREADS = 64
"""A tree of at most so many threads is always walked, because that takes under a millisecond."""


@or_unknown("/proc/stat")
def cores(cpus: Collection[int], root: Path = Path("/")) -> Cores | Unknown:
    """Sum the time of the cores `cpus`. Source: proc_stat(5).

    Other cores are left out: in a container, `/proc/stat` may list the host's cores, which we may not use.
    """
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy = idle = steal = num_found = 0
    with (root / "proc/stat").open() as file:
        for line in file:
            name, *rest = line.split()
            if not name.startswith("cpu"):
                break
            if name in wanted:
                user, nice, system, idling, iowait, _irq, _softirq, stolen = map(int, rest[:8])
                num_found += 1
                # Interrupts belong to no process, so their time is not attributed to another process either.
                busy += user + nice + system
                idle += idling + iowait
                steal += stolen
    if num_found != len(wanted):
        return Unknown(f"/proc/stat lists {num_found} of this command's {len(wanted)} cores")
    return Cores(num_cpus=num_found, busy_s=busy * TICK_S, idle_s=idle * TICK_S, steal_s=steal * TICK_S)


class _Usage(NamedTuple):
    """Usage of one process: its own usage, and the usage of its reaped children and their children."""

    own_ticks: int
    own_faults: int
    waited_ticks: int
    waited_faults: int


class TreeCounter:
    """Count CPU time and major faults of a process tree whose members come and go.

    When a process ends, its counts pass to the process that waits for it, or are lost if nobody in the tree
    waits. So the growth sums three amounts: the use of living processes themselves, the counts that new
    processes bring, and the counts that ended children passed on, minus what was already counted of vanished
    processes.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = str(root / "proc")
        self._seen: dict[tuple[int, int], _Usage] = {}
        # Counts that are already included but not passed on yet, because a process may end after its parent
        # was read. They are kept for one reading, since counts of a process that nobody waits for are never
        # passed on.
        self._owed = (0, 0)
        self._ticks = 0
        self._faults = 0
        self._pids: set[int] = set()

    @property
    def pids(self) -> frozenset[int]:
        """Return the id of every process that has been in the tree."""
        return frozenset(self._pids)

    def read(self, pids: Iterable[int]) -> Tree:
        """Read the tree's counts again. A known process belongs to the tree until its end, which is no
        error."""
        listed = set(pids)
        living: dict[tuple[int, int], _Usage] = {}
        # Read parents first: a child read before its parent could end in between and be counted in both.
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
        return Tree(cpu_s=self._ticks * TICK_S, num_major_faults=self._faults)

    def _usage(self, pid: int) -> tuple[int, _Usage] | None:
        """Return the start time, which distinguishes reused process ids, and the counts."""
        found = stat_fields(f"{self._proc}/{pid}")
        if found is None:
            return None
        fields = found[1]
        faults, waited_faults = int(fields[9]), int(fields[10])
        user, system, waited_user, waited_system = map(int, fields[11:15])
        return int(fields[19]), _Usage(user + system, faults, waited_user + waited_system, waited_faults)


PARENT, USER_TICKS, SYSTEM_TICKS = 1, 11, 12
"""Positions in the result of `stat_fields`."""


def stat_fields(folder: str) -> tuple[str, list[bytes]] | None:
    """Read the name and `stat`, from field 3 on, of a process or thread folder in `/proc`; None if it is
    gone.

    Source: proc_pid_stat(5).
    """
    line = read_proc(f"{folder}/stat")
    if not line:
        return None
    # The name may contain blanks and brackets; the numbers begin after the last bracket.
    name_end = line.rindex(b")")
    return line[line.index(b"(") + 1 : name_end].decode(errors="replace"), line[name_end + 2 :].split()


def descendants(pid: int, root: Path = Path("/")) -> list[int]:
    """Return `pid` and every process below it, parents before children; empty if it is gone.

    The kernel lists children by thread (CONFIG_PROC_CHILDREN). Without that list, or if the tree has more
    threads than the machine has processes, the parent of every process is read instead.
    """
    proc = str(root / "proc")
    num_threads_left = sum(entry.name.isdigit() for entry in os.scandir(proc)) + MIN_THREADS
    tree: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        try:
            threads = [entry.path for entry in os.scandir(f"{proc}/{current}/task")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        num_threads_left -= len(threads)
        if num_threads_left < 0:
            return _descendants_by_parent(pid, proc)
        tree.append(current)
        for thread in threads:
            children = read_proc(f"{thread}/children")
            if children is None and Path(thread).exists():
                return _descendants_by_parent(pid, proc)
            waiting.extend(map(int, (children or b"").split()))
    return tree


def _descendants_by_parent(pid: int, proc: str) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir(proc):
        if entry.name.isdigit() and (found := stat_fields(entry.path)) is not None:
            children.setdefault(int(found[1][PARENT]), []).append(int(entry.name))
    tree = [pid] if Path(proc, str(pid)).exists() else []
    for current in tree:
        tree.extend(children.get(current, ()))
    return tree


def read_proc(path: str) -> bytes | None:
    """Read a file of `/proc`; None if its process is gone. Avoid `pathlib`, because many files are read per
    second."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        # The kernel may return one page at a time.
        return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)


@or_unknown()
def quota(limits: Mapping[Path, float] | Unknown) -> Quota | Unknown | None:
    """Read the throttling by the tightest of the CPU bandwidth limits; None without a limit.

    `limits`: result of `container.cpu_limits`.
    """
    cores = needed(limits)
    if not cores:
        return None
    level = min(cores, key=cores.__getitem__)
    try:
        words = (level / "cpu.stat").read_text().split()
        stat = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        # Version 2 counts microseconds. Version 1 counts nanoseconds, and has its usage in a separate file.
        version_2 = "usage_usec" in stat
        throttled_s = stat["throttled_usec"] / 1e6 if version_2 else stat["throttled_time"] / 1e9
        num_throttled = stat["nr_throttled"]
    except (OSError, ValueError, KeyError) as error:
        return Unknown(f"cpu.stat does not count how often the CPU quota throttled: {error}")
    usage_s = stat["usage_usec"] / 1e6 if version_2 else _usage_version_1(level)
    return Quota(cores=cores[level], num_throttled=num_throttled, throttled_s=throttled_s, usage_s=usage_s)


def _usage_version_1(level: Path) -> float | Unknown:
    try:
        return int((level / "cpuacct.usage").read_text()) / 1e9
    except (OSError, ValueError) as error:
        return Unknown(f"the control group does not count its CPU time: {error}")


@or_unknown("/proc/vmstat")
def vmstat(root: Path = Path("/")) -> ByName:
    """Return memory counters of the machine since boot. Source: proc_vmstat(5)."""
    counted = kernel_files.counts(root / "proc/vmstat").items()
    return ByName(values={name: value for name, value in counted if name in VMSTAT})


@or_unknown("memory.events")
def memory_events(file: Path | Unknown) -> ByName:
    """Read how often our control group reached its memory limit; `file` comes from
    `host_memory.memory_events_file`."""
    return ByName(values=dict(kernel_files.counts(needed(file))))


@or_unknown()
def tree_bytes(pids: Iterable[int] | Unknown, root: Path = Path("/")) -> int | Unknown:
    """Sum the proportional set sizes (PSS) in bytes. An ended process counts as zero.

    The kernel walks the page tables of each process for this sum, which takes a few milliseconds for a large
    process. So do not call it in runs that are timed.

    Source: proc_pid_smaps(5).
    """
    total = 0
    for pid in needed(pids):
        try:
            found = _PSS.search((root / f"proc/{pid}/smaps_rollup").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            return Unknown(f"the memory of process {pid} cannot be read: {error.strerror}")
        # The file is empty while the process is ending.
        total += int(found[1]) * 1024 if found else 0
    return total or Unknown("no process of the command was left to read its memory from")
