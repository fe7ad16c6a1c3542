"""Traces recorded of real commands, from launch to end."""

from __future__ import annotations

import gzip
import json
import os
import sys

import pytest

from dynotune import knobs
from dynotune.launch.records.record import EPOCH
from dynotune.measure.live import recording
from dynotune.measure.live.request import RecordRequest
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed, UsageError
from dynotune.schema.run import Process, RecordedTrace, Run

from ...fakes import of_run
from ...fakes import record as steps_of

TRAINS = """
import sys, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
open("made.txt", "w").close()
for number in range(int(sys.argv[1])):
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("DONE")
"""
# For tests whose subject is not the step: torch imports its compiler for the first optimizer.
CALLS = """
import sys, time, torch
net = torch.nn.Linear(8, 8).requires_grad_(False)
for number in range(int(sys.argv[1])):
    net(torch.randn(4, 8))
print("DONE")
"""


class Watcher:
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    warn = say

    def running(self, what, *, left_s=None):
        pass


@pytest.fixture
def trace(tmp_path):
    """`trace(program, *words, **asked)` gives the recording and what was said meanwhile."""
    project = tmp_path / "project"
    project.mkdir()

    def make(program, *words, python=(sys.executable,), **asked):
        (project / "program.py").write_text(program)
        watcher = Watcher()
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [*python, "program.py", *map(str, words)]
        fields = {"command": command, "cwd": project, "env": env, "base": tmp_path / "runs", "lock": False}
        request = of_run(RecordRequest, **fields, **asked)
        return recording.record(request, watcher), watcher.said

    return make


def steps_in(path):
    with gzip.open(path) as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    return [name for name in names if name.startswith("ProfilerStep#")]


def test_a_command_is_recorded_once_it_is_steady_and_ended(trace, tmp_path):
    found, _ = trace(TRAINS, 10**9, settings=[knobs.parse("env.OMP_NUM_THREADS=1")])
    (path,) = found.traces
    assert len(steps_in(path)) == 10
    assert path.parent == found.folder
    assert (found.run.purpose, found.run.ended_by) == ("live", "window")
    (process,) = found.run.processes
    assert process.trace.median_step_s > 0
    assert process.trace.median_before_s > 0
    assert document.read(found.folder / "run.json", Run) == found.run
    assert [readback.ok for readback in found.run.readback] == [True]
    if found.run.sandbox == "overlay":
        assert not (tmp_path / "project" / "made.txt").exists()


@pytest.mark.long
def test_a_command_that_ends_too_early_is_run_once_more(trace):
    found, said = trace(CALLS, 60)
    assert len(steps_in(found.traces[0])) == 10
    first = found.run.processes[0].trace.first_step
    assert said[0].startswith("The command ended after 60 steps, before they were recorded.")
    assert 0 < first < 50


@pytest.mark.long
def test_a_command_without_room_for_a_recording_says_what_to_do(trace):
    with pytest.raises(CannotRunHere, match="ends after 8 steps: too few to record 3") as refused:
        trace(CALLS, 8)
    assert "longer" in refused.value.hint


@pytest.mark.long
def test_a_command_that_is_to_finish_does(trace):
    found, _ = trace(TRAINS, 30000, run_to_end=True, warmup_steps=20, num_steps=2)
    assert len(steps_in(found.traces[0])) == 2
    assert (found.run.ended_by, found.run.exit_code) == ("command", 0)
    assert (found.folder / "stdout").read_text() == "DONE\n"


@pytest.mark.long
def test_every_rank_has_a_trace_of_the_same_steps(trace):
    program = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
"""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    found, _ = trace(program, python=launcher, num_steps=3, timeout_s=120.0)
    assert [path.name for path in found.traces] == ["trace-rank0.json.gz", "trace-rank1.json.gz"]
    first, second = map(steps_in, found.traces)
    assert first == second
    assert len(first) == 3


@pytest.mark.long
def test_a_command_that_profiles_itself_is_refused_with_the_place(trace):
    program = """
import time, torch
net = torch.nn.Linear(8, 8)
with torch.no_grad(), torch.profiler.profile(schedule=lambda step: torch.profiler.ProfilerAction(step % 3)) as own:
    while True:
        net(torch.ones(1, 8))
        own.step()
        time.sleep(0.002)
"""  # noqa: E501
    with pytest.raises(CannotRunHere, match=r"uses torch's profiler itself \(.*program.py:\d+\)") as refused:
        trace(program)
    assert "dynotune trace FILE" in refused.value.hint


@pytest.mark.long
def test_a_command_that_fails_is_an_error_of_its_own(trace):
    with pytest.raises(CommandFailed) as failed:
        trace(CALLS.replace('print("DONE")', "sys.exit(7)"), 50)
    assert failed.value.command_exit_code == 7


@pytest.mark.long
def test_a_command_without_steps_is_refused(trace):
    with pytest.raises(CannotRunHere, match="made no step"):
        trace("import torch\ntorch.ones(3).sum()\n")


@pytest.mark.long
def test_a_command_that_takes_too_long_is_ended(trace):
    # Its steps sleep, to leave the cores to the tests beside it.
    sleeps = CALLS.replace("    net(", "    time.sleep(0.01)\n    net(")
    with pytest.raises(CannotRunHere, match="longer than 10 s"):
        trace(sleeps, 10**9, warmup_steps=10**8, timeout_s=10.0)


@pytest.mark.parametrize("asked", [{"num_steps": 0}, {"warmup_steps": 0}])
def test_numbers_that_are_none_are_refused_before_anything_runs(asked, trace, tmp_path):
    with pytest.raises(UsageError):
        trace(TRAINS, 5, **asked)
    assert not (tmp_path / "runs").exists()


# What is said beside a trace


def process(**fields):
    fields = {"file": "trace-pid1.json.gz", "num_steps": 10, "stopped_by": "steps"} | fields
    trace = RecordedTrace(**fields)
    return Process(pid=1, argv=[], executable="", python="", rank=0, world_size=2, traces=[trace]), trace


@pytest.mark.parametrize(
    ("median_step_s", "said"),
    [(0.0011, []), (0.0015, ["1.50 times", "overstated"]), (0.0007, ["0.70 times", "not alike"])],
)
def test_a_recorded_step_that_takes_much_longer_than_others_is_noted(median_step_s, said):
    made = process(median_step_s=median_step_s, median_before_s=0.001)
    notes = recording._notes_on(*made) + recording._overstated(*made)
    assert len(notes) == bool(said)
    assert all(word in note for note in notes for word in ["Rank 0", *said])


def test_a_recording_cut_short_is_noted():
    assert "Only 3 steps" in recording._notes_on(*process(num_steps=3, stopped_by="memory"))[0]


def test_steps_that_begin_an_epoch_are_noted_where_they_are_long_and_left_out():
    times = [0.5 if index % 20 == 0 else 0.01 for index in range(100)]
    made = steps_of(times, epoch=20)
    assert made.steps[20].flags == EPOCH
    said = recording._epoch_note(made, RecordedTrace(file="t", first_step=85, num_steps=10))
    assert said == ["A step that begins an epoch took 500 ms, others 10 ms; none such was recorded."]
    assert recording._epoch_note(made, RecordedTrace(file="t", first_step=75, num_steps=10)) == []
    even = steps_of([0.01] * 100, epoch=20)
    assert recording._epoch_note(even, RecordedTrace(file="t", first_step=85, num_steps=10)) == []
