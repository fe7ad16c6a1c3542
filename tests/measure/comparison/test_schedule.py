from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.comparison.schedule import looks, orders
from dynotune.schema.comparison import LOOKS
from dynotune.schema.errors import UsageError

seeds = st.integers(0, 2**63)


@given(seeds)
def test_each_arm_is_first_as_often_at_every_look_or_once_more(seed: int) -> None:
    drawn = orders(LOOKS[-1], seed)
    for look in LOOKS:
        assert drawn[:look].count("baseline") - look / 2 in (-0.5, 0, 0.5)


@given(seeds, st.integers(0, 12), st.integers(0, 12))
def test_a_resumed_comparison_gets_the_orders_it_had(seed: int, before: int, after: int) -> None:
    assert orders(before + after, seed)[:before] == orders(before, seed)


def test_the_orders_of_a_seed_never_change() -> None:
    # Written down: a comparison begun under one version is resumed under the next.
    assert [first[0] for first in orders(12, 0)] == list("cbbccbcbbcbc")
    assert [first[0] for first in orders(5, 1)] == list("bccbc")


def test_both_blocks_are_drawn_about_equally_often() -> None:
    num = 4000
    baseline_first = sum(orders(1, seed) == ["baseline"] for seed in range(num))
    assert abs(baseline_first - num / 2) < 5 * (num / 4) ** 0.5


def test_the_last_look_is_the_number_of_pairs_asked_for() -> None:
    assert looks(12) == (2, 3, 4, 6, 8, 12)
    assert looks(20) == (2, 3, 4, 6, 8, 12, 16, 20)
    assert looks(10) == (2, 3, 4, 6, 8, 10)
    assert looks(8) == (2, 3, 4, 6, 8)
    assert looks(5) == (2, 3, 4, 5)
    assert looks(2) == (2,)


@pytest.mark.parametrize("num_pairs", [-1, 0, 1, 49])
def test_a_number_of_pairs_without_a_plan_is_refused(num_pairs: int) -> None:
    with pytest.raises(UsageError, match="2 to 48 pairs"):
        looks(num_pairs)
