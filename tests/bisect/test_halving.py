"""Which point is measured next, and with what error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.bisect import halving
from dynotune.schema.bisection import BisectionStep
from dynotune.schema.comparison import Spread


def step(candidate, side):
    return BisectionStep(baseline=0, candidate=candidate, side=side)


@given(st.integers(2, 400), st.data())
def test_halving_ends_at_the_first_bad_point_within_its_plan(num_points, data):
    first_bad = data.draw(st.integers(1, num_points - 1))
    steps = []
    while True:
        low, high = halving.known_ends(num_points, steps)
        point = halving.next_point(low, high, ())
        if point is None:
            break
        steps.append(step(point, "bad" if point >= first_bad else "good"))
    assert (low, high) == (first_bad - 1, first_bad)
    assert len(steps) <= halving.num_planned(num_points)


@given(st.integers(2, 60), st.data())
def test_halving_leaves_only_skipped_points_between_when_some_cannot_be_measured(num_points, data):
    first_bad = data.draw(st.integers(1, num_points - 1))
    failing = data.draw(st.sets(st.integers(1, num_points - 2))) if num_points > 2 else set()
    steps, skipped = [], set()
    while True:
        low, high = halving.known_ends(num_points, steps)
        point = halving.next_point(low, high, skipped)
        if point is None:
            break
        if point in failing:
            skipped.add(point)
        else:
            steps.append(step(point, "bad" if point >= first_bad else "good"))
    assert low < first_bad <= high and set(range(low + 1, high)) <= failing


@pytest.mark.parametrize("planned", [1, 6, 10])
def test_errors_of_any_number_of_comparisons_add_up_to_less_than_the_whole(planned):
    errors = [halving.error_of(number, planned, 0.05) for number in range(planned + 40)]
    assert all(error > 0 for error in errors) and math.fsum(errors) <= 0.05


def test_a_point_is_bad_below_half_of_the_difference():
    assert halving.against(0.81) == pytest.approx(0.9)


def test_pooled_spread_weighs_comparisons_by_their_pairs_and_counts_for_few():
    assert halving.pooled([]) is None
    spread = halving.pooled([Spread(1.0, 2), Spread(4.0, 1)])
    assert spread == Spread(2.0, 3)
    assert halving.pooled([Spread(1.0, 40)]).df < 40
