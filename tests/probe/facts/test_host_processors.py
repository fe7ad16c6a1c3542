from __future__ import annotations

import pytest

from dynotune.probe.facts import host_processors
from dynotune.schema.facts import Unknown


def test_threads_of_one_core_are_counted_once(root):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        root.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    root.write("sys/devices/system/cpu/cpuidle/current_driver", "none\n")
    assert host_processors.num_physical_cores(root.path) == 2


def test_each_fact_of_processors_is_read_when_the_kernels_files_are_there(root):
    root.write("sys/devices/system/node/has_cpu", "0-1\n")
    for cpu, governor in enumerate(["powersave", "performance", "schedutil"]):
        root.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", governor + "\n")
        root.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_driver", "intel_pstate\n")
    root.write("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Tue\n")
    root.write("proc/loadavg", "3.25 1.00 0.50 2/300 99\n")
    root.write("proc/sys/net/core/rmem_max", "212992\n")
    root.write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
    facts = host_processors.facts(root.path, affinity=[0, 1])
    assert facts["host.num_numa_nodes"] == 2
    assert facts["host.governor"] == "performance, powersave"
    assert facts["host.governor_driver"] == "intel_pstate"
    assert facts["host.preempt_rt"] is False
    assert facts["host.load_1min"] == 3.25
    assert facts["host.rmem_max"] == 212992
    assert facts["host.tcp_rmem"] == [4096, 131072, 6291456]
    assert facts["host.cgroup_throttled_s"] == 0


def test_without_proc_and_sys_only_what_this_process_knows_is_known(root):
    facts = host_processors.facts(root.path, affinity=[0])
    assert set(facts) == set(host_processors.NAMES)
    known = {name for name, value in facts.items() if not isinstance(value, Unknown)}
    # No control groups: no limit that could throttle.
    assert known == {
        "host.platform",
        "host.nofile_soft",
        "host.nofile_hard",
        "host.cgroup_throttled_s",
        "host.cgroup_num_throttled",
    }


def test_throttling_of_the_control_group_is_told(root):
    root.write("proc/self/cgroup", "0::/\n")
    root.write("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    root.write("sys/fs/cgroup/cpu.max", "150000 100000\n")
    root.write(
        "sys/fs/cgroup/cpu.stat", "usage_usec 9\nnr_periods 50\nnr_throttled 40\nthrottled_usec 2500000\n"
    )
    facts = host_processors.facts(root.path)
    assert facts["host.cgroup_throttled_s"] == 2.5
    assert facts["host.cgroup_num_throttled"] == 40


@pytest.mark.parametrize(
    ("version", "realtime", "expected"),
    [
        ("#1 SMP PREEMPT_RT Debian", None, True),
        ("#1 SMP PREEMPT RT", None, True),
        ("#1 SMP PREEMPT_DYNAMIC", "1", True),
        ("#1 SMP PREEMPT_DYNAMIC", "0", False),
    ],
)
def test_a_real_time_kernel_is_recognised(root, version, realtime, expected):
    root.write("proc/sys/kernel/version", version)
    if realtime is not None:
        root.write("sys/kernel/realtime", realtime)
    assert host_processors.facts(root.path)["host.preempt_rt"] is expected
