"""Read limits from the kernel's control groups and namespaces: CPU quota, memory limit, kind of container."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from dynotune.probe.sources.kernel_files import read
from dynotune.schema.facts import Unknown, needed, or_unknown

# Inode numbers of a kernel's initial namespaces, fixed in include/linux/proc_ns.h.
INITIAL_NAMESPACES = {"pid": 4026531836, "uts": 4026531838, "cgroup": 4026531835}

# cgroup v1 writes "no limit" as the largest page-aligned number, which no real limit comes near.
V1_UNLIMITED_BYTES = 1 << 60

GVISOR_VERSION = "Sun Jan 10 15:06:54 PST 2016"
"""gVisor reports this build date for every kernel that it imitates."""


def cgroup_levels(
    controller: str, root: Path = Path("/"), process: int | str = "self"
) -> list[Path] | Unknown:
    """Return the directories of the process's cgroup that have `controller` (`cpu`, `memory`), innermost
    first.

    Limits apply at every level, so all visible levels are returned. The list is empty if the kernel has no
    cgroups.
    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html, cgroups(7), proc_pid_mountinfo(5).
    """
    try:
        lines = (root / f"proc/{process}/cgroup").read_text().splitlines()
        mounts = mounts_of_self(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        return Unknown(f"the control groups of process {process} cannot be read: {error.strerror}")
    paths = {
        name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")
    }
    version_1 = controller in paths
    if not version_1 and "" not in paths:
        return []
    mount = _cgroup_mount(mounts, controller if version_1 else None)
    if mount is None:
        return Unknown(f"no control-group file system for {controller} is mounted here")
    return _levels(root / mount.point.lstrip("/"), mount.root, paths[controller if version_1 else ""])


def _cgroup_mount(mounts: list[Mount], controller: str | None) -> Mount | None:
    """Return the v1 hierarchy of `controller`, or the v2 hierarchy for None."""
    for mount in mounts:
        if (
            mount.kind == "cgroup2"
            if controller is None
            else mount.kind == "cgroup" and controller in mount.options
        ):
            return mount
    return None


class Mount(NamedTuple):
    """A line of mountinfo: mount point, folder within the file system, type, and all options."""

    point: str
    root: str
    kind: str
    options: frozenset[str]


def mounts_of_self(root: Path) -> list[Mount]:
    """List the mounts that this process sees, in mount order. Source: proc_pid_mountinfo(5). Raises
    OSError."""
    found = []
    for line in (root / "proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) >= 6 and len(rest) >= 3:
            point, folder = (
                re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[at]) for at in (4, 3)
            )
            found.append(
                Mount(point, folder, rest[0], frozenset([*fields[5].split(","), *rest[2].split(",")]))
            )
    return found


def _levels(mount_point: Path, mount_root: str, path: str) -> list[Path]:
    inside = path.removeprefix(mount_root) if mount_root != "/" else path
    parts = [part for part in inside.split("/") if part]
    # A cgroup outside the mounted part appears as `/../…` or under another root. Then only the mounted limits
    # are visible.
    if ".." in parts or not (mount_point / "/".join(parts)).is_dir():
        parts = []
    return [mount_point.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


@or_unknown()
def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the tightest CPU bandwidth limit on this process, in cores; None without a limit."""
    return min(needed(cpu_limits(root)).values(), default=None)


@or_unknown("the CPU quota")
def cpu_limits(root: Path = Path("/"), process: int | str = "self") -> dict[Path, float]:
    """Return every CPU bandwidth limit on the process, as the cgroup's directory and a number of cores."""
    quotas = {level: _quota_at(level) for level in needed(cgroup_levels("cpu", root, process))}
    return {level: quota for level, quota in quotas.items() if quota is not None}


def _quota_at(level: Path) -> float | None:
    if (level / "cpu.max").exists():
        quota, period = (level / "cpu.max").read_text().split()
    elif (level / "cpu.cfs_quota_us").exists():
        quota = (level / "cpu.cfs_quota_us").read_text().strip()
        period = (level / "cpu.cfs_period_us").read_text()
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


@or_unknown("the memory limit")
def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the tightest memory limit on this process in bytes; None without a limit."""
    levels = needed(cgroup_levels("memory", root))
    files = [level / name for level in levels for name in ("memory.max", "memory.limit_in_bytes")]
    texts = [file.read_text().strip() for file in files if file.exists()]
    limits = [int(text) for text in texts if text != "max"]
    return min((limit for limit in limits if limit < V1_UNLIMITED_BYTES), default=None)


def kind(root: Path = Path("/")) -> str | Unknown | None:
    """Return `docker`, `podman`, `kubernetes`, `lxc`, `gvisor`, …; None outside containers.

    A marker file alone proves nothing, because an image may have become a virtual machine's disk.
    """
    version = read(root / "proc/version")
    if GVISOR_VERSION in version:
        return "gvisor"
    first = [_in_initial_namespace(name, root) for name in INITIAL_NAMESPACES]
    if all(answer is True for answer in first):
        return None
    marker = _marker(root)
    if marker is not None:
        return marker
    if all(answer is None for answer in first):
        return Unknown("the namespaces of this process cannot be read")
    return Unknown(
        "this process has namespaces of its own, but they belong to no kind of container that dynotune knows"
    )


def _marker(root: Path) -> str | None:
    groups = read(root / "proc/1/cgroup") + read(root / "proc/self/mountinfo")
    environment = read(root / "proc/1/environ").split("\0")
    if "kubepods" in groups or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    named = [entry.removeprefix("container=") for entry in environment if entry.startswith("container=")]
    return named[0] if named and named[0] else None


def in_initial_pid_namespace(root: Path = Path("/")) -> bool:
    """Tell whether process ids here are the kernel's own, which drivers report. Return False if that is
    unknown."""
    return _in_initial_namespace("pid", root) is True


def _in_initial_namespace(name: str, root: Path) -> bool | None:
    try:
        target = str((root / "proc/self/ns" / name).readlink())
    except OSError:
        return None
    return target == f"{name}:[{INITIAL_NAMESPACES[name]}]"
