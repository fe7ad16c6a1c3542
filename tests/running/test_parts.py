"""Which part is named: from looks whose truth is known, and never where several programs look alike."""

from __future__ import annotations

import pytest

from dynotune.running import parts
from dynotune.running.process_files import ProcessFiles
from dynotune.running.targets import Rank
from dynotune.running.thread_states import Activity, Look, Usage
from dynotune.schema.running import StackLine, Stacks


def process(pid: int) -> ProcessFiles:
    return ProcessFiles(pid, 1, "python", "R", 1, ("python",), {}, "/usr/bin/python3", frozenset())


def activity(
    *states, num_workers=0, working=0, pins=False, num_reads=0, worker_cores=0.0, others=False
) -> Activity:
    """An activity of 10 s: the main thread's states in equal shares, each look with as many working
    workers."""
    looks = tuple(
        Look(main=state, autograd_runs=False, others_run=others, num_working=working, num_workers=num_workers)
        for state in states * 20
    )
    workers = tuple(process(pid) for pid in range(2, 2 + num_workers))
    usage = Usage(0.0, 0.0, 0.0, 0, 0, 0, 0)
    end = {
        1: usage._replace(num_reads=num_reads * 10),
        **{w.pid: usage._replace(cpu_s=worker_cores * 10) for w in workers},
    }
    return Activity(
        Rank(process(1), workers, None), looks, 10.0, pins, dict.fromkeys(end, usage), end, False, ()
    )


@pytest.mark.parametrize(
    ("seen", "device_busy", "part"),
    [
        (activity("data", "runs", num_workers=2, working=2), None, "input"),
        (activity("data", "runs", num_workers=2, working=1), 0.4, "input"),
        (activity("lock", "runs", num_workers=2, working=1, pins=True), 0.4, "input"),
        (activity("data", "runs", num_workers=2, working=0), None, "unknown"),
        (activity("data", "runs", num_workers=2, working=2), 0.95, "device"),
        (activity("runs"), None, "cpu"),
        (activity("runs", num_workers=2, working=0), None, "cpu"),
        (activity("lock", others=True), None, "cpu"),
        (activity("runs", num_reads=100), None, "unknown"),
        (activity("runs"), 0.3, "host"),
        (activity("runs"), 0.75, "unknown"),
        (activity("lock"), 0.95, "device"),
        (activity("sleep", "runs"), None, "waiting"),
        (activity("data", "runs"), None, "waiting"),
        (activity("stopped"), None, "waiting"),
        (activity("disk", "runs"), None, "waiting"),
        (activity("other", "runs", "runs"), None, "unknown"),
    ],
)
def test_part_is_named_when_nothing_else_looks_so(seen, device_busy, part):
    assert parts.judge(seen, device_busy).part == part


def test_part_is_unknown_when_too_little_was_seen():
    assert parts.judge(activity("runs")._replace(looks=activity("runs").looks[:5]), None).part == "unknown"


def test_judgement_says_what_workers_do_when_the_loader_is_waited_for():
    computing = parts.judge(activity("data", num_workers=2, working=2, worker_cores=0.9), None)
    assert "its 2 workers use 1.8 cores." in computing.told
    waiting = parts.judge(activity("data", num_workers=2, working=2), None)
    assert "its 2 workers wait for storage, and hardly compute." in waiting.told
    alone = parts.judge(activity("data", num_workers=1, working=1), None)
    assert "its worker waits for storage, and hardly computes." in alone.told


def stacks(loader_share: float) -> Stacks:
    line = StackLine(place="train.py(9): read", thread="main", in_loader=True, share=loader_share)
    return Stacks(num=80, loader_share=loader_share, backward_share=0.1, optimizer_share=0.1, lines=[line])


def test_stacks_name_the_input_when_the_main_process_makes_the_batches():
    seen = activity("runs", num_reads=100)
    found = parts.with_stacks(parts.judge(seen, None), seen, None, stacks(0.6))
    assert found.part == "input"
    assert "at train.py(9): read" in found.told and "the loader has no workers" in found.told


def test_stacks_name_the_cpu_when_the_main_process_reads_files_but_is_rarely_in_a_loader():
    seen = activity("runs", num_reads=100)
    assert parts.with_stacks(parts.judge(seen, None), seen, None, stacks(0.02)).part == "cpu"


def test_stacks_leave_the_device_when_it_is_busy():
    seen = activity("lock")
    assert parts.with_stacks(parts.judge(seen, 0.99), seen, 0.99, stacks(0.6)).part == "device"


@pytest.mark.parametrize(
    ("ranks", "part"),
    [
        (["cpu"], "cpu"),
        (["input", "input"], "input"),
        (["waiting", "input"], "input"),
        (["host", "waiting"], "host"),
        (["device", "host"], "unknown"),
        (["unknown", "unknown"], "unknown"),
    ],
)
def test_part_of_all_ranks_is_named_when_the_others_may_wait_for_it(ranks, part):
    judged = [(str(number), parts.Judged(one, f"It is {one}.", ())) for number, one in enumerate(ranks)]
    assert parts.job(judged).part == part


def test_rate_is_unknown_when_the_kernel_does_not_count():
    seen = activity("runs")
    end = {1: seen.end[1]._replace(num_reads=None)}
    assert seen._replace(end=end).rate("num_reads", [1]) is None


def test_judgement_says_so_when_the_main_thread_gets_no_core():
    seen = activity("runs")
    end = {1: seen.end[1]._replace(main_queued_s=7.0)}
    judged = parts.judge(seen._replace(end=end), None)
    assert judged.part == "cpu"
    assert "ready 70% of the time, but gets no core" in judged.told


def test_part_is_unknown_when_batches_come_through_pipes():
    seen = activity("runs", num_workers=1)
    end = seen.end | {1: seen.end[1]._replace(read_bytes=10**9)}
    judged = parts.judge(seen._replace(end=end), None)
    assert judged.part == "unknown"
    assert "as through pipes from its workers" in judged.told


def test_part_is_unknown_when_workers_start_all_the_time():
    seen = activity("runs", num_workers=2)
    workers = tuple(process(pid) for pid in range(2, 10))
    judged = parts.judge(seen._replace(rank=seen.rank._replace(workers=workers)), None)
    assert judged.part == "unknown"
    assert "started 6 workers of its loader within 10.0 s" in judged.told
