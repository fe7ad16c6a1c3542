"""The store: bounded, and close to what was put in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.watch.store import LEVELS, LONGEST_S, MOST_SERIES, SHORTEST_S, WIDTH, Bin, Series, Store

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
def test_no_value_is_lost_or_counted_twice(added):
    series = Series(counted=True)
    now = 0.0
    for later_s, value in added:
        now += later_s
        series.add(now, value)
    assert series.ever.num == len(added)
    begins = [each.begin_s for each in series.all_bins(-math.inf)]
    assert begins == sorted(set(begins))
    assert sum(each.num for each in series.all_bins(-math.inf)) <= len(added)
    recent = [value for at, value in _times(added) if at >= math.floor(now)]
    assert series.over(math.floor(now)).num == len(recent)


def _times(added):
    now = 0.0
    for later_s, value in added:
        now += later_s
        yield now, value


def test_a_day_takes_no_more_room_than_two_and_its_past_is_still_there():
    series = Series(counted=True)
    sizes = []
    for second in range(2 * DAY_S):
        for at in range(4):
            series.add(second + at / 4, 0.001 * (1 + second % 7), 4 * second + at)
        if second in (DAY_S, 2 * DAY_S - 1):
            sizes.append(sum(len(each.counts) for each in series.all_bins(-math.inf)))
    assert len(series.all_bins(-math.inf)) <= sum(num for _, num in LEVELS)
    assert sizes[1] <= 1.1 * sizes[0]
    covered_s = 2 * DAY_S - series.all_bins(-math.inf)[0].begin_s
    assert covered_s >= DAY_S
    assert series.ever.num == 8 * DAY_S


def test_what_comes_late_counts_for_the_newest_second():
    series = Series()
    series.add(10.2, 1.0)
    series.add(3.0, 2.0)
    assert [each.num for each in series.all_bins(-math.inf)] == [2]


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
