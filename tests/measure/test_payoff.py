"""When a setting that starts later is ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.comparison import summary
from dynotune.measure.comparison.summary import pays_off
from dynotune.schema.errors import StatisticsError

from ..fakes import process, run, window

times = st.floats(0.01, 100.0)


def made(start_s, step_s, *, warmup_steps=20, launched_s=1000.0) -> summary.MeasuredRun:
    """A run at an even pace after a start that took `start_s`."""
    begin_s = launched_s + start_s + warmup_steps * step_s
    timed = window(wall_s=100 * step_s, num_steps=100, first_step=warmup_steps, begin_s=begin_s)
    return summary.measured(run(process(timed), launched_s=launched_s))


def test_a_compiled_program_is_ahead_when_what_it_saves_a_step_has_paid_for_its_start():
    found = pays_off([made(60.0, 0.08)], [made(10.0, 0.1)])
    assert (found.start_s, found.baseline_start_s) == (pytest.approx(60.0), pytest.approx(10.0))
    assert found.after_steps in (2500, 2501)  # 50 s at 20 ms a step, to a rounding error


def test_what_starts_earlier_and_is_faster_is_ahead_at_once_and_what_is_no_faster_never():
    assert pays_off([made(5.0, 0.08)], [made(10.0, 0.1)]).after_steps == 0
    assert pays_off([made(20.0, 0.1)], [made(10.0, 0.1)]).after_steps is None
    assert pays_off([made(20.0, 0.2)], [made(10.0, 0.1)]).after_steps is None


@given(times, times, times, times)
def test_it_is_ahead_after_so_many_steps_and_not_long_before(start_s, step_s, other_start_s, other_step_s):
    found = pays_off([made(start_s, step_s)], [made(other_start_s, other_step_s)])
    if found.after_steps is None:
        assert step_s >= other_step_s * (1 - 1e-6)
        return

    def ahead_s(num_steps):
        return other_start_s + num_steps * other_step_s - start_s - num_steps * step_s

    rounding_s = 1e-6 * (1 + found.after_steps) * (other_step_s + 1)
    assert ahead_s(found.after_steps) > -rounding_s
    if found.after_steps >= 2:
        assert ahead_s(found.after_steps - 2) < rounding_s


def test_the_middle_run_of_each_arm_counts():
    recipe = [made(60.0, 0.08), made(61.0, 0.08), made(500.0, 0.08)]
    assert pays_off(recipe, [made(10.0, 0.1)]).start_s == pytest.approx(61.0)


def test_runs_that_do_not_say_when_they_were_launched_say_nothing():
    old = summary.measured(run(process(window())))
    with pytest.raises(StatisticsError, match="recipe"):
        pays_off([old], [made(1.0, 0.1)])
    with pytest.raises(StatisticsError, match="baseline"):
        pays_off([made(1.0, 0.1)], [summary.without_window(run(process(None)))])
