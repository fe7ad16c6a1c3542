"""Where the plain run's window begins and how long it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.window import restlessness, window_from_now, window_steps, window_within
from dynotune.launch.records.record import COMPILED, Step
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import RunSpec
from dynotune.schema.task import TimeWindow

from ..fakes import record


def request(**fields) -> RunSpec:
    return RunSpec(command=["train"], cwd=Path("/"), base=Path("/runs"), **fields)


@pytest.mark.parametrize(
    ("step_s", "num_steps"), [(0.001, 2000), (0.04, 100), (0.1, 30), (0.5, 20), (2.5, 4), (60.0, 3)]
)
def test_a_window_is_as_long_as_it_must_be_and_no_longer_than_one_can_wait(step_s, num_steps):
    assert window_steps(record([step_s] * 60)) == pytest.approx(num_steps, abs=1)


def test_a_slow_start_makes_no_short_window():
    started = record([6.0, *[0.02] * 80])
    assert window_steps(started) == pytest.approx(100, abs=1)
    # Where it cannot be told from the rest, all that was made counts.
    assert window_steps(record([6.0, *[0.02] * 10])) < 30


@given(st.integers(0, 79), st.floats(0.0, 20.0))
def test_a_step_that_was_held_up_once_makes_no_short_window(at, held_up_s):
    made = [0.01] * 120
    made[40 + at] += held_up_s
    assert window_steps(record(made)) == pytest.approx(200, abs=1)


def test_window_length_counts_work_that_comes_every_few_steps():
    assert window_steps(record([0.01, 0.01, 0.01, 0.17] * 40)) == pytest.approx(100, abs=1)


@pytest.mark.parametrize(
    ("made", "num_steps"),
    [
        ([0.2] * 10 + [12.0] + [0.2] * 5, 11),  # seen once: as far from the start
        (([0.2] * 9 + [6.0]) * 3, 11),
        ([20.0] + [0.2] * 20, 30),  # the first step is long for its own reasons
        ([0.2] * 10 + [40.0] + [0.2] * 5, 3),  # too long to wait for
    ],
)
def test_window_holds_a_rare_step_when_such_steps_take_most_of_the_time(made, num_steps):
    found = window_steps(record(made))
    assert found >= num_steps
    usual_s, longest_s = 0.2, max(made[3:])
    assert found <= 3 or longest_s == usual_s or found * usual_s + longest_s <= 30.0


@given(st.floats(1e-4, 5.0), st.integers(2, 300), st.integers(1, 4))
def test_short_epochs_are_whole_and_the_time_is_kept(step_s, epoch, num_epochs):
    num = window_steps(record([step_s] * (epoch * num_epochs + 2), epoch=epoch))
    assert num >= 3
    assert num * step_s <= 10.0 + 1e-6 or num <= 4
    if num_epochs > 1 and epoch * step_s <= 9.9:
        assert num % epoch == 0
    if num % epoch and step_s <= 0.3:
        assert num >= 30


def test_a_window_in_a_long_epoch_holds_none_of_its_begins():
    made = record([0.1] * 425, epoch=200)
    begin = window_from_now([made], request())
    assert begin.num_steps == 30
    made = record([0.1] * 392, epoch=190)
    begin = window_from_now([made], request())
    assert begin.at_step % 190 + begin.num_steps <= 190
    assert begin.at_step % 190 != 0


def test_all_ranks_can_hear_of_it_in_time():
    ranks = [record([0.125] * 60, rank=0), record([0.125] * 64, rank=1)]
    assert window_from_now(ranks, request(window_steps=7)) == TimeWindow(at_step=68, num_steps=7)


@given(
    st.integers(1, 200), st.one_of(st.none(), st.integers(1, 300)), st.one_of(st.none(), st.integers(1, 50))
)
def test_a_window_within_a_short_program_ends_before_it(num, warmup_steps, num_steps):
    made = record([0.1] * num)
    try:
        begin = window_within(made, request(warmup_steps=warmup_steps, window_steps=num_steps))
    except CannotRunHere as error:
        assert "too few" in error.message
        enough = record([0.1] * int(re.search(r"at least (\d+) steps", error.hint)[1]))
        window_within(enough, request(warmup_steps=warmup_steps, window_steps=num_steps))
        return
    assert begin.at_step >= 5
    assert begin.at_step + begin.num_steps <= num - 1
    assert begin.num_steps == (num_steps or begin.num_steps) >= min(3, num_steps or 3)


def test_restlessness_describes_steps_that_never_became_steady():
    made = record([0.1, 0.3] * 40)
    made.steps[70] = Step(made.steps[70].end_s, 0.0, 8, COMPILED)
    said = restlessness(made, 80)
    assert "100 ms to 300 ms" in said
    assert "in 1 something was compiled" in said
