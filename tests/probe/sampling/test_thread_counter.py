from __future__ import annotations

import shutil

import pytest

from dynotune.probe.sampling.thread_counter import READINGS_APART, ThreadCounter
from dynotune.probe.sources.counters import TICK_S


def thread(root, pid, tid, name, ticks):
    numbers = [0] * 10 + [ticks, 0] + [0] * 10
    root.write(f"proc/{pid}/task/{tid}/comm", name + "\n")
    root.write(f"proc/{pid}/task/{tid}/stat", f"{tid} ({name}) S {' '.join(map(str, numbers))}\n")


def test_a_watched_thread_is_told_by_what_it_used_since_the_last_reading(root):
    thread(root, 10, 10, "python", 500)
    thread(root, 10, 11, "pt_data_pin", 100)
    counter = ThreadCounter(root.path)
    assert counter.read([10]) == {"pt_data_pin": 0}
    thread(root, 10, 11, "pt_data_pin", 130)
    assert counter.read([10]) == {"pt_data_pin": pytest.approx(30 * TICK_S)}


def test_a_thread_that_takes_its_name_late_is_found(root):
    thread(root, 10, 11, "python", 0)
    counter = ThreadCounter(root.path)
    assert counter.read([10]) == {}
    thread(root, 10, 11, "pt_data_pin", 5)
    found = [counter.read([10]) for _ in range(READINGS_APART)]
    assert found[-1] == {"pt_data_pin": 0}


def test_a_thread_that_ended_and_a_process_that_is_gone_are_no_error(root):
    thread(root, 10, 11, "pt_data_pin", 5)
    counter = ThreadCounter(root.path)
    counter.read([10, 99])
    shutil.rmtree(root.path / "proc/10")
    assert counter.read([10, 99]) == {}


def test_two_threads_of_one_name_are_summed(root):
    counter = ThreadCounter(root.path)
    for ticks in (0, 10):
        thread(root, 10, 11, "pt_data_pin", ticks)
        thread(root, 20, 21, "pt_data_pin", 2 * ticks)
        found = counter.read([10, 20])
    assert found == {"pt_data_pin": pytest.approx(30 * TICK_S)}
