"""Report cores, memory nodes, clocks, throttling, limits, network buffers and hypervisor of the host."""

import platform
import re
import resource
from collections.abc import Callable, Collection
from pathlib import Path

from dynotune.probe.facts.host import parse_cpu_list
from dynotune.probe.facts.host_memory import limits
from dynotune.probe.facts.hypervisor import hypervisor
from dynotune.probe.sources import container, counters, kernel_files
from dynotune.schema.facts import Facts, Unknown, Value, needed, or_unknown

CPUS, VERSION = "sys/devices/system/cpu", "proc/sys/kernel/version"


def facts(root: Path = Path("/"), affinity: Collection[int] = ()) -> Facts:
    """Return facts `host.*` of `QUESTIONS`. `affinity`: cores that this process may run on."""
    return {name: question(root, affinity) for name, question in QUESTIONS.items()}


def num_physical_cores(root: Path = Path("/")) -> int | Unknown:
    """Count the physical cores that are online, whatever their number of threads."""
    cores: set[str] = set()
    for folder in (root / CPUS).glob("cpu[0-9]*"):
        # The kernel lists the same siblings for each thread of a core; a processor that is offline has no
        # topology.
        cores.add(kernel_files.read(folder / "topology/thread_siblings_list"))
    return len(cores - {""}) or Unknown("/sys does not say which processors share a core")


@or_unknown()
def _num_listed(root: Path, name: str) -> int | Unknown:
    listed = needed(kernel_files.text(root, name))
    try:
        return len(parse_cpu_list(listed)) or Unknown(f"/{name} is empty")
    except ValueError:
        return Unknown(f"/{name} is not a list: {listed[:40]}")


def _of_cores(root: Path, affinity: Collection[int], name: str) -> str | Unknown:
    """Return cpufreq's value for the cores of this process, or all different values if the cores differ."""
    found = {kernel_files.read(root / f"{CPUS}/cpu{cpu}/cpufreq/{name}").strip() for cpu in affinity}
    none = Unknown("the kernel sets no frequencies here, as in most virtual machines and containers")
    return ", ".join(sorted(found - {""})) or none


@or_unknown()
def _preempt_rt(root: Path) -> bool:
    realtime, version = kernel_files.text(root, "sys/kernel/realtime"), kernel_files.text(root, VERSION)
    return realtime == "1" or bool(re.search(r"PREEMPT[ _]RT\b", needed(version)))


@or_unknown()
def _load(root: Path) -> float | Unknown:
    found = needed(kernel_files.text(root, "proc/loadavg"))
    try:
        return float(found.split()[0])
    except (IndexError, ValueError):
        return Unknown(f"/proc/loadavg is not a row of numbers: {found[:40]}")


@or_unknown()
def _throttling(root: Path, counter: str) -> float:
    """Return throttling since the control group was created; zero if no limit could throttle."""
    return getattr(needed(counters.quota(container.cpu_limits(root))), counter, 0)


QUESTIONS: dict[str, Callable[[Path, Collection[int]], Value | Unknown]] = {
    "host.num_physical_cores": lambda root, _: num_physical_cores(root),
    "host.num_numa_nodes": lambda root, _: _num_listed(root, "sys/devices/system/node/has_cpu"),
    "host.governor": lambda root, cpus: _of_cores(root, cpus, "scaling_governor"),
    "host.governor_driver": lambda root, cpus: _of_cores(root, cpus, "scaling_driver"),
    "host.kernel_version": lambda root, _: kernel_files.text(root, VERSION),
    "host.preempt_rt": lambda root, _: _preempt_rt(root),
    "host.load_1min": lambda root, _: _load(root),
    "host.virtual": lambda root, _: hypervisor(root),
    "host.platform": lambda root, _: f"{platform.system()}-{platform.machine()}",
    "host.cgroup_throttled_s": lambda root, _: _throttling(root, "throttled_s"),
    "host.cgroup_num_throttled": lambda root, _: _throttling(root, "num_throttled"),
    "host.nofile_soft": lambda root, _: limits(resource.RLIMIT_NOFILE)[0],
    "host.nofile_hard": lambda root, _: limits(resource.RLIMIT_NOFILE)[1],
    "host.rmem_max": lambda root, _: kernel_files.number(root, "proc/sys/net/core/rmem_max"),
    "host.wmem_max": lambda root, _: kernel_files.number(root, "proc/sys/net/core/wmem_max"),
    "host.tcp_rmem": lambda root, _: kernel_files.numbers(root, "proc/sys/net/ipv4/tcp_rmem"),
    "host.tcp_wmem": lambda root, _: kernel_files.numbers(root, "proc/sys/net/ipv4/tcp_wmem"),
}
NAMES = tuple(QUESTIONS)
