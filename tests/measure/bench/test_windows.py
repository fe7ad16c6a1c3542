"""How many pairs with which window fit into a budget, from pilots that are made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.measure.bench.windows import for_pairs
from dynotune.measure.live import cautions
from dynotune.measure.live.lane_order import most_in_a_lane
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.request import CompareRequest
from dynotune.measure.live.window_length import MIN_WINDOW_S
from dynotune.measure.live.window_plan import LEAST_WINDOW_S, SHORT_WINDOW_S
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.setting import Setting

from ...fakes import of_run, record, run, spec


def request(**changes) -> CompareRequest:
    return of_run(CompareRequest, **{"candidate": []} | changes)


def pilot(step_s, *, ended_by="window", **more) -> Outcome:
    made = run(purpose="pilot", ended_by=ended_by)
    return Outcome(run=made, folder=Path("/"), launched_s=0.0, records=[record(step_s, **more)])


def pilots(step_s, **more) -> list[Outcome]:
    return [pilot(step_s, **more), pilot(step_s, **more)]


def test_batches_that_may_lie_ready_are_used_up_before_the_window_begins():
    asked = request(candidate=[Setting("loader.num_workers", 16), Setting("loader.prefetch_factor", 3)])
    window, _ = for_pairs(asked, pilots([0.05] * 300), None)
    assert window.warmup_steps >= 48 and window.num_steps >= 48
    # A command that ends before that has the same head start in both arms.
    short, _ = for_pairs(asked, pilots([0.05] * 50, ended_by="command"), None)
    assert short.warmup_steps < 48
    # Slow batches are not waited for longer than a window lasts.
    slow, _ = for_pairs(asked, pilots([3.0] * 40), None)
    assert slow.warmup_steps < 40


def test_windows_count_a_pilots_compilation_in_part_when_later_runs_find_it_compiled():
    compiling = [pilot([0.05] * 400), pilot([0.05, 60.0] + [0.05] * 400, compiled=[1])]
    with pytest.raises(UsageError, match="needs 3 pairs"):
        for_pairs(request(caches="cold"), compiling, 350.0)
    window, num_pairs = for_pairs(request(), compiling, 350.0)
    assert num_pairs == 4 and 30.0 < window.start_s < 40.0
    slow = [pilot([0.05] * 400), pilot([0.05, 60.0] + [0.05] * 400)]
    with pytest.raises(UsageError, match="needs 3 pairs"):
        for_pairs(request(), slow, 350.0)


@pytest.mark.parametrize(
    ("changes", "many"), [({}, {"epoch": 38}), ({"window_steps": 70}, {}), ({"max_pairs": 4}, {})]
)
def test_the_budget_that_a_refusal_names_is_accepted_and_is_the_least(changes, many):
    steps = pilots([0.1 + 0.02 * (number % 7) for number in range(200)], **many)

    def planned(left_s):
        return for_pairs(request(budget_s=left_s + 20.0, **changes), steps, left_s)

    with pytest.raises(UsageError, match="needs 3 pairs") as refused:
        planned(5.0)
    enough_s = float(refused.value.hint.split("--budget ")[1].removesuffix("s.")) - 20.0
    window, num_pairs = planned(enough_s)
    assert num_pairs == 3 and 6 * window.run_s <= enough_s
    with pytest.raises(UsageError):
        planned(enough_s - 1.5)


def test_a_budget_that_is_used_up_is_told_as_nothing_left():
    with pytest.raises(UsageError, match="do not fit into the 0 s left of the budget"):
        for_pairs(request(), [pilot([0.05] * 400)] * 2, -18.0)


def test_a_window_too_short_to_tell_anything_is_refused():
    with pytest.raises(CannotRunHere, match="too short to tell") as refused:
        for_pairs(request(), pilots([0.0005] * 40, ended_by="command"), None)
    assert "run longer" in refused.value.hint


def test_a_window_too_short_to_tell_anything_is_warned_of_where_the_user_asked_for_it():
    asked = request(warmup_steps=5, window_steps=20)
    window, _ = for_pairs(asked, pilots([0.0005] * 40, ended_by="command"), None)
    assert window.num_steps == 20
    assert any("10 ms long" in text for text in cautions.window_cautions(asked.run, window))


def test_a_short_window_that_still_tells_something_is_measured_with_a_caution():
    window, _ = for_pairs(request(), pilots([0.02] * 20, ended_by="command"), None)
    assert LEAST_WINDOW_S <= window.window_s < SHORT_WINDOW_S
    (caution,) = [text for text in cautions.window_cautions(spec(), window) if "ms long" in text]
    assert "--steps" in caution


def test_without_a_budget_all_pairs_are_planned():
    assert for_pairs(request(), pilots([0.01] * 300), None)[1] == 12


def test_a_budget_takes_pairs_before_it_takes_the_window_below_a_second():
    window, num_pairs = for_pairs(request(budget_s=50), pilots([0.01] * 300), 50.0)
    assert num_pairs in (4, 6, 8, 10)
    assert window.window_s >= MIN_WINDOW_S
    assert 2 * num_pairs * window.run_s <= 50


def test_a_budget_too_small_for_a_whole_window_shortens_it():
    window, num_pairs = for_pairs(request(budget_s=21), pilots([0.01] * 300), 21.0)
    assert num_pairs == 4
    assert window.window_s < MIN_WINDOW_S


def test_lanes_side_by_side_have_time_for_more_pairs():
    _, num_pairs = for_pairs(request(budget_s=50), pilots([0.01] * 300), 50.0)
    window, more_pairs = for_pairs(request(budget_s=50), pilots([0.01] * 300), 50.0, num_lanes=2)
    assert num_pairs < more_pairs <= 2 * num_pairs
    assert 2 * most_in_a_lane(more_pairs, 2) * window.run_s <= 50


def test_a_budget_of_nothing_is_refused_with_one_that_would_do():
    with pytest.raises(UsageError, match="needs 3 pairs") as refused:
        for_pairs(request(budget_s=30), pilots([0.01] * 300), 5.0)
    assert "--budget" in refused.value.hint
