"""The noise of blocks, from how they differ and how stretches within them do."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.live.blocks import spread_of
from dynotune.schema.events import Block, Stretch

logs = st.lists(st.floats(-1, 1), min_size=2, max_size=8)


def of_stretches(baseline: list[float], candidate: list[float]) -> Block:
    return Block(
        arm=0, number=0, order="ABBA", begin_s=0.0, end_s=1.0,
        baseline=[Stretch(seconds, 10, 40) for seconds in baseline],
        candidate=[Stretch(seconds, 10, 20) for seconds in candidate],
    )  # fmt: skip


@given(logs)
def test_spread_of_blocks_is_their_variance_when_no_stretch_is_repeated(values):
    found = spread_of(values, [])
    assert found.df == len(values) - 1
    assert found.variance == pytest.approx(statistics.variance(values))


@given(logs, st.lists(st.floats(-1, 1), max_size=16))
def test_spread_of_blocks_is_at_least_how_they_differ_and_knows_no_more_than_it_was_told(values, repeats):
    found = spread_of(values, repeats)
    assert found.variance >= statistics.variance(values) * (1 - 1e-9)
    assert found.df in (len(values) - 1, len(values) - 1 + len(repeats))


@given(logs, st.lists(st.floats(0.01, 1), min_size=2, max_size=16), st.floats(0.1, 10))
def test_spread_of_blocks_scales_with_the_noise(values, repeats, factor):
    one = spread_of(values, repeats)
    other = spread_of([factor * value for value in values], [factor * value for value in repeats])
    assert other.df == one.df
    assert other.variance == pytest.approx(factor**2 * one.variance, rel=1e-6)


def test_spread_of_one_block_is_half_of_that_of_its_repeated_stretches():
    found = spread_of([0.7], [0.1, -0.1])
    assert (found.df, found.variance) == (2, pytest.approx(0.1**2 / 2))


def test_spread_of_blocks_pools_repeats_when_blocks_differ_as_their_stretches_do():
    found = spread_of([0.1, 0.2], [0.1, -0.1, 0.1, -0.1])
    assert found.df == 5
    assert found.variance == pytest.approx((0.005 + 4 * 0.005) / 5)


def test_spread_of_blocks_leaves_repeats_out_when_the_gain_differs_from_block_to_block():
    found = spread_of([0.1, 0.5], [0.01, -0.01, 0.01, -0.01])
    assert (found.df, found.variance) == (1, pytest.approx(0.08))


def test_a_block_has_the_ratio_of_the_two_stretches_of_each_arm_by_step_or_by_sample():
    block = of_stretches([2.0, 1.0], [1.0, 4.0])
    assert block.repeats(by_sample=False) == pytest.approx((math.log(2), -math.log(4)))
    assert block.repeats(by_sample=True) == block.repeats(by_sample=False)


def test_a_block_repeats_nothing_when_an_arm_has_one_stretch():
    assert of_stretches([2.0], [1.0, 1.0]).repeats(by_sample=False) == (0.0,)
