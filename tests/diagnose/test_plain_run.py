"""Plain runs of real commands, from launch to end."""

from __future__ import annotations

import math
import os
import sys

import pytest

from dynotune import knobs
from dynotune.diagnose.live_diagnosis import LiveDiagnosis
from dynotune.diagnose.window import PlainWindow, exact_window
from dynotune.measure.live import placement, readiness
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, CommandFailed, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Run, RunSpec

TRAINS = """
import sys, time, torch
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(int(sys.argv[1])):
    time.sleep(eval(sys.argv[2]))
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("DONE")
"""
# For tests whose subject is not the step: torch imports its compiler for the first optimizer.
CALLS = """
import sys, time, torch
net = torch.nn.Linear(8, 8)
for number in range(int(sys.argv[1])):
    time.sleep(eval(sys.argv[2]))
    net(torch.randn(4, 8)).sum().backward()
    net.zero_grad()
print("DONE")
"""
# Something is compiled every few steps, so no steps are ever steady, however long they take on this machine.
COMPILES = """
import torch
net = torch.nn.Linear(8, 8)
number = 0
@torch.compile(backend="eager")
def scaled(x):
    return 2 * x
while True:
    if number % 4 == 3:
        torch.compiler.reset()
        scaled(torch.ones(1))
    net(torch.randn(4, 8)).sum().backward()
    net.zero_grad()
    number += 1
"""
RANKS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1), find_unused_parameters=True)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    net(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.002)
"""


class Watcher:
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    warn = say

    def running(self, what, *, left_s=None):
        pass


REPLACES_ITSELF = """
import os, sys, torch
if "again" not in sys.argv:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
net = torch.nn.Linear(8, 8)
while True:
    for batch in torch.utils.data.DataLoader(torch.ones(4000, 8), batch_size=4):
        net(batch).sum().backward()
        net.zero_grad()
"""


@pytest.fixture
def watch(tmp_path):
    """`watch(program, *words, **asked)` gives the plain run and what was said meanwhile."""
    project = tmp_path / "project"
    project.mkdir()

    def make(program, *words, python=(sys.executable,), **asked):
        (project / "program.py").write_text(program)
        watcher = Watcher()
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [*python, "program.py", *map(str, words)]
        run = RunSpec(command=command, cwd=project, env=env, base=tmp_path / "runs", lock=False, **asked)
        with LiveDiagnosis(run, watcher) as live:
            live.runner.start(exact_window(run))
            found = PlainWindow(run, live.runner).seen()
            live.end()
        return found, watcher.said

    return make


def test_a_command_is_timed_once_it_is_steady_and_ended(watch, monkeypatch):
    # How long torch takes to start is the machine's affair, and what is said of it.
    monkeypatch.setattr(readiness, "NO_STEP_S", math.inf)
    # A hundred such steps take a second at least, however much slower those before them were.
    found, said = watch(TRAINS, 10**9, 0.01, settings=[knobs.parse("env.OMP_NUM_THREADS=1")])
    (process,) = found.processes
    timing = process.timing
    assert timing.num_steps >= 100
    assert timing.window_s >= 1.0
    assert timing.step_s >= 0.01
    assert timing.steady
    assert process.step == "call Linear, step SGD"
    assert process.models[0].call.place.function == "program.py(7): <module>"
    run = document.read(found.folder / "run.json", Run)
    assert (run.purpose, run.ended_by) == ("live", "window")
    assert run.processes[0].windows == found.run.processes[0].windows
    assert found.samples
    assert found.end_s - found.begin_s == pytest.approx(timing.window_s)
    assert said == []


@pytest.mark.long
def test_a_command_that_ends_early_is_run_once_more_and_timed_within(watch):
    found, said = watch(CALLS, 40, 0.001)
    assert "ended after 40 steps" in said[0]
    timing = found.processes[0].timing
    assert 3 <= timing.num_steps <= 35
    assert timing.num_steps == found.run.processes[0].window.num_steps


@pytest.mark.long
def test_the_window_that_is_asked_for_is_timed(watch):
    found, _ = watch(CALLS, 10**9, 0.001, warmup_steps=20, window_steps=15)
    window = found.run.processes[0].window
    assert (window.first_step, window.num_steps) == (20, 15)


@pytest.mark.long
def test_of_a_program_that_replaces_itself_the_batches_are_timed_too(watch):
    found, _ = watch(REPLACES_ITSELF)
    (loader,) = found.processes[0].loaders
    assert not isinstance(loader.loading, Unknown), loader.loading.reason
    assert loader.loading.num_batches > 10


@pytest.mark.long
def test_a_command_of_too_few_steps_is_refused(watch):
    with pytest.raises(CannotRunHere, match=r"ends after 5 steps: too few"):
        watch(CALLS, 5, 0.001)


@pytest.mark.long
def test_a_command_that_fails_says_so(watch):
    with pytest.raises(CommandFailed) as caught:
        watch(CALLS, 10**9, "1 // (20 - number) / 100")
    assert "ZeroDivisionError" in caught.value.last_lines[-1]


def test_numbers_that_are_none_are_refused(watch):
    with pytest.raises(UsageError, match="--steps 0"):
        watch(CALLS, 1, 0, window_steps=0)


@pytest.mark.long
def test_plain_run_times_and_describes_steps_that_never_become_steady(watch, monkeypatch):
    monkeypatch.setattr(placement, "RESTLESS_S", 3.0)
    found, _ = watch(COMPILES)
    assert not found.processes[0].timing.steady
    (note,) = [note for note in found.notes if "had not become steady" in note]
    assert "something was compiled" in note


@pytest.mark.long
def test_all_ranks_time_the_same_steps(watch):
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    found, _ = watch(RANKS, python=launcher)
    assert [process.rank for process in found.processes] == [0, 1]
    assert {process.world_size for process in found.processes} == {2}
    windows = [process.window for process in found.run.processes if process.window]
    assert len({(window.first_step, window.num_steps) for window in windows}) == 1
    for process in found.processes:
        assert process.models[0].wrapper == "DistributedDataParallel"
        assert process.models[0].ddp["find_unused_parameters"] is True
        assert process.models[0].ddp["unused_parameters"] == 0
        assert process.live["live.distributed_backend"] == "gloo"
        assert isinstance(process.live["live.device_name"], Unknown)
