"""A line of output that ends a start, of real processes."""

from __future__ import annotations

import sys

import pytest

from dynotune.measure.live import ready_line
from dynotune.measure.live.launch_plan import LaunchPlan
from dynotune.measure.live.live_run import run_once
from dynotune.schema.errors import UsageError
from dynotune.schema.run import Plan

# Waits for the line to have been seen, or for ever.
SERVES = "import sys, signal; print('no'); print('ready on 80', file=sys.{}, flush=True); signal.pause()"


def run(tmp_path, command, wanted="ready on [0-9]+", limit_s=60.0):
    plan = LaunchPlan(
        id="s/1",
        label="a start",
        purpose="measured",
        command=command,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        settings=[],
        plan=Plan(),
        sandbox=False,
        ready_pattern=wanted,
    )
    folder = tmp_path / "run"
    folder.mkdir()
    return run_once(plan, folder=folder, limit_s=limit_s, enough=lambda records: False)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_start_ends_with_the_line_and_so_does_the_command(tmp_path, stream):
    outcome = run(tmp_path, [sys.executable, "-c", SERVES.format(stream)])
    assert (outcome.run.ended_by, outcome.ready_at_exit) == ("window", False)
    assert 0 < outcome.run.ready_s < outcome.run.wall_s
    # It is judged whether it was disturbed up to then.
    assert outcome.outside is not None


def test_a_line_that_was_held_back_to_the_end_is_found_and_told_as_such(tmp_path):
    outcome = run(tmp_path, [sys.executable, "-c", "print('x' * 9); print('ready on 80', end='')"])
    assert outcome.ready_at_exit
    assert outcome.run.exit_code == 0
    assert outcome.run.ready_s is not None


def test_a_command_that_ends_without_the_line_was_never_ready(tmp_path):
    outcome = run(tmp_path, ["sh", "-c", "echo ready on no port; exit 3"])
    assert (outcome.run.ready_s, outcome.run.exit_code, outcome.run.ended_by) == (None, 3, "command")


def test_a_command_that_is_never_ready_is_ended_when_its_time_is_up(tmp_path):
    outcome = run(tmp_path, ["sleep", "1000"], limit_s=0.3)
    assert (outcome.run.ready_s, outcome.run.ended_by) == (None, "timeout")


def test_only_a_line_of_the_program_can_be_waited_for():
    with pytest.raises(UsageError, match="no regular expression"):
        ready_line.pattern("(")
    with pytest.raises(UsageError, match="matches an empty line"):
        ready_line.pattern("x*")


@pytest.mark.parametrize("text", ["(a+)+$", r"(\w+\s?)+x", "(.*)+x", "(?:x+y)+?z", "([a-z]{2,})*!"])
def test_a_pattern_is_refused_when_one_line_may_take_it_hours(text):
    with pytest.raises(UsageError, match="repeats what repeats"):
        ready_line.pattern(text)


@pytest.mark.parametrize("text", [r"ready.*port \d+", r"(?:\d{1,3}\.){3}\d+", "(a|b)+c", r"loss=[0-9.]+ .*"])
def test_a_pattern_is_taken_when_its_repeats_stand_beside_each_other(text):
    assert ready_line.pattern(text).pattern == text
