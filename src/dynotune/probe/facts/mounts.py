"""Describe the storage below a path: the file system, whether programs can be mapped, and whether data
persist.

Source: proc_pid_mountinfo(5), overlayfs and tmpfs in the kernel's documentation.
"""

import os
from pathlib import Path
from typing import NamedTuple

from dynotune.probe.sources import container
from dynotune.probe.sources.container import Mount
from dynotune.schema.facts import Unknown

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
LAYERED = frozenset({"overlay", "aufs", "overlayfs", "fuse.fuse-overlayfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "9p", "virtiofs"}
)


class Storage(NamedTuple):
    """Describe the storage below a path.

    Args:
        lasts: whether data survives the end of this container, or a reboot of the machine.
        noexec: whether loading libraries from the storage is forbidden.
    """

    lasts: bool | Unknown
    why: str
    noexec: bool = False
    read_only: bool = False


def storage(path: Path, root: Path = Path("/")) -> Storage:
    """Describe the storage of `path`, which need not exist."""
    mount = mount_of(path, root)
    if isinstance(mount, Unknown):
        return Storage(mount, mount.reason)
    lasts, why = _lasts(mount, path, root)
    return Storage(lasts, why, noexec="noexec" in mount.options, read_only="ro" in mount.options)


def mount_of(path: Path, root: Path = Path("/")) -> Mount | Unknown:
    """Return the mount that contains `path`: the longest mount point above `path`, and of several there the
    last."""
    try:
        mounts = container.mounts_of_self(root)
    except OSError as error:
        return Unknown(f"the mounts of this process cannot be read: {error.strerror}")
    real = os.path.realpath(path)
    holding = [m for m in mounts if real == m.point or real.startswith(m.point.rstrip("/") + "/")]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None) or Unknown(
        f"no mount holds {path}"
    )


def _lasts(mount: Mount, path: Path, root: Path) -> tuple[bool | Unknown, str]:
    if mount.kind in IN_MEMORY:
        return False, f"it lies in memory ({mount.kind} on {mount.point})"
    if "kubernetes.io~empty-dir" in mount.root:
        return False, f"it lies on an emptyDir ({mount.point}), which ends with the pod"
    kind = container.kind(root)
    if mount.kind in LAYERED and (mount.point == "/" or kind is not None):
        return False, f"it lies in the container's own layer ({mount.kind}), which ends with the container"
    if mount.point == "/" and kind is not None:
        if isinstance(kind, Unknown):
            return Unknown(kind.reason), f"it lies on the root file system, and {kind.reason}"
        return False, f"it lies on the root file system of a container ({kind}), which ends with it"
    if mount.kind in NETWORK:
        return True, f"it lies on {mount.kind}, mounted at {mount.point}"
    if kind is not None:
        return True, f"it lies on a volume mounted at {mount.point}"
    temporary = _temporary(path)
    if temporary:
        why = f"it lies in {temporary}, which many systems empty at their start or after days"
        return Unknown(why), why
    return True, f"it lies on {mount.kind}, mounted at {mount.point}"


def _temporary(path: Path) -> str:
    real = os.path.realpath(path)
    return next((folder for folder in ("/tmp", "/var/tmp") if f"{real}/".startswith(f"{folder}/")), "")


def nearest(path: Path) -> Path:
    """Return `path`, or the nearest folder above `path` that exists."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))
