"""Where the window begins and how long it is, from pilots that are made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from dynotune.measure.live import cautions
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.pilot import (
    LEAST_WINDOW_S,
    SHORT_WINDOW_S,
    Steadiness,
    UntilStep,
    most_in_a_lane,
    plan,
    plan_window,
)
from dynotune.measure.live.request import CompareRequest
from dynotune.measure.live.warmup import MIN_WINDOW_S
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.setting import Setting

from ...fakes import START_S, of_run, record, run, spec


def request(**changes) -> CompareRequest:
    return of_run(CompareRequest, **{"candidate": []} | changes)


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
    # The queue is emptied as the window begins, and after its end: 29 steps then take the host a millisecond each.
    ahead = [0.931] + [0.001] * 29
    plain = pilot([0.03] * 97 + ahead + [0.03] * 70 + ahead)
    plain.records[0].events["window"] = [{"first_step": 97, "num_steps": 100, "begin_s": 10.0, "end_s": 13.0}]
    window = plan_window(spec(objective="energy", warmup_steps=200), [plain, pilot([0.005] * 300)], num_telling=1)
    assert window.step_s == pytest.approx(0.03)
    assert window.num_steps == 100
    assert window.run_s == pytest.approx(window.start_s + 3.0)


def test_a_timed_window_between_two_slow_begins_of_an_epoch_does_not_hide_them():
    plain = pilot([*[5.6, *[0.6] * 19], *[5.6, *[0.6] * 18]], epoch=20)
    plain.records[0].events["window"] = [{"first_step": 27, "num_steps": 10, "begin_s": 30.0, "end_s": 36.0}]
    assert plan_window(spec(warmup_steps=15), [plain]).step_s > 0.75


def test_the_window_begins_after_the_step_is_found_in_either_arm():
    window = plan_window(spec(), [pilot([0.01] * 100, found_after=4), pilot([0.01] * 100, found_after=20)])
    assert window.warmup_steps > 20


def test_what_the_user_gives_is_taken():
    window = plan_window(spec(warmup_steps=30, window_steps=70), pilots([0.01] * 100))
    assert (window.warmup_steps, window.num_steps) == (30, 70)


def test_a_warm_up_that_ends_before_the_step_is_found_is_lengthened_to_that():
    window = plan_window(spec(warmup_steps=1, window_steps=70), pilots([0.01] * 100, found_after=6))
    assert window.warmup_steps == 7


def test_batches_that_may_lie_ready_are_used_up_before_the_window_begins():
    asked = request(candidate=[Setting("loader.num_workers", 16), Setting("loader.prefetch_factor", 3)])
    window, _ = plan(asked, pilots([0.05] * 300), None)
    assert window.warmup_steps >= 48 and window.num_steps >= 48
    # A command that ends before that has the same head start in both arms.
    short, _ = plan(asked, pilots([0.05] * 50, ended_by="command"), None)
    assert short.warmup_steps < 48
    # Slow batches are not waited for longer than a window lasts.
    slow, _ = plan(asked, pilots([3.0] * 40), None)
    assert slow.warmup_steps < 40


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


def test_what_a_pilot_took_to_compile_does_not_count_whole_for_runs_that_find_it_compiled():
    compiling = [pilot([0.05] * 400), pilot([0.05, 60.0] + [0.05] * 400, compiled=[1])]
    with pytest.raises(UsageError, match="needs 3 pairs"):
        plan(request(caches="cold"), compiling, 350.0)
    window, num_pairs = plan(request(), compiling, 350.0)
    assert num_pairs == 4 and 30.0 < window.start_s < 40.0
    slow = [pilot([0.05] * 400), pilot([0.05, 60.0] + [0.05] * 400)]
    with pytest.raises(UsageError, match="needs 3 pairs"):
        plan(request(), slow, 350.0)


@pytest.mark.parametrize(("changes", "many"), [({}, {"epoch": 38}), ({"window_steps": 70}, {}), ({"max_pairs": 4}, {})])
def test_the_budget_that_a_refusal_names_is_accepted_and_is_the_least(changes, many):
    steps = pilots([0.1 + 0.02 * (number % 7) for number in range(200)], **many)

    def planned(left_s):
        return plan(request(budget_s=left_s + 20.0, **changes), steps, left_s)

    with pytest.raises(UsageError, match="needs 3 pairs") as refused:
        planned(5.0)
    enough_s = float(refused.value.hint.split("--budget ")[1].removesuffix("s.")) - 20.0
    window, num_pairs = planned(enough_s)
    assert num_pairs == 3 and 6 * window.run_s <= enough_s
    with pytest.raises(UsageError):
        planned(enough_s - 1.5)


def test_a_budget_that_is_used_up_is_told_as_nothing_left():
    with pytest.raises(UsageError, match="do not fit into the 0 s left of the budget"):
        plan(request(), [pilot([0.05] * 400)] * 2, -18.0)


def test_a_run_without_a_step_says_once_how_one_is_named(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr("dynotune.measure.live.pilot.time", SimpleNamespace(monotonic=lambda: now[0]))
    until = UntilStep(lambda records: len(records) > 1, told.append)
    for at_s in (1.0, 19.0, 21.0, 200.0):
        now[0] = at_s
        assert not until([])
    assert len(told) == 1 and "--step-function" in told[0]
    now[0] = 0.0
    compiling = UntilStep(lambda records: len(records) > 1, told.append, lambda: True)
    for now[0] in (61.0, 200.0):
        assert not compiling([])
    assert len(told) == 2 and "compiles" in told.pop()
    stepping = UntilStep(lambda records: len(records) > 1, told.append)
    assert not stepping([record([0.1])])
    now[0] = 1000.0
    assert stepping([record([0.1]), record([0.1])]) and len(told) == 1


def test_a_program_that_ends_by_itself_gets_a_window_that_it_completes():
    window = plan_window(spec(), pilots([0.05] * 25, ended_by="command"))
    assert window.warmup_steps + window.num_steps <= 25
    assert window.num_steps >= 8


def test_a_program_of_a_few_steps_is_refused():
    with pytest.raises(CannotRunHere, match="ends after 9 steps") as refused:
        plan_window(spec(), pilots([0.05] * 9, ended_by="command"))
    assert "longer" in refused.value.hint


def test_a_program_with_fewer_steps_than_the_window_asked_for_is_refused_after_its_pilots():
    asked = request(warmup_steps=10, window_steps=1000)
    with pytest.raises(CannotRunHere, match="ends after 100 steps: too few to time 1000 after 10") as refused:
        plan_window(asked.run, pilots([0.05] * 100, ended_by="command"))
    assert "at least 1010 steps" in refused.value.hint


def test_a_window_too_short_to_tell_anything_is_refused():
    with pytest.raises(CannotRunHere, match="too short to tell") as refused:
        plan(request(), pilots([0.0005] * 40, ended_by="command"), None)
    assert "run longer" in refused.value.hint


def test_a_window_too_short_to_tell_anything_is_warned_of_where_the_user_asked_for_it():
    asked = request(warmup_steps=5, window_steps=20)
    window, _ = plan(asked, pilots([0.0005] * 40, ended_by="command"), None)
    assert window.num_steps == 20
    assert any("10 ms long" in text for text in cautions.window_cautions(asked.run, window))


def test_a_short_window_that_still_tells_something_is_measured_with_a_caution():
    window, _ = plan(request(), pilots([0.02] * 20, ended_by="command"), None)
    assert LEAST_WINDOW_S <= window.window_s < SHORT_WINDOW_S
    (caution,) = [text for text in cautions.window_cautions(spec(), window) if "ms long" in text]
    assert "--steps" in caution


def test_fewer_steps_than_a_window_has_at_least_are_no_obstacle_when_asked_for():
    window = plan_window(spec(warmup_steps=1, window_steps=3), pilots([0.1] * 5, found_after=0))
    assert window.step_s == pytest.approx(0.1)


def test_without_a_budget_all_pairs_are_planned():
    assert plan(request(), pilots([0.01] * 300), None)[1] == 12


def test_a_budget_takes_pairs_before_it_takes_the_window_below_a_second():
    window, num_pairs = plan(request(budget_s=50), pilots([0.01] * 300), 50.0)
    assert num_pairs in (4, 6, 8, 10)
    assert window.window_s >= MIN_WINDOW_S
    assert 2 * num_pairs * window.run_s <= 50


def test_a_budget_too_small_for_a_whole_window_shortens_it():
    window, num_pairs = plan(request(budget_s=21), pilots([0.01] * 300), 21.0)
    assert num_pairs == 4
    assert window.window_s < MIN_WINDOW_S


def test_lanes_side_by_side_have_time_for_more_pairs():
    _, num_pairs = plan(request(budget_s=50), pilots([0.01] * 300), 50.0)
    window, more_pairs = plan(request(budget_s=50), pilots([0.01] * 300), 50.0, num_lanes=2)
    assert num_pairs < more_pairs <= 2 * num_pairs
    assert 2 * most_in_a_lane(more_pairs, 2) * window.run_s <= 50


def test_a_budget_of_nothing_is_refused_with_one_that_would_do():
    with pytest.raises(UsageError, match="needs 3 pairs") as refused:
        plan(request(budget_s=30), pilots([0.01] * 300), 5.0)
    assert "--budget" in refused.value.hint


def test_a_pilot_goes_on_until_it_has_been_steady_for_a_while():
    enough = Steadiness(spec())
    assert not enough([])
    assert not enough([record([0.01] * 40)])
    assert enough([record([0.1] * 100)])


def test_a_pilot_whose_window_is_given_goes_on_to_its_end():
    enough = Steadiness(spec(warmup_steps=3, window_steps=20))
    assert not enough([record([0.01] * 22)])
    assert enough([record([0.01] * 23)])


def test_a_pilot_that_never_becomes_steady_ends_all_the_same():
    restless = [2.0 - 0.002 * index for index in range(100)]
    assert Steadiness(spec())([record(restless)])
