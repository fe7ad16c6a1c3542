"""Length of a window, from steps that are made up."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.live.window_length import MAX_WINDOW_S, MIN_WINDOW_S, MIN_WINDOW_STEPS, window_length
from dynotune.schema.errors import StatisticsError, UsageError


def steps(num: int, *, mean_s: float = 0.01, cv: float = 0.03, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [mean_s * max(0.1, 1 + cv * draw.gauss(0, 1)) for _ in range(num)]


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
