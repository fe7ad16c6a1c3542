from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.probe import host
from dynotune.schema.facts import Unknown


def test_the_facts_of_a_recorded_machine(root):
    root.write(
        "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Xeon\n\nprocessor\t: 1\nmodel name\t: Some Xeon\n"
    )
    root.write("sys/devices/system/cpu/online", "0-1,4\n")
    root.write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n")
    root.write("proc/sys/kernel/osrelease", "6.1.0\n")
    facts = host.facts(root.path, affinity={4, 0})
    assert facts["host.cpu"] == "Some Xeon"
    assert facts["host.num_logical_cpus"] == 3
    assert facts["host.affinity"] == [0, 4]
    assert facts["host.num_cores"] == 2
    assert facts["host.memory_bytes"] == 1024 * 1024
    assert facts["host.kernel"] == "6.1.0"


def test_host_facts_are_unknown_and_never_zero_when_the_kernel_does_not_say(root):
    facts = host.facts(root.path, affinity={0})
    for name in ("host.cpu", "host.num_logical_cpus", "host.memory_bytes", "host.kernel", "host.container"):
        assert isinstance(facts[name], Unknown), name


def test_the_memory_limit_of_the_control_group_counts(root):
    root.write("proc/meminfo", "MemTotal:       4096 kB\n")
    root.write("proc/self/cgroup", "0::/\n")
    root.write("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    root.write("sys/fs/cgroup/memory.max", "1000000\n")
    assert host.memory_bytes(root.path) == 1_000_000


@pytest.mark.parametrize(
    ("num_cpus", "quota", "expected"), [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (2, 16.0, 2), (1, None, 1)]
)
def test_cores_are_those_of_the_affinity_cut_down_to_the_quota(num_cpus, quota, expected):
    assert host.num_cores(num_cpus, quota) == expected


def test_cores_under_an_unknown_quota_are_unknown():
    assert host.num_cores(4, Unknown("not mounted")) == Unknown("not mounted")


def test_this_machine_answers_with_what_the_scheduler_allows():
    facts = host.facts()
    assert facts["host.affinity"] == host.usable_cpus()
    assert isinstance(facts["host.num_cores"], int | Unknown)


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cores_is_read_back(cpus):
    assert host.parse_cpu_list(",".join(map(str, sorted(cpus)))) == cpus


def test_ranges_of_cores_hold_both_ends():
    assert host.parse_cpu_list("0-2,7\n") == {0, 1, 2, 7}
