"""The store: bounded, and close to what was put in."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.watch.store import LONGEST_S, MOST_BINS, MOST_SERIES, SHORTEST_S, WIDTH, Bin, Series, Store

TIMES = st.floats(SHORTEST_S, LONGEST_S)
DAY_S = 86_400
CLASSES = math.ceil(math.log(LONGEST_S / SHORTEST_S) / math.log(WIDTH)) + 1


def filled(values: list[float]) -> Bin:
    whole = Bin(0.0, counted=True)
    for value in values:
        whole.add(value)
    return whole


@given(st.lists(TIMES, min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_two_percent_of_the_value_that_so_many_do_not_exceed(values, share):
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    assert filled(values).quantile(share) == pytest.approx(exact, rel=math.sqrt(WIDTH) - 1 + 1e-9)


@given(st.lists(TIMES, max_size=50), st.lists(TIMES, max_size=50))
def test_two_bins_merged_are_as_one_that_had_all(some, others):
    together, whole = filled(some), filled(some + others)
    together.merge(filled(others))
    assert (together.num, together.most, together.counts) == (whole.num, whole.most, whole.counts)
    assert together.total == pytest.approx(whole.total)


@given(st.floats(allow_nan=False))
def test_any_value_has_one_of_a_bounded_number_of_classes(value):
    counts = filled([value]).counts
    assert len(counts) == 1
    lowest = math.ceil(math.log(SHORTEST_S) / math.log(WIDTH))
    assert lowest <= next(iter(counts)) <= lowest + CLASSES


@given(st.lists(st.tuples(st.floats(0, 3000), st.floats(1e-4, 10)), max_size=300))
def test_each_value_is_in_the_bin_of_its_second_and_the_oldest_bins_go(added):
    series, now, times = Series(counted=True), 0.0, []
    for later_s, value in added:
        now += later_s
        times.append(now)
        series.add(now, value)
    assert series.ever.num == len(added)
    seconds = Counter(map(math.floor, times))
    assert {each.begin_s: each.num for each in series.bins(-math.inf)} == dict(
        list(seconds.items())[-MOST_BINS:]
    )
    assert series.over(math.floor(now)).num == seconds[math.floor(now)]


def test_a_day_takes_no_more_room_than_an_hour():
    series = Series(counted=True)
    for second in range(DAY_S):
        series.add(second, 0.001 * (1 + second % 7), second)
    assert [each.begin_s for each in series.bins(-math.inf)] == list(range(DAY_S - MOST_BINS, DAY_S))
    assert series.ever.num == DAY_S


def test_series_counts_late_values_for_the_newest_second():
    series = Series()
    series.add(10.2, 1.0)
    series.add(3.0, 2.0)
    assert [each.num for each in series.bins(-math.inf)] == [2]


def test_the_number_of_series_is_bounded():
    store = Store()
    for rank in range(MOST_SERIES + 50):
        store.add("step", str(rank), 1.0, 1.0)
    assert len(store.series) == MOST_SERIES
    assert store.of("step", str(MOST_SERIES + 1)).ever.num == 0


def test_ranks_come_in_the_order_of_their_numbers():
    store = Store()
    for rank in ("10", "2", "0"):
        store.add("step", rank, 1.0, 1.0)
    assert store.whose("step") == ["0", "2", "10"]
