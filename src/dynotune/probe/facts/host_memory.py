"""Report the host's memory: free memory, the limits on locked and shared memory, and the handling of
pages."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

from dynotune.probe.sources import container, counters, kernel_files
from dynotune.schema.facts import Facts, Unknown, Value, needed, or_unknown

DOCKER_SHM_BYTES = 64 << 20
"""Default size of /dev/shm under Docker, containerd and Kubernetes."""


def facts(root: Path = Path("/"), statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> Facts:
    """Return facts `host.*` of `NAMES`, and in a container also `host.container_shm_default`.

    `statvfs`: function that returns the size of a file system.
    """
    found = {name: question(root) for name, question in QUESTIONS.items()}
    shared_total, found["host.shm_free_bytes"] = _shared(root, statvfs)
    found["host.shm_bytes"] = shared_total
    if container.kind(root) is not None:
        unknown = isinstance(shared_total, Unknown)
        found["host.container_shm_default"] = shared_total if unknown else shared_total == DOCKER_SHM_BYTES
    return found


def limits(kind: int) -> tuple[int | None, ...]:
    """Return the soft and the hard limit of this process, which the command inherits; None stands for no
    limit."""
    return tuple(None if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(kind))


@or_unknown()
def _size(root: Path, name: str) -> int | Unknown:
    return needed(kernel_files.sizes(root)).get(name, Unknown(f"/proc/meminfo has no {name}"))


@or_unknown()
def _swap_used(root: Path) -> int:
    return needed(_size(root, "SwapTotal")) - needed(_size(root, "SwapFree"))


def _shared(root: Path, statvfs: Callable[[Path], os.statvfs_result]) -> tuple[int | Unknown, int | Unknown]:
    try:
        found = statvfs(root / "dev/shm")
    except OSError as error:
        why = Unknown(f"/dev/shm cannot be asked for its size: {error.strerror}")
        return why, why
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


@or_unknown("the use of the memory limit")
def available_bytes(root: Path = Path("/")) -> int:
    """Return the available bytes: the machine's, or the bytes that the control groups' limits leave if
    fewer."""
    free, levels = needed(_size(root, "MemAvailable")), needed(container.cgroup_levels("memory", root))
    return max(0, min([free, *(room for level in levels if (room := _room_bytes(level)) is not None)]))


def _room_bytes(level: Path) -> int | None:
    """Return the bytes that a control group may still allocate, counting its page cache as reclaimable."""
    version_2 = (level / "memory.max").exists()
    limit_file, used_file, cache = (
        ("memory.max", "memory.current", "inactive_file")
        if version_2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    if not (level / limit_file).exists():
        return None
    limit = (level / limit_file).read_text().strip()
    if limit == "max" or int(limit) >= container.V1_UNLIMITED_BYTES:
        return None
    used = int((level / used_file).read_text())
    return int(limit) - used + kernel_files.counts(level / "memory.stat").get(cache, 0)


@or_unknown()
def memory_events_file(root: Path = Path("/")) -> Path | Unknown:
    """Return `memory.events` of the innermost version 2 control group that has it."""
    files = [level / "memory.events" for level in needed(container.cgroup_levels("memory", root))]
    found = next((file for file in files if file.exists()), None)
    return found or Unknown("no control group here counts memory events, as version 2 does")


@or_unknown()
def _event(root: Path, name: str) -> float | Unknown:
    events = needed(counters.memory_events(memory_events_file(root)))
    return events.values.get(name, Unknown(f"memory.events has no {name}"))


@or_unknown("/proc/vmstat")
def num_oom_kills(root: Path = Path("/")) -> int | Unknown:
    """Count the processes that the kernel has killed for lack of memory since boot, over all control
    groups."""
    return kernel_files.counts(root / "proc/vmstat").get("oom_kill", Unknown("/proc/vmstat has no oom_kill"))


QUESTIONS: dict[str, Callable[[Path], Value | Unknown]] = {
    "host.memory_available_bytes": available_bytes,
    "host.memory_limit_bytes": container.memory_limit_bytes,
    "host.swap_total_bytes": lambda root: _size(root, "SwapTotal"),
    "host.swap_used_bytes": _swap_used,
    "host.memlock_soft_bytes": lambda root: limits(resource.RLIMIT_MEMLOCK)[0],
    "host.thp_enabled": lambda root: kernel_files.chosen(root, "sys/kernel/mm/transparent_hugepage/enabled"),
    "host.thp_defrag": lambda root: kernel_files.chosen(root, "sys/kernel/mm/transparent_hugepage/defrag"),
    "host.numa_balancing": lambda root: kernel_files.number(root, "proc/sys/kernel/numa_balancing"),
    "host.cgroup_oom_kills": lambda root: _event(root, "oom_kill"),
    "host.cgroup_memory_high": lambda root: _event(root, "high"),
    "host.swappiness": lambda root: kernel_files.number(root, "proc/sys/vm/swappiness"),
    "host.zone_reclaim_mode": lambda root: kernel_files.number(root, "proc/sys/vm/zone_reclaim_mode"),
    "host.dirty_ratio": lambda root: kernel_files.number(root, "proc/sys/vm/dirty_ratio"),
    "host.dirty_background_ratio": lambda root: kernel_files.number(
        root, "proc/sys/vm/dirty_background_ratio"
    ),
}
NAMES = (*QUESTIONS, "host.shm_bytes", "host.shm_free_bytes")
