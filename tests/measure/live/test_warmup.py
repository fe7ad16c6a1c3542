"""Where steps become steady, of steps that are made up."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.live import warmup
from dynotune.measure.live.warmup import steady_from
from dynotune.schema.errors import StatisticsError


def steps(num: int, *, mean_s: float = 0.01, cv: float = 0.03, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [mean_s * max(0.1, 1 + cv * draw.gauss(0, 1)) for _ in range(num)]


durations = st.lists(st.floats(1e-6, 10), max_size=120)


def test_slow_first_steps_are_cut_off() -> None:
    assert steady_from([1.0] * 10 + steps(90, seed=1)) in range(10, 25)


def test_steps_that_never_change_are_steady_from_the_first() -> None:
    assert steady_from([0.01] * 60) == 0


def test_too_few_steps_decide_nothing() -> None:
    assert steady_from([]) is None
    assert steady_from([0.01] * 29) is None
    assert steady_from([0.01] * 30) == 0


def test_steps_that_are_alike_from_the_first_are_seldom_cut_or_undecided() -> None:
    found = [steady_from(steps(45, seed=seed)) for seed in range(200)]
    assert sum(start is None for start in found) <= 35
    assert sum(start is not None and start <= 5 for start in found) >= 130


@pytest.mark.parametrize("slower", [1.1, 1.3, 3.0])
def test_of_first_steps_that_are_slower_than_the_rest_differ_none_is_taken_in(slower: float) -> None:
    found = [
        steady_from(
            [*steps(15, mean_s=0.01 * slower, cv=0.01, seed=seed), *steps(85, cv=0.01, seed=seed + 50)]
        )
        for seed in range(50)
    ]
    assert all(start is None or start >= 15 for start in found)
    assert sum(start is not None for start in found) >= 45


def test_a_rhythm_hides_no_slow_start() -> None:
    """Every tenth step takes twice as long: neighbouring batches always differ, and those two apart do
    not."""
    for seed in range(30):
        made = [
            step_s * (2 if number % 10 == 0 else 1)
            for number, step_s in enumerate(
                [*steps(15, mean_s=0.0125, seed=seed), *steps(85, seed=seed + 50)]
            )
        ]
        start = steady_from(made)
        assert start is None or start >= 10


def test_many_steps_that_are_a_little_slower_are_seldom_taken_in() -> None:
    found = [
        steady_from([*steps(25, mean_s=0.0105, cv=0.05, seed=seed), *steps(50, cv=0.05, seed=seed + 300)])
        for seed in range(200)
    ]
    told = [start for start in found if start is not None]
    assert sum(start <= 10 for start in told) <= 0.25 * len(told)


def test_a_slow_start_that_fades_is_left_out_as_far_as_it_shows() -> None:
    for seed in range(50):
        fading = [
            step_s * (1 + 0.5 * math.exp(-k / 5)) for k, step_s in enumerate(steps(60, cv=0.02, seed=seed))
        ]
        start = steady_from(fading)
        assert start is None or start >= 10


@pytest.mark.parametrize("slope", [-0.005, 0.005])
def test_steps_that_still_become_faster_or_slower_are_not_steady_however_many(slope: float) -> None:
    assert [num for num in range(150) if steady_from([1 + slope * k for k in range(num)]) is not None] == []


def test_a_change_in_the_second_half_is_not_steady() -> None:
    assert steady_from([0.02] * 60 + steps(40)) is None


def test_nothing_up_to_the_last_event_is_steady() -> None:
    assert steady_from([0.01] * 100, events=[3, 50]) == 51
    assert steady_from([0.01] * 100, events=[50, 3]) == 51


def test_an_event_near_the_end_leaves_it_undecided() -> None:
    assert steady_from([0.01] * 100, events=[90]) is None


def test_one_stall_in_steady_steps_does_not_hide_the_rest() -> None:
    found = [steady_from([*steps(20, seed=k), 0.1, *steps(99, seed=k + 100)]) for k in range(20)]
    assert all(start is None or start <= 60 for start in found)
    assert sum(start is not None for start in found) >= 15


@given(durations, st.lists(st.integers(0, 119), max_size=3))
def test_the_steady_part_begins_after_all_events_and_leaves_half_of_what_follows(
    step_s: list[float], events: list[int]
) -> None:
    start = steady_from(step_s, events=events)
    if start is not None:
        first = max(events, default=-1) + 1
        assert start >= first
        assert len(step_s) - start >= (len(step_s) - first) / 2


@given(durations, st.sampled_from([2.0**-10, 0.5, 4.0, 2.0**10]))
def test_the_unit_of_time_does_not_matter(step_s: list[float], scale: float) -> None:
    assert steady_from(step_s) == steady_from([scale * value for value in step_s])


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1])
def test_a_step_that_is_no_duration_is_an_error(value: float) -> None:
    with pytest.raises(StatisticsError, match="Step 1 took"):
        steady_from([0.1, value])


def test_warmup_cut_is_found_in_one_pass_as_by_the_definition() -> None:
    draw = random.Random(4)
    values = [10.0 / (1 + index) + draw.gauss(1, 0.1) for index in range(60)]
    tails = [values[cut:] for cut in range(len(values))]
    defined = [statistics.pvariance(tail) / len(tail) for tail in tails]
    assert warmup._squared_errors_of_mean(values) == pytest.approx(defined, abs=1e-12)
