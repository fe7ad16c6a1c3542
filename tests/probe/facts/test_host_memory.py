from __future__ import annotations

from types import SimpleNamespace

from dynotune.probe.facts import host_memory
from dynotune.schema.facts import Unknown

MEMINFO = "MemTotal: 4000 kB\nMemAvailable: 3000 kB\nSwapTotal: 200 kB\nSwapFree: 50 kB\nHugePages_Total: 0\n"


def shm(size_bytes):
    return lambda path: SimpleNamespace(f_blocks=size_bytes // 4096, f_frsize=4096, f_bavail=10)


def in_group(root, **files):
    root.write("proc/self/cgroup", "0::/job\n")
    root.write("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    for name, text in files.items():
        root.write(f"sys/fs/cgroup/job/{name.replace('_', '.', 1)}", text)


def test_each_fact_of_host_memory_is_read_when_the_kernels_files_are_there(root):
    root.write("proc/meminfo", MEMINFO)
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    root.write("sys/kernel/mm/transparent_hugepage/defrag", "always defer [defer+madvise] madvise never\n")
    root.write("proc/sys/vm/swappiness", "60\n")
    root.write("proc/sys/kernel/numa_balancing", "1\n")
    facts = host_memory.facts(root.path, shm(1 << 30))
    assert facts["host.memory_available_bytes"] == 3000 * 1024
    assert facts["host.memory_limit_bytes"] is None
    assert (facts["host.swap_total_bytes"], facts["host.swap_used_bytes"]) == (200 * 1024, 150 * 1024)
    assert (facts["host.shm_bytes"], facts["host.shm_free_bytes"]) == (1 << 30, 40960)
    assert (facts["host.thp_enabled"], facts["host.thp_defrag"]) == ("madvise", "defer+madvise")
    assert (facts["host.swappiness"], facts["host.numa_balancing"]) == (60, 1)


def test_without_proc_and_sys_nothing_is_zero(root):
    def refused(path):
        raise PermissionError(13, "Permission denied")

    facts = host_memory.facts(root.path, refused)
    assert set(facts) == {*host_memory.NAMES, "host.container_shm_default"}
    known = {name for name, value in facts.items() if not isinstance(value, Unknown)}
    assert known == {"host.memlock_soft_bytes", "host.memory_limit_bytes"}


def test_available_memory_counts_the_cache_that_a_limited_group_can_give_back(root):
    root.write("proc/meminfo", MEMINFO)
    in_group(
        root,
        memory_max="1000000\n",
        memory_current="900000\n",
        memory_stat="anon 5\ninactive_file 300000\n",
        memory_events="low 0\nhigh 7\nmax 2\noom 1\noom_kill 3\n",
    )
    facts = host_memory.facts(root.path, shm(1 << 30))
    assert facts["host.memory_available_bytes"] == 400_000
    assert facts["host.memory_limit_bytes"] == 1_000_000
    assert facts["host.cgroup_memory_high"] == 7
    assert facts["host.cgroup_oom_kills"] == 3


def test_the_small_shared_memory_of_a_container_is_recognised(root):
    root.namespace("pid", 4026532000)
    root.write(".dockerenv", "")
    assert host_memory.facts(root.path, shm(64 << 20))["host.container_shm_default"] is True
    assert host_memory.facts(root.path, shm(16 << 30))["host.container_shm_default"] is False


def test_outside_a_container_its_default_is_no_fact(root):
    for name, inode in (("pid", 4026531836), ("uts", 4026531838), ("cgroup", 4026531835)):
        root.namespace(name, inode)
    assert "host.container_shm_default" not in host_memory.facts(root.path, shm(64 << 20))


def test_a_file_that_holds_something_else_is_unknown(root):
    root.write("proc/sys/vm/swappiness", "a lot\n")
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always\n")
    in_group(root, memory_events="high x\n")
    facts = host_memory.facts(root.path, shm(1 << 30))
    for name in ("host.swappiness", "host.thp_enabled", "host.cgroup_memory_high"):
        assert isinstance(facts[name], Unknown), name
