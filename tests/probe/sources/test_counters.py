from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.probe.sources import container, counters
from dynotune.probe.sources.samples import Quota
from dynotune.schema.facts import Unknown

TICK_S = counters.TICK_S


def test_only_our_cores_are_summed_and_stolen_time_stands_apart(root):
    root.cpus((100, 10, 1), (200, 20, 2), (400, 40, 4))
    found = counters.cores({0, 2}, root.path)
    assert found.num_cpus == 2
    assert found.busy_s == pytest.approx(500 * TICK_S)
    assert found.idle_s == pytest.approx(50 * TICK_S)
    assert found.steal_s == pytest.approx(5 * TICK_S)


def test_time_in_interrupts_is_nobodys(root):
    root.write("proc/stat", "cpu0 10 20 30 40 50 6000 7000 80 9000 9000\nintr 1\n")
    found = counters.cores({0}, root.path)
    assert found.busy_s == pytest.approx(60 * TICK_S)
    assert found.idle_s == pytest.approx(90 * TICK_S)


def test_a_core_that_is_not_listed_makes_them_unknown(root):
    root.cpus((1, 1, 1))
    assert isinstance(counters.cores({0, 1}, root.path), Unknown)


@pytest.mark.parametrize("text", ["cpu0 1 2\n", "cpu0 a b c d e f g h\n"])
def test_a_damaged_stat_file_is_unknown(root, text):
    root.write("proc/stat", text)
    assert isinstance(counters.cores({0}, root.path), Unknown)


def test_the_time_of_a_child_that_ended_is_counted_once(root):
    tree = counters.TreeCounter(root.path)
    root.process(10, ticks=5)
    root.process(11, ticks=100, parent=10)
    assert tree.read([10, 11]).cpu_s == pytest.approx(105 * TICK_S)
    root.end_process(11)
    root.process(10, ticks=6, waited=130)
    assert tree.read([10]).cpu_s == pytest.approx(136 * TICK_S)


def test_the_time_of_a_child_that_nobody_waited_for_is_not_taken_back(root):
    tree = counters.TreeCounter(root.path)
    root.process(10, ticks=5)
    root.process(11, ticks=100, parent=10)
    tree.read([10, 11])
    root.end_process(11)
    assert tree.read([10]).cpu_s == pytest.approx(105 * TICK_S)
    root.process(10, ticks=25)
    assert tree.read([10]).cpu_s == pytest.approx(125 * TICK_S)


def test_a_child_that_vanishes_before_its_parent_shows_its_time_is_counted_once(root):
    tree = counters.TreeCounter(root.path)
    root.process(10)
    root.process(11, ticks=100, parent=10)
    tree.read([10, 11])
    root.end_process(11)
    tree.read([10])
    root.process(10, waited=104)
    assert tree.read([10]).cpu_s == pytest.approx(104 * TICK_S)


def test_a_process_that_is_missing_from_one_list_is_not_counted_twice(root):
    tree = counters.TreeCounter(root.path)
    root.process(10)
    root.process(11, ticks=100, parent=10)
    tree.read([10, 11])
    tree.read([10])
    assert tree.read([10, 11]).cpu_s == pytest.approx(100 * TICK_S)


def test_a_process_id_used_again_by_a_stranger_is_not_ours(root):
    tree = counters.TreeCounter(root.path)
    root.process(10)
    root.process(11, ticks=100, start=1)
    tree.read([10, 11])
    root.process(11, ticks=900, start=2)
    assert tree.read([10]).cpu_s == pytest.approx(100 * TICK_S)
    assert tree.pids == {10, 11}


def test_a_name_with_blanks_and_brackets_is_read(root):
    root.process(10, ticks=7, name="a) b (c")
    assert counters.TreeCounter(root.path).read([10]).cpu_s == pytest.approx(7 * TICK_S)


def test_major_faults_of_ended_children_are_counted_once(root):
    tree = counters.TreeCounter(root.path)
    root.process(10, faults=1)
    root.process(11, faults=5, parent=10)
    assert tree.read([10, 11]).num_major_faults == 6
    root.end_process(11)
    root.process(10, faults=1, waited_faults=6)
    assert tree.read([10]).num_major_faults == 7


@given(st.data())
def test_a_tree_whose_members_come_and_go_never_loses_time_and_never_invents_it(data):
    """Processes below one parent run, end and are waited for, in any order."""
    usages: dict[int, counters._Usage] = {1: counters._Usage(0, 0, 0, 0)}
    tree = counters.TreeCounter()
    tree._usage = lambda pid: (1, usages[pid]) if pid in usages else None  # type: ignore[method-assign]
    truth, next_pid, last = 0, 2, 0
    for _ in range(data.draw(st.integers(1, 12))):
        for _ in range(data.draw(st.integers(0, 4))):
            pid = data.draw(st.sampled_from(sorted(usages)))
            ran = data.draw(st.integers(0, 50))
            usages[pid] = usages[pid]._replace(own_ticks=usages[pid].own_ticks + ran)
            truth += ran
        if data.draw(st.booleans()):
            usages[next_pid] = counters._Usage(0, 0, 0, 0)
            next_pid += 1
        if len(usages) > 1 and data.draw(st.booleans()):
            ended = usages.pop(data.draw(st.sampled_from(sorted(usages)[1:])))
            waited = usages[1].waited_ticks + ended.own_ticks
            usages[1] = usages[1]._replace(waited_ticks=waited)
        found = round(tree.read(usages).cpu_s / TICK_S)
        assert last <= found == truth
        last = found


