"""Which value is run next, and what runs prove, on machines whose largest value is known."""

import random

import pytest

from dynotune.schema.largest import Limit, Measured, ValueRun
from dynotune.search.largest import proved, search

LIMITS = [Limit("memory", 1.0)]
MOST = 1024


def run(value: int, size: float, half: float = 0.0, **fields) -> ValueRun:
    measured = Measured(quantity="memory", value=size, low=size - half, high=size + half)
    return ValueRun(value=value, run="", measured=[measured], **fields)


def searched(
    true: int,
    *,
    noise: float = 0.0,
    shown: float | None = None,
    predicted: int | None = None,
    seed: int = 0,
    most: int = MOST,
):
    """Search on a machine that holds up to `true`; return the answer and the values that were run.

    `noise`: relative spread of runs. `shown`: that which the interval of a run shows; None if it shows all.
    """
    rng, runs = random.Random(seed), []
    while True:
        expected = predicted if len({one.value for one in runs}) > 1 else None
        found = search(runs, LIMITS, least=1, most=most, predicted=expected)
        if found.next_value is None:
            return found, [one.value for one in runs]
        size = found.next_value / (true + 0.5) * rng.gauss(1, noise)
        runs.append(run(found.next_value, size, 1.5 * (noise if shown is None else shown) * size))
        assert len(runs) < 100


@pytest.mark.parametrize("true", [1, 2, 3, 7, 14, 57, 200, 1023])
@pytest.mark.parametrize("error", [None, 0.5, 0.9, 1.0, 1.1, 3.0])
def test_search_proves_the_largest_value_and_refutes_the_next_when_runs_agree(true, error):
    predicted = None if error is None else max(1, round(true * error))
    found, values = searched(true, predicted=predicted)
    assert (found.end, found.largest, found.refuted, found.undecided) == ("proved", true, true + 1, ())
    assert values.count(true) >= 2
    assert values.count(true + 1) >= 2


def test_search_takes_few_runs_when_the_prediction_is_right():
    assert len(searched(57, predicted=57)[1]) <= 9 < len(searched(57)[1])


def test_search_doubles_when_predictions_are_too_low_again_and_again():
    """As where other programs use the cores: each value that holds moves the prediction by a little."""
    runs = []
    while (value := search(runs, LIMITS, least=1, most=MOST, predicted=len(runs) + 2).next_value) is not None:
        runs.append(run(value, value / 200.5))
    assert search(runs, LIMITS, least=1, most=MOST).largest == 200
    assert len(runs) <= 21


@pytest.mark.parametrize("true", [14, 57, 200])
@pytest.mark.parametrize("seed", range(3))
def test_search_says_which_values_are_undecided_when_runs_are_noisy(true, seed):
    found, values = searched(true, noise=0.02, seed=seed)
    assert found.end == "proved"
    assert found.largest <= true * 1.05
    assert found.refuted > true * 0.97
    assert all(found.largest < value < found.refuted for value in found.undecided)
    assert found.refuted == found.largest + 1 or found.undecided
    assert len(values) < 60


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_search_proves_no_value_above_the_truth_when_runs_differ_more_than_their_windows_show(noise):
    found = [searched(57, noise=noise, shown=0.01, seed=seed) for seed in range(40)]
    proved_ones = [one for one, _ in found if one.end == "proved"]
    assert sum(one.largest > 57 for one in proved_ones) <= 1
    assert sum(one.refuted <= 57 for one in proved_ones) <= 1
    assert len(proved_ones) >= 30
    assert max(len(values) for _, values in found) <= 40


def test_a_value_below_one_that_holds_in_some_runs_alone_is_proved():
    # As a batch server ran on a GPU: late at 26 and 27 in one run of two or three, never at 24.
    made = {13: [1.0], 24: [0.987, 0.997, 0.998, 0.998], 26: [0.988, 1.122], 27: [0.998, 1.003, 1.116],
            30: [1.08], 34: [1.31]}  # fmt: skip
    at_bound = 1 / 1.016  # the rate that is asked for, over the limit's
    runs = [run(value, size * at_bound, 0.008) for value, sizes in made.items() for size in sizes]
    assert search(runs, LIMITS, least=1, most=MOST).next_value == 30
    runs += [run(30, size * at_bound, 0.008) for size in (1.1, 1.09, 1.085)]
    found = search(runs, LIMITS, least=1, most=MOST)
    assert (found.end, found.largest, found.refuted) == ("proved", 24, 30)


