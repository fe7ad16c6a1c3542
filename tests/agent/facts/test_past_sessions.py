"""The agent's facts of the program's own sessions of torch's profiler that ended before the plain window."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.launch.records.process_state import failed_parts, state_of_process
from lab.faults.manifest import PROGRAMS

from ..planned_tasks import window_task

PROFILED = """
import os, torch
from torch.profiler import ProfilerActivity, profile, schedule
net = torch.nn.Linear(8, 8)

def steps(num, profiler=None):
    for _ in range(num):
        net(torch.ones(2, 8))
        if profiler is not None:
            profiler.step()

"""
CPU = "activities=[ProfilerActivity.CPU]"
ONE = PROFILED + f"with profile({CPU}):\n    steps(3)\nsteps(40)\n"


@pytest.fixture
def sessions(fork_under_agent, script):
    """`sessions(program)`: the facts `live.profiled_*` at the end of the plain window, without their
    prefix."""

    def run(program, *words, **how):
        path = program if isinstance(program, Path) else script(program)
        ran = fork_under_agent([path, *words], observe=True, tasks=[window_task(15, 12)], **how)
        assert ran.returncode == 0, ran.stderr
        record = max(ran.records, key=lambda record: len(record.steps))
        assert failed_parts(record) == []
        live = state_of_process(record, ran.launched_s).live
        prefix = "live.profiled_"
        return {name.removeprefix(prefix): value for name, value in live.items() if name.startswith(prefix)}

    return run


def test_past_sessions_are_none_when_the_program_never_profiled(sessions):
    assert sessions(PROFILED + "steps(40)\n") == {
        "sessions": 0,
        "place": "",
        "activities": [],
        "teardown": False,
    }


def test_past_sessions_have_place_and_activities_when_a_session_ended_before_the_window(sessions):
    assert sessions(ONE) == {
        "sessions": 1,
        "place": "program.py:12",
        "activities": ["CPU"],
        "teardown": False,
    }


def test_past_sessions_are_counted_each_when_a_schedule_repeats(sessions):
    program = (
        f"with profile({CPU}, schedule=schedule(wait=1, warmup=1, active=1, repeat=3)) as own:\n    "
        "steps(40, own)\n"
    )
    assert sessions(PROFILED + program)["sessions"] == 3


def test_past_sessions_leave_out_a_session_when_it_still_runs_in_the_window(sessions):
    program = f"with profile({CPU}):\n    steps(3)\nwith profile({CPU}):\n    steps(40)\n"
    assert sessions(PROFILED + program) == sessions(ONE) | {"sessions": 1}


def test_past_sessions_leave_out_marks_for_other_profilers_when_kineto_recorded_nothing(sessions):
    marks = "with torch.autograd.profiler.emit_itt():\n    steps(3)\nsteps(40)\n"
    assert sessions(PROFILED + marks)["sessions"] == 0


@pytest.mark.parametrize(("value", "teardown"), [("1", True), ("0", False), ("true", False)])
def test_past_sessions_say_that_cupti_is_taken_down_when_the_environment_asked_for_it(
    value, teardown, sessions
):
    assert sessions(ONE, env={"TEARDOWN_CUPTI": value})["teardown"] is teardown


def test_past_sessions_follow_the_environment_when_the_program_changes_it(sessions):
    program = ONE.replace("steps(3)\n", 'steps(3)\n    os.environ["TEARDOWN_CUPTI"] = "1"\n')
    assert sessions(program)["teardown"] is True


@pytest.mark.parametrize("dose", ["0", "20"])
def test_past_sessions_are_those_of_the_fault_when_its_program_runs_on_the_cpu(dose, sessions):
    found = sessions(PROGRAMS / "profiled_earlier.py", "--dose", dose, "--steps", "40")
    assert found["sessions"] == (dose != "0")
    assert ("profiled_earlier.py:" in found["place"]) == (dose != "0")
