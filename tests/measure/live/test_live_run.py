"""Live runs of real commands: tasks one after another, and what becomes of a task that cannot be done."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import msgspec
import pytest

from dynotune.launch import new_run_folder
from dynotune.measure.live import live_run
from dynotune.measure.live.launch_plan import launch_plan
from dynotune.measure.live.live_run import PLANNED, LiveRun, has_answered
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import Plan, Run
from dynotune.schema.task import IsolateLoader, RecordTrace, TimeWindow

from ...fakes import spec

CALLS = """
import gc
gc.disable()
import os, sys, time, torch
net = torch.nn.Linear(8, 8)
number = 0
with torch.no_grad():
    while number < NUM_STEPS:
        net(torch.ones(1, 8))
        time.sleep(0.002)
        number += 1
        EACH
"""
WITHOUT_TORCH = """
import time, dynotune
while True:
    time.sleep(0.002)
    dynotune.step()
"""
RANKS = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(8, 8)
number = 0
with torch.no_grad():
    while True:
        net(torch.ones(1, 8))
        time.sleep(0.005)
        number += 1
        if number > 300 and dist.get_rank() == 1:
            os._exit(0)
"""


@contextlib.contextmanager
def starter(folder):
    """`live(program, tasks=[...])` starts it as a live run in `folder`; leaving ends it."""
    started = []

    def make(
        program,
        *,
        num_steps=10**9,
        each="pass",
        tasks=(),
        python=(sys.executable,),
        limit_s=90.0,
        marked=None,
    ):
        path = folder / "program.py"
        path.write_text(program.replace("NUM_STEPS", str(num_steps)).replace("EACH", each))
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        run = spec(
            command=[*python, str(path)], cwd=folder, base=folder / "runs", env=env, lock=False, sandbox=False
        )
        run = msgspec.structs.replace(run, step_function=marked)
        run_folder = new_run_folder(run.base)
        plan = Plan(tasks=list(tasks), live=True)
        launch = launch_plan(
            run, [], folder=run_folder, label="the run", purpose="live", facts={}, plan=plan, samples=True
        )
        started.append(LiveRun(launch, folder=run_folder, limit_s=limit_s))
        return started[-1]

    yield make
    for one in started:
        one.__exit__(None, None, None)


@pytest.fixture
def live(tmp_path):
    """`starter` of runs that a test has for itself."""
    with starter(tmp_path) as make:
        yield make


@pytest.fixture
def going_on(tmp_path):
    """A run of calls without an end, past its first steps. Not shared: its record is full after a few
    minutes."""
    with starter(tmp_path) as make:
        run = make(CALLS, limit_s=3600.0)
        assert run.until(has_steps(20))
        yield run


def has_steps(num):
    return lambda records: bool(records) and len(records[0].steps) >= num


def test_tasks_are_carried_out_one_after_another_and_the_program_goes_on_between_them(live):
    run = live(CALLS)
    assert run.until(has_steps(20))
    window = run.do(TimeWindow(num_steps=30))
    made = len(run.records()[0].steps)
    assert run.until(has_steps(made + 20))
    trace = run.do(RecordTrace(num_steps=3))
    again = run.do(TimeWindow(num_steps=10))
    assert [answer.reason for answer in (window, trace, again)] == ["", "", ""]
    assert (window.events[0].num_steps, again.events[0].num_steps) == (30, 10)
    assert (run.folder / trace.events[0].file).is_file()
    outcome = run.end()
    assert (outcome.run.ended_by, len(outcome.run.processes[0].windows)) == ("window", 2)
    assert document.read(run.folder / "run.json", Run) == outcome.run
    assert not live_run.is_alive(outcome.records[0].pid)


def test_of_a_program_without_torch_the_machine_is_sampled_once_it_makes_steps(live):
    run = live(WITHOUT_TORCH, marked="dynotune.step")
    assert run.until(has_steps(20))
    assert run.samples


def test_a_task_that_cannot_be_done_is_a_reason_and_the_next_one_is_done(going_on):
    assert "draw from no DataLoader" in going_on.do(IsolateLoader(num_steps=3)).reason
    assert going_on.do(TimeWindow(num_steps=5)).reason == ""


def test_a_program_that_ends_before_a_task_is_done_says_so_and_what_was_measured_stays(live):
    run = live(CALLS, num_steps=150)
    assert run.until(has_steps(10))
    window = run.do(TimeWindow(num_steps=20))
    answer = run.do(TimeWindow(num_steps=10**6))
    assert (answer.at_exit, answer.events) == (True, [])
    assert "ended" in answer.reason
    assert run.end().run.processes[0].windows[0].num_steps == window.events[0].num_steps == 20


@pytest.mark.long
def test_a_program_that_hangs_is_told_in_time(live, monkeypatch):
    monkeypatch.setattr(live_run, "STALL_S", 3.0)
    run = live(CALLS, each="time.sleep(10**6 * (number == 60))")
    assert run.until(has_steps(10))
    answer = run.do(TimeWindow(num_steps=1000))
    assert "made no step for" in answer.reason
    assert run.end().run.ended_by == "window"


@pytest.mark.long
def test_a_rank_that_dies_alone_is_named(live, monkeypatch):
    monkeypatch.setattr(live_run, "LOST_RANK_S", 0.5)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = live(RANKS, python=launcher)
    assert run.until(lambda records: len(records) == 2 and all(len(record.steps) > 10 for record in records))
    answer = run.do(TimeWindow(num_steps=10**6))
    assert "rank 1" in answer.reason
    assert "ended" in answer.reason


def test_a_task_takes_no_longer_than_it_may(going_on):
    answer = going_on.do(TimeWindow(num_steps=10**6), limit_s=1.0)
    assert answer.reason == "the 1 s given were over"


def test_a_damaged_task_file_is_refused_and_recorded_and_the_program_goes_on(going_on, monkeypatch):
    def damaged(path, task, **how):
        path.write_text(json.dumps({"schema": "dynotune.task/99", "task": {}}))

    with monkeypatch.context() as patch:
        patch.setattr(live_run.TaskPage.order.__globals__["document"], "write", damaged)
        answer = going_on.do(TimeWindow(num_steps=5))
    assert "this agent reads dynotune.task/1" in answer.reason
    assert going_on.do(TimeWindow(num_steps=5)).reason == ""


def test_a_second_parent_of_one_live_run_is_refused(going_on):
    with pytest.raises(CannotRunHere, match="Another dynotune process controls"):
        live_run.TaskPage(going_on.folder)


def test_planned_tasks_are_known_by_their_place_in_the_plan(live):
    run = live(CALLS, tasks=[TimeWindow(at_step=15, num_steps=5)])
    assert run.until(lambda records: has_answered(records, PLANNED))
    assert run.answer_to(PLANNED).events[0].first_step == 15
