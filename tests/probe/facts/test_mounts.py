from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.probe.facts import mounts
from dynotune.probe.sources.container import INITIAL_NAMESPACES
from dynotune.schema.facts import Unknown

ROOT = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n"
OVERLAY = "22 1 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b\n"


def machine(root: Path, mountinfo: str, *, container: str = "") -> Path:
    """A root folder whose /proc tells these mounts, in that kind of container."""
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    for name, inode in INITIAL_NAMESPACES.items():
        (root / "proc/self/ns" / name).symlink_to(f"{name}:[{inode + 1000 if container else inode}]")
    if container == "docker":
        (root / ".dockerenv").touch()
    return root


def test_storage_lasts_when_it_is_a_machines_own_disk(tmp_path):
    found = mounts.storage(Path("/home/me/.nv"), machine(tmp_path, ROOT))
    assert (found.lasts, found.noexec, found.read_only) == (True, False, False)


def test_a_folder_for_temporary_files_may_be_emptied(tmp_path):
    found = mounts.storage(Path("/tmp/torchinductor_me"), machine(tmp_path, ROOT))
    assert isinstance(found.lasts, Unknown)


def test_memory_does_not_last_and_may_forbid_programs(tmp_path):
    lines = ROOT + "30 22 0:30 / /scratch rw,nosuid,noexec - tmpfs tmpfs rw,size=64k\n"
    found = mounts.storage(Path("/scratch/cache"), machine(tmp_path, lines))
    assert (found.lasts, found.noexec) == (False, True)
    assert "tmpfs on /scratch" in found.why


def test_the_layer_of_a_container_does_not_last_and_its_volume_does(tmp_path):
    lines = OVERLAY + "31 22 8:1 /var/lib/docker/volumes/v/_data /data rw,relatime - ext4 /dev/sda1 rw\n"
    root = machine(tmp_path, lines, container="docker")
    assert mounts.storage(Path("/root/.nv"), root).lasts is False
    assert mounts.storage(Path("/data/caches"), root).lasts is True


def test_an_empty_dir_of_kubernetes_ends_with_its_pod(tmp_path):
    volume = "/pods/1/volumes/kubernetes.io~empty-dir/cache"
    lines = OVERLAY + f"31 22 8:1 {volume} /cache rw - ext4 /dev/sda1 rw\n"
    assert mounts.storage(Path("/cache/x"), machine(tmp_path, lines, container="docker")).lasts is False


def test_the_longest_mount_point_holds_a_path_and_of_two_on_one_point_the_last(tmp_path):
    lines = (
        ROOT
        + "30 22 0:30 / /data rw - nfs4 server:/ rw\n"
        + "31 22 0:31 / /database rw - xfs /dev/b rw\n"
        + "32 30 0:32 / /data ro - tmpfs tmpfs rw\n"
        + r"33 22 0:33 / /with\040space rw - xfs /dev/c ro"
    )
    root = machine(tmp_path, lines)
    assert mounts.mount_of(Path("/data/x"), root).kind == "tmpfs"
    assert mounts.storage(Path("/data/x"), root).read_only
    assert mounts.mount_of(Path("/database/x"), root).kind == "xfs"
    assert mounts.mount_of(Path("/with space/x"), root).point == "/with space"
    assert mounts.storage(Path("/with space/x"), root).read_only


@pytest.mark.parametrize("text", ["", "nonsense\n", "1 2 3 - \n"])
def test_mounts_that_cannot_be_read_are_unknown(tmp_path, text):
    assert isinstance(mounts.storage(Path("/x"), machine(tmp_path, text)).lasts, Unknown)


def test_without_proc_it_is_unknown(tmp_path):
    assert isinstance(mounts.storage(Path("/x"), tmp_path).lasts, Unknown)
