"""What the kernel tells of a thread: whether it runs, and what holds it."""

from __future__ import annotations

import signal
import threading

import pytest

from dynotune.running import targets, thread_states
from dynotune.running.process_files import PROC

from .conftest import eventually


@pytest.mark.parametrize(
    ("code", "held"),
    [
        ("while True: pass", "runs"),
        ("import time; time.sleep(1e6)", "sleep"),
        ("import os; os.read(os.pipe()[0], 1)", "data"),
        ("import select, os; select.select([os.pipe()[0]], [], [])", "data"),
        ("import threading; threading.Event().wait()", "lock"),
        ("import os; os.fork() or os.read(os.pipe()[0], 1); os.wait()", "child"),
    ],
)
def test_thread_is_told_by_what_holds_it_when_it_waits(started, code, held):
    program = started(f"print('ready', flush=True)\n{code}")
    folder = PROC / str(program.pid)
    assert eventually(lambda: thread_states.held(folder) == held)


def test_thread_is_stopped_when_a_signal_stopped_it(started):
    program = started()
    program.child.send_signal(signal.SIGSTOP)
    assert eventually(lambda: thread_states.held(PROC / str(program.pid)) == "stopped")


def test_observation_ends_early_when_the_program_ends(started):
    program = started()
    target = targets.find(program.pid)
    assert program.child.stdin is not None
    program.child.stdin.close()
    program.child.wait()
    (activity,) = thread_states.observe(target, 1e6, threading.Event())
    assert activity.ended
    assert activity.looks == ()


def test_observation_counts_workers_when_they_start_while_it_looks(started):
    code = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
if not os.fork():
    open("/proc/self/comm", "w").write("pt_data_worker")
    while True: pass
sys.stdin.read()
"""
    program = started(code)
    target = targets.find(program.pid)
    assert target.ranks[0].workers == ()
    assert program.child.stdin is not None
    program.child.stdin.write("\n")
    program.child.stdin.flush()
    (rank,) = target.ranks
    assert eventually(lambda: bool(targets.workers_of(rank.process, {})))
    (activity,) = thread_states.observe(target, 3.0, threading.Event())
    assert len(activity.rank.workers) == 1
    assert activity.looks[-1].num_workers == 1


class Clock:
    """A clock that goes on by what is waited and computed; it stands for `time` and for the event of a
    stop."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    thread_time = monotonic

    def wait(self, length_s):
        self.now_s += length_s
        return False


def test_a_program_is_looked_at_as_often_when_its_workers_take_long_to_list(started, monkeypatch):
    target, clock = targets.find(started().pid), Clock()
    num_lists = []

    def listed(process, known, proc):
        clock.wait(1.5)
        num_lists.append(1)
        return {}

    monkeypatch.setattr(thread_states, "time", clock)
    monkeypatch.setattr(targets, "workers_of", listed)
    (activity,) = thread_states.observe(target, 5.0, clock)
    assert not activity.ended
    assert len(activity.looks) > 2 / thread_states.INTERVAL_S
    assert len(num_lists) == 2  # while looking, and at the end
