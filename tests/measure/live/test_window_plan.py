"""Where the window begins and how long it is, from pilots that are made up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.window_length import MIN_WINDOW_S
from dynotune.measure.live.window_plan import plan_window
from dynotune.schema.errors import CannotRunHere

from ...fakes import START_S, record, run, spec, take

WINDOW = {"event": "window", "num_samples": None, "wait_s": None}


def pilot(step_s, *, ended_by="window", **more) -> Outcome:
    made = run(purpose="pilot", ended_by=ended_by)
    return Outcome(run=made, folder=Path("/"), launched_s=0.0, records=[record(step_s, **more)])


def pilots(step_s, **more) -> list[Outcome]:
    return [pilot(step_s, **more), pilot(step_s, **more)]


def test_the_window_begins_after_the_slow_steps_and_lasts_a_second_at_least():
    window = plan_window(spec(), pilots([0.5] * 10 + [0.01] * 300))
    assert window.warmup_steps == 10
    assert window.window_s >= MIN_WINDOW_S
    assert window.steady


def test_the_window_of_both_arms_suits_the_slower_one():
    window = plan_window(spec(), [pilot([0.01] * 100), pilot([0.04] * 100)])
    assert window.step_s == pytest.approx(0.04)
    assert window.start_s == pytest.approx(START_S + 0.04 * window.warmup_steps)


def test_steps_with_which_the_host_runs_ahead_after_a_timed_window_say_nothing_of_how_long_one_takes():
    # The queue is emptied as the window begins, and after its end: 29 steps then take the host a millisecond
    # each.
    ahead = [0.931] + [0.001] * 29
    plain = pilot([0.03] * 97 + ahead + [0.03] * 70 + ahead)
    take(plain.records[0], {**WINDOW, "first_step": 97, "num_steps": 100, "begin_s": 10.0, "end_s": 13.0})
    window = plan_window(
        spec(objective="energy", warmup_steps=200), [plain, pilot([0.005] * 300)], num_telling=1
    )
    assert window.step_s == pytest.approx(0.03)
    assert window.num_steps == 100
    assert window.run_s == pytest.approx(window.start_s + 3.0)


def test_a_timed_window_between_two_slow_begins_of_an_epoch_does_not_hide_them():
    plain = pilot([*[5.6, *[0.6] * 19], *[5.6, *[0.6] * 18]], epoch=20)
    take(plain.records[0], {**WINDOW, "first_step": 27, "num_steps": 10, "begin_s": 30.0, "end_s": 36.0})
    assert plan_window(spec(warmup_steps=15), [plain]).step_s > 0.75


def test_the_window_begins_after_the_step_is_found_in_either_arm():
    window = plan_window(spec(), [pilot([0.01] * 100, found_after=4), pilot([0.01] * 100, found_after=20)])
    assert window.warmup_steps > 20


def test_window_plan_takes_the_users_numbers():
    window = plan_window(spec(warmup_steps=30, window_steps=70), pilots([0.01] * 100))
    assert (window.warmup_steps, window.num_steps) == (30, 70)


def test_a_warm_up_that_ends_before_the_step_is_found_is_lengthened_to_that():
    window = plan_window(spec(warmup_steps=1, window_steps=70), pilots([0.01] * 100, found_after=6))
    assert window.warmup_steps == 7


def test_a_pilot_that_never_becomes_steady_is_told():
    falling = [1.0 - 0.003 * index for index in range(300)]
    assert not plan_window(spec(), pilots(falling)).steady


def test_a_window_holds_whole_epochs():
    window = plan_window(spec(), pilots([0.01] * 300, epoch=40))
    assert window.num_steps == 40 * window.whole_epochs
    assert window.whole_epochs >= 2


def test_epochs_of_several_lengths_are_not_known():
    both = [pilot([0.01] * 300, epoch=40), pilot([0.01] * 300, epoch=41)]
    assert plan_window(spec(), both).whole_epochs == 0


def test_an_epoch_longer_than_any_window_is_not_waited_for():
    window = plan_window(spec(), pilots([1.0] * 300, epoch=100))
    assert window.whole_epochs == 0
    assert window.num_steps < 100


def test_an_epoch_that_a_budget_does_not_afford_is_not_waited_for():
    window = plan_window(spec(), pilots([0.1] * 300, epoch=100), num_runs=8, budget_s=200)
    assert window.whole_epochs == 0
    assert 8 * window.run_s <= 200


def test_a_window_may_be_asked_to_be_as_long_as_the_start_as_far_as_time_and_steps_go():
    def window_s(budget_s=None, **more):
        both = pilots([0.05] * 400, **more)
        late = [msgspec.structs.replace(one, launched_s=-10.0) for one in both]
        found = plan_window(spec(), late, num_runs=8, budget_s=budget_s, of_start=1.0)
        return found.window_s, found.start_s

    whole_s, start_s = window_s()
    assert whole_s == pytest.approx(start_s, abs=0.05)
    assert window_s(budget_s=8 * (start_s + 5.0))[0] == pytest.approx(5.0, abs=0.06)
    assert window_s(ended_by="command")[0] <= 400 * 0.05


def test_a_program_that_ends_by_itself_gets_a_window_that_it_completes():
    window = plan_window(spec(), pilots([0.05] * 25, ended_by="command"))
    assert window.warmup_steps + window.num_steps <= 25
    assert window.num_steps >= 8


def test_a_program_of_a_few_steps_is_refused():
    with pytest.raises(CannotRunHere, match="ends after 9 steps") as refused:
        plan_window(spec(), pilots([0.05] * 9, ended_by="command"))
    assert "longer" in refused.value.hint


def test_a_program_with_fewer_steps_than_the_window_asked_for_is_refused_after_its_pilots():
    with pytest.raises(CannotRunHere, match="ends after 100 steps: too few to time 1000 after 10") as refused:
        plan_window(spec(warmup_steps=10, window_steps=1000), pilots([0.05] * 100, ended_by="command"))
    assert "at least 1010 steps" in refused.value.hint


def test_fewer_steps_than_a_window_has_at_least_are_no_obstacle_when_asked_for():
    window = plan_window(spec(warmup_steps=1, window_steps=3), pilots([0.1] * 5, found_after=0))
    assert window.step_s == pytest.approx(0.1)
