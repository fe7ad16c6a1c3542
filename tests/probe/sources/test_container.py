from __future__ import annotations

import pytest

from dynotune.probe.sources import container
from dynotune.schema.facts import Unknown

V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNT = "30 23 0:27 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
MEMORY_MOUNT = "31 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def test_version_2_limits_count_at_every_level(root):
    root.write("proc/self/cgroup", "0::/user.slice/job\n")
    root.write("proc/self/mountinfo", V2_MOUNT)
    root.write("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n")
    root.write("sys/fs/cgroup/user.slice/job/cpu.max", "max 100000\n")
    root.write("sys/fs/cgroup/user.slice/job/memory.max", "2147483648\n")
    root.write("sys/fs/cgroup/user.slice/memory.max", "max\n")
    assert container.cpu_quota(root.path) == 1.5
    assert container.memory_limit_bytes(root.path) == 2**31


def test_a_version_1_quota_is_found_in_a_container_that_mounts_only_its_own_group(root):
    root.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n")
    root.write("proc/self/mountinfo", V1_MOUNT.format(root="/docker/abc"))
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n")
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert container.cpu_quota(root.path) == 2.0


def test_no_limit_is_none_and_not_a_huge_number(root):
    root.write("proc/self/cgroup", "4:cpu,cpuacct:/\n5:memory:/\n")
    root.write("proc/self/mountinfo", V1_MOUNT.format(root="/") + MEMORY_MOUNT)
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert container.cpu_quota(root.path) is None
    assert container.memory_limit_bytes(root.path) is None


def test_a_kernel_without_control_groups_sets_no_limit(root):
    assert container.cpu_quota(root.path) is None


def test_control_groups_that_are_not_mounted_leave_the_limit_unknown(root):
    root.write("proc/self/cgroup", "0::/job\n")
    root.write("proc/self/mountinfo", "22 27 0:21 / /proc rw,relatime - proc proc rw\n")
    assert isinstance(container.cpu_quota(root.path), Unknown)
    assert isinstance(container.memory_limit_bytes(root.path), Unknown)


def test_a_group_outside_the_mounted_part_shows_the_limits_of_that_part(root):
    root.write("proc/self/cgroup", "0::/../../elsewhere\n")
    root.write("proc/self/mountinfo", V2_MOUNT)
    root.write("sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert container.cpu_quota(root.path) == 1.0


def test_a_damaged_quota_is_unknown(root):
    root.write("proc/self/cgroup", "0::/\n")
    root.write("proc/self/mountinfo", V2_MOUNT)
    root.write("sys/fs/cgroup/cpu.max", "what\n")
    assert isinstance(container.cpu_quota(root.path), Unknown)


def initial(root):
    for name, inode in container.INITIAL_NAMESPACES.items():
        root.namespace(name, inode)


def test_a_marker_file_in_the_first_namespaces_is_an_image_turned_machine_and_no_container(root):
    initial(root)
    root.write(".dockerenv", "")
    assert container.kind(root.path) is None
    assert container.in_initial_pid_namespace(root.path)


@pytest.mark.parametrize(
    ("file", "text", "kind"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/cgroup", "0::/kubepods/besteffort/x\n", "kubernetes"),
        ("proc/1/environ", "PATH=/bin\0container=lxc\0", "lxc"),
    ],
)
def test_a_container_is_known_by_its_marker(root, file, text, kind):
    initial(root)
    root.namespace("uts", 4026532500)
    root.write(file, text)
    assert container.kind(root.path) == kind


def test_namespaces_of_its_own_without_a_marker_are_unknown(root):
    initial(root)
    root.namespace("pid", 4026532501)
    assert isinstance(container.kind(root.path), Unknown)
    assert not container.in_initial_pid_namespace(root.path)


def test_unreadable_namespaces_are_unknown(root):
    assert isinstance(container.kind(root.path), Unknown)


def test_gvisor_is_known_by_its_build_date(root):
    initial(root)
    root.write("proc/version", f"Linux version 4.4.0 #1 SMP {container.GVISOR_VERSION}\n")
    assert container.kind(root.path) == "gvisor"
