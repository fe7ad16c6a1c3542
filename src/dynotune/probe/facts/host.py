"""Report the cores and the memory of the host that this process may use."""

import os
from collections.abc import Collection
from pathlib import Path

from dynotune.probe.sources import container, kernel_files
from dynotune.schema.facts import Facts, Unknown, needed, or_unknown


def facts(root: Path = Path("/"), affinity: Collection[int] | None = None) -> Facts:
    """Return facts `host.*`. `affinity`: cores that this process may run on; None asks the kernel."""
    cpus = usable_cpus() if affinity is None else sorted(affinity)
    quota = container.cpu_quota(root)
    return {
        "host.cpu": cpu_model(root),
        "host.num_logical_cpus": num_logical_cpus(root),
        "host.affinity": [*cpus],
        "host.cpu_quota": quota,
        "host.num_cores": num_cores(len(cpus), quota),
        "host.memory_bytes": memory_bytes(root),
        "host.kernel": kernel_files.text(root, "proc/sys/kernel/osrelease"),
        "host.container": container.kind(root),
    }


def usable_cpus() -> list[int]:
    """Return the cores on which the scheduler may run this process, in order."""
    return sorted(os.sched_getaffinity(0))


def cores(cpus: Collection[int], root: Path = Path("/")) -> list[list[int]]:
    """Group logical processors by physical core; each forms its own group if /sys does not list siblings."""
    of_core: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        siblings = kernel_files.read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        of_core.setdefault(siblings or f"only {cpu}", []).append(cpu)
    return list(of_core.values())


@or_unknown()
def num_cores(num_cpus: int, quota: float | Unknown | None) -> int:
    """Count the whole cores usable at the same time: the affinity's cores, limited by the quota, at least one
    core."""
    cores = needed(quota)
    return num_cpus if cores is None else max(1, min(num_cpus, int(cores)))


def cpu_model(root: Path = Path("/")) -> str | Unknown:
    """Return the processor's name from the kernel."""
    # x86 writes `model name`, POWER writes `cpu`, some Arm boards write `Model`; Arm servers give only
    # numbers.
    found = (kernel_files.cpu_field(root, name) for name in ("model name", "cpu", "Model"))
    return next(filter(None, found), None) or Unknown("/proc/cpuinfo names no processor model")


def num_logical_cpus(root: Path = Path("/")) -> int | Unknown:
    """Count the logical processors that are online, including those this process may not use."""
    online = kernel_files.read(root / "sys/devices/system/cpu/online").strip()
    if online:
        try:
            return len(parse_cpu_list(online))
        except ValueError:
            return Unknown(f"/sys/devices/system/cpu/online is not a list of cores: {online}")
    listed = sum(
        line.startswith("processor") for line in kernel_files.read(root / "proc/cpuinfo").splitlines()
    )
    return listed or Unknown("neither /sys/devices/system/cpu/online nor /proc/cpuinfo lists the cores")


def parse_cpu_list(text: str) -> set[int]:
    """Parse core numbers in the kernel's list format, `0-3,8`. Raises ValueError: the text is not such a
    list."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


@or_unknown()
def memory_bytes(root: Path = Path("/")) -> int | Unknown:
    """Return the memory (bytes) that this process may use: the machine's, or the control group's limit if
    lower."""
    limit, sizes = needed(container.memory_limit_bytes(root)), kernel_files.sizes(root)
    if isinstance(sizes, Unknown) or "MemTotal" not in sizes:
        return Unknown("/proc/meminfo has no MemTotal")
    return sizes["MemTotal"] if limit is None else min(sizes["MemTotal"], limit)
