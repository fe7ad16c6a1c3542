"""Report cores, memory nodes, clocks, throttling, limits, network buffers and hypervisor of the host."""

import platform
import re
import resource
from collections.abc import Callable, Collection
from pathlib import Path

from dynotune.probe.facts.host import parse_cpu_list
from dynotune.probe.facts.host_memory import limits
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
        # The kernel lists the same siblings for each thread of a core; a processor that is offline has no topology.
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


# Names that a hypervisor writes into the firmware tables as vendor or product.
BY_FIRMWARE = {
    "vmware": "vmware",
    "virtualbox": "virtualbox",
    "innotek": "virtualbox",
    "virtual machine": "hyper-v",
    "parallels": "parallels",
    "google compute engine": "kvm",
    "amazon ec2": "kvm",
    "openstack": "kvm",
    "kvm": "kvm",
    "qemu": "qemu",
    "bochs": "qemu",
    "bhyve": "bhyve",
    "xen": "xen",
}


def hypervisor(root: Path = Path("/")) -> str | Unknown:
    """Name the hypervisor: `kvm`, `xen`, …; `other` if it cannot be identified; empty on a physical machine."""
    if "microsoft" in kernel_files.read(root / "proc/sys/kernel/osrelease").lower():
        return "wsl"
    if kind := kernel_files.read(root / "sys/hypervisor/type").strip():
        return kind
    # None if the kernel lists no flags, or flags that cannot show a hypervisor (Arm).
    flags = kernel_files.cpu_field(root, "flags")
    names = ("sys_vendor", "product_name")
    firmware = " ".join(kernel_files.read(root / "sys/class/dmi/id" / name).strip().lower() for name in names).strip()
    # A cloud's bare-metal machine has the same vendor name, but the processor's flag is reliable.
    if flags is not None and "hypervisor" not in flags.split():
        return ""
    for word, name in BY_FIRMWARE.items():
        if word in firmware and ".metal" not in firmware:
            return name
    if flags is not None:
        return "other"
    return "" if firmware else Unknown("neither the processor nor the firmware says whether this machine is virtual")


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