def test_every_descendant_is_listed_after_its_parent(root):
    for pid, children in {10: "11 12", 11: "13", 12: "", 13: ""}.items():
        root.write(f"proc/{pid}/task/{pid}/children", children)
    found = counters.descendants(10, root.path)
    assert set(found) == {10, 11, 12, 13}
    assert found.index(11) < found.index(13)


def test_tree_is_found_by_parents_when_the_kernel_lists_no_children(root):
    for pid, parent in {10: 1, 11: 10, 12: 11, 20: 1}.items():
        root.process(pid, parent=parent)
        (root.path / f"proc/{pid}/task/{pid}").mkdir(parents=True)
    assert counters.descendants(10, root.path) == [10, 11, 12]


def test_a_tree_of_more_threads_than_there_are_processes_is_found_by_parents_too(root):
    for pid, parent in {10: 1, 11: 10, 20: 1}.items():
        root.process(pid, parent=parent)
        for thread in range(counters.MIN_THREADS):
            root.write(f"proc/{pid}/task/{thread}/children", "11" if (pid, thread) == (10, 0) else "")
    assert counters.descendants(10, root.path) == [10, 11]


def test_the_descendants_of_a_process_that_is_gone_are_none(root):
    (root.path / "proc").mkdir(parents=True)
    assert counters.descendants(99, root.path) == []


def test_a_real_child_and_grandchild_are_found():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert len(counters.descendants(child.pid)) == 2
        assert set(counters.descendants(child.pid)) < set(counters.descendants(os.getpid()))
        child.communicate(b"\n")


CHILDREN_THAT_COME_AND_GO = """
import os, sys
for n in range(15):
    pid = os.fork()
    if pid == 0:
        while sum(os.times()[:2]) < 0.05:
            pass
        os._exit(0)
    if n % 3 == 0:
        os.waitpid(pid, 0)
try:
    while True:
        os.wait()
except ChildProcessError:
    print(sum(os.times()[:4]), flush=True)
sys.stdin.read()
"""


def test_a_real_tree_whose_children_come_and_go_is_billed_what_the_kernel_bills():
    with subprocess.Popen(
        [sys.executable, "-c", CHILDREN_THAT_COME_AND_GO], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        tree = counters.TreeCounter()
        while not select.select([parent.stdout], [], [], 0)[0]:
            tree.read(counters.descendants(parent.pid))
        billed_s = float(parent.stdout.readline())
        found_s = tree.read(counters.descendants(parent.pid)).cpu_s
        parent.stdin.close()
    # The tolerance is one child: a process may end while it is being read.
    assert found_s == pytest.approx(billed_s, abs=0.06)


def test_version_2_throttling_is_in_microseconds(root):
    root.write("job/cpu.stat", "usage_usec 5000000\nnr_periods 9\nnr_throttled 3\nthrottled_usec 250000\n")
    found = counters.quota({root.path / "job": 2.0})
    assert found == Quota(cores=2.0, num_throttled=3, throttled_s=0.25, usage_s=5.0)


def test_version_1_throttling_is_in_nanoseconds_and_its_usage_in_another_file(root):
    root.write("job/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 250000000\n")
    found = counters.quota({root.path / "job": 2.0})
    assert found.throttled_s == 0.25
    assert isinstance(found.usage_s, Unknown)
    root.write("job/cpuacct.usage", "5000000000\n")
    assert counters.quota({root.path / "job": 2.0}).usage_s == 5.0


def test_the_tightest_limit_is_looked_at(root):
    for name, throttled in (("wide", 1), ("tight", 2)):
        root.write(f"{name}/cpu.stat", f"usage_usec 1\nnr_throttled {throttled}\nthrottled_usec 1\n")
    assert counters.quota({root.path / "wide": 8.0, root.path / "tight": 2.0}).num_throttled == 2


def test_no_limit_is_none_and_a_limit_without_counters_is_unknown(root):
    assert counters.quota({}) is None
    assert isinstance(counters.quota({root.path / "job": 2.0}), Unknown)
    assert counters.quota(Unknown("not mounted")) == Unknown("not mounted")


def test_swapping_is_read_and_unknown_where_it_is_not_counted(root):
    assert isinstance(counters.vmstat(root.path), Unknown)
    root.write("proc/vmstat", "nr_free_pages 1\n")
    assert counters.vmstat(root.path).values == {}
    root.swap(3, 4)
    assert counters.vmstat(root.path).values == {"pswpin": 3, "pswpout": 4}


def test_this_kernel_counts_this_process():
    assert counters.TreeCounter().read([os.getpid()]).cpu_s > 0
    assert isinstance(container.cpu_limits(), dict | Unknown)


def test_counters_of_memory_that_somebody_asks_for_are_kept(root):
    root.write("proc/vmstat", "nr_free_pages 9\npswpin 1\npswpout 2\nallocstall_dma 3\nallocstall_normal 4\n")
    counted = counters.vmstat(root.path)
    assert counted.values == {"pswpin": 1, "pswpout": 2}
    root.write("proc/vmstat", "not a count\n")
    assert isinstance(counters.vmstat(root.path), Unknown)


def test_events_of_the_memory_limit_are_read_again_and_again(root):
    root.write("memory.events", "high 1\noom_kill 0\n")
    file = root.path / "memory.events"
    assert counters.memory_events(file).values == {"high": 1, "oom_kill": 0}
    file.unlink()
    assert isinstance(counters.memory_events(file), Unknown)
    assert counters.memory_events(Unknown("version 1")) == Unknown("version 1")


def test_waiting_for_disks_is_idleness(root):
    root.write("proc/stat", "cpu 1 2 3\ncpu0 10 0 5 100 40 0 0 0 0 0\nintr 5\n")
    cores = counters.cores([0], root.path)
    assert cores.idle_s == pytest.approx(140 * TICK_S)