def test_search_gives_up_when_runs_never_agree():
    rng, runs = random.Random(1), []
    while (found := search(runs, LIMITS, least=1, most=MOST)).next_value is not None:
        runs.append(run(found.next_value, rng.choice((0.5, 2.0))))
    assert len(runs) <= 40
    assert found.end in ("open", "proved", "none")


def test_search_says_none_when_not_even_the_least_value_holds():
    found, values = searched(0)
    assert (found.end, found.largest, found.refuted) == ("none", None, 1)
    assert values == [1, 1]


@pytest.mark.parametrize("predicted", [None, 2, 5000])
def test_search_names_the_ceiling_when_every_value_holds(predicted):
    found, values = searched(5000, predicted=predicted, most=100)
    assert (found.end, found.largest, found.refuted) == ("ceiling", 100, None)
    assert values.count(100) == 2


def test_search_goes_on_where_it_was_when_runs_are_given_again():
    runs = [run(1, 0.1), run(2, 0.2), run(4, 0.4), run(8, 1.1)]
    assert search(runs, LIMITS, least=1, most=MOST).next_value == 6


def test_search_is_open_when_runs_at_the_least_value_contradict_each_other():
    runs = [run(1, 0.9), run(1, 1.1), run(1, 0.9)]
    found = search(runs, LIMITS, least=1, most=1)
    assert (found.end, found.undecided) == ("open", (1,))


def test_failed_run_breaks_the_limits_when_smaller_values_hold():
    failed = ValueRun(value=2, run="", failed="CUDA out of memory")
    found = search([run(1, 0.1), failed, run(1, 0.1), failed], LIMITS, least=1, most=MOST)
    assert (found.end, found.largest, found.refuted) == ("proved", 1, 2)


@pytest.mark.parametrize(
    ("sizes", "is_proved"),
    [
        ((0.98, 0.8), False),
        ((0.98, 0.8, 0.97), False),
        ((0.98, 0.97), False),
        ((0.8, 0.81, 0.8), True),
        ((0.98, 0.98), True),
    ],
)
def test_value_is_proved_only_when_the_spread_of_its_runs_is_smaller_than_their_distance_to_the_limit(
    sizes, is_proved
):
    assert (proved([run(1, size) for size in sizes], LIMITS)[0] == 1) is is_proved


def test_value_stays_open_when_its_runs_took_too_long():
    late = ValueRun(value=2, run="", cut_off="The run took longer than 96 s.")
    assert late.verdict(LIMITS) == "open"
    found = search([run(1, 0.1), run(1, 0.1), late, late, late, late], LIMITS, least=1, most=2)
    assert (found.end, found.largest, found.refuted) != ("proved", 1, 2)
    assert found.refuted is None


def test_run_is_open_when_a_limit_was_not_measured():
    known = run(1, 0.1)
    assert known.verdict([*LIMITS, Limit("latency-growth", 0.04)]) == "open"
    assert run(1, 2.0).verdict([*LIMITS, Limit("latency-growth", 0.04)]) == "breaks"


def test_proved_counts_only_values_with_two_runs_when_the_time_was_over():
    runs = [run(1, 0.1), run(1, 0.1), run(2, 0.3), run(5, 2.0), run(4, 2.0), run(4, 2.0)]
    assert proved(runs, LIMITS) == (1, 4)


@pytest.mark.parametrize(
    ("limit", "values", "verdict"),
    [
        (Limit("frame-rate", 24.75), (25.0, 24.8, 25.2), "holds"),
        (Limit("frame-rate", 24.75), (24.0, 23.8, 24.2), "breaks"),
        (Limit("frame-rate", 24.75), (24.8, 24.6, 25.0), "open"),
        (Limit("memory", 10.0), (9.0, 9.0, 9.0), "holds"),
        (Limit("memory", 10.0), (11.0, 10.5, 11.5), "breaks"),
        (Limit("latency-growth", 0.04), (0.01, -0.1, 0.03), "holds"),
        (Limit("latency-growth", 0.04), (0.01, -0.1, 1.0), "open"),
        (Limit("latency-growth", 0.04), (0.5, 0.1, 1.0), "breaks"),
    ],
)
def test_measured_holds_a_limit_when_its_whole_interval_does(limit, values, verdict):
    value, low, high = values
    assert Measured(quantity=limit.quantity, value=value, low=low, high=high).verdict(limit) == verdict
