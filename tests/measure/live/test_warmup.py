from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.live import warmup
from dynotune.measure.live.warmup import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS, steady_from, window_length
from dynotune.schema.errors import StatisticsError, UsageError


def steps(num: int, *, mean_s: float = 0.01, cv: float = 0.03, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [mean_s * max(0.1, 1 + cv * draw.gauss(0, 1)) for _ in range(num)]


durations = st.lists(st.floats(1e-6, 10), max_size=120)


# Warm-up


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
        steady_from([*steps(15, mean_s=0.01 * slower, cv=0.01, seed=seed), *steps(85, cv=0.01, seed=seed + 50)])
        for seed in range(50)
    ]
    assert all(start is None or start >= 15 for start in found)
    assert sum(start is not None for start in found) >= 45


def test_a_rhythm_hides_no_slow_start() -> None:
    """Every tenth step takes twice as long: neighbouring batches always differ, and those two apart do not."""
    for seed in range(30):
        made = [
            step_s * (2 if number % 10 == 0 else 1)
            for number, step_s in enumerate([*steps(15, mean_s=0.0125, seed=seed), *steps(85, seed=seed + 50)])
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
        fading = [step_s * (1 + 0.5 * math.exp(-k / 5)) for k, step_s in enumerate(steps(60, cv=0.02, seed=seed))]
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


# The window


def test_the_length_is_that_of_kalibera_and_jones() -> None:
    # Batch means alternate by ±d around the mean: their variance is d² n/(n − 1), five times that a step's.
    mean_s, d, num = 0.05, 0.004, 40
    run = [mean_s + (d if k // 5 % 2 else -d) for k in range(5 * num)]
    within = 5 * d**2 * num / (num - 1)
    expected = math.ceil(math.sqrt(20.0 / mean_s * within / (0.01 * mean_s) ** 2))
    assert window_length([[run], [run]], start_s=20.0) == expected


def test_a_dearer_start_buys_a_longer_window() -> None:
    pilots = [[steps(200, cv=0.3, seed=1)], [steps(200, cv=0.3, seed=2)]]
    assert window_length(pilots, start_s=60.0) > window_length(pilots, start_s=5.0)


def test_runs_that_differ_among_themselves_shorten_the_window() -> None:
    alike = [steps(200, cv=0.3, seed=k) for k in range(4)]
    differing = [steps(200, cv=0.3, mean_s=0.01 * (1 + 0.2 * k), seed=k) for k in range(4)]
    assert window_length([differing], start_s=60.0) < window_length([alike], start_s=60.0)


def test_the_noisier_arm_sets_the_length() -> None:
    quiet, noisy = [steps(200, cv=0.01, seed=1)], [steps(200, cv=0.4, seed=2)]
    both = window_length([quiet, noisy], start_s=60.0)
    assert both == window_length([noisy, quiet], start_s=60.0) >= window_length([quiet], start_s=60.0)


def test_steps_without_any_noise_still_get_a_window_that_dwarfs_the_clock() -> None:
    assert window_length([[[0.001] * 50]], start_s=1.0) == pytest.approx(MIN_WINDOW_S / 0.001, abs=1)
    assert window_length([[[2.0] * 10]], start_s=1.0) == max(MIN_WINDOW_STEPS, 1)


@given(st.floats(1e-4, 100), st.floats(0, 1), st.floats(0, 1000), st.integers(0, 99))
def test_the_window_keeps_its_bounds(mean_s: float, cv: float, start_s: float, seed: int) -> None:
    run = steps(50, mean_s=mean_s, cv=cv, seed=seed)
    length = window_length([[run], [run]], start_s=start_s)
    step_s = math.fsum(run) / len(run)
    assert length >= MIN_WINDOW_STEPS
    assert length * step_s >= MIN_WINDOW_S * (1 - 1e-9)
    assert length * step_s <= MAX_WINDOW_S * (1 + 1e-9) or length == MIN_WINDOW_STEPS


def test_the_budget_shortens_the_window() -> None:
    pilots = [[[0.01] * 50]]
    assert window_length(pilots, start_s=2.0, budget_s=24 * 2.5, num_runs=24) == 50


def test_a_budget_that_affords_no_window_is_refused_with_what_it_takes() -> None:
    with pytest.raises(UsageError, match="leaves no time for a window") as caught:
        window_length([[[0.1] * 50]], start_s=9.0, budget_s=100, num_runs=24)
    assert "--budget 240s" in caught.value.hint


@pytest.mark.parametrize("arms", [[], [[]], [[[0.1] * 9]], [[[0.1] * 20], []]])
def test_a_pilot_that_says_too_little_is_an_error(arms: list[list[list[float]]]) -> None:
    with pytest.raises(StatisticsError):
        window_length(arms, start_s=1.0)


def test_steps_that_took_no_time_are_an_error() -> None:
    with pytest.raises(StatisticsError, match="no time at all"):
        window_length([[[0.0] * 20]], start_s=1.0)


def test_where_to_cut_is_found_in_one_pass_as_by_the_definition() -> None:
    draw = random.Random(4)
    values = [10.0 / (1 + index) + draw.gauss(1, 0.1) for index in range(60)]
    tails = [values[cut:] for cut in range(len(values))]
    defined = [statistics.pvariance(tail) / len(tail) for tail in tails]
    assert warmup._squared_errors_of_mean(values) == pytest.approx(defined, abs=1e-12)
