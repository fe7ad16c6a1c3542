"""The allocator's level inside the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema.trace_summary import Memory
from dynotune.trace.facts import memory_levels

from ..made import Made


def test_the_peak_is_of_the_levels_inside_the_window() -> None:
    made = Made(rank=1).level(0, 900, 1000).level(10, 100, 1000).level(20, 300, 1000).level(30, 200, 2000)
    made.level(60, 800, 3000)
    assert memory_levels.levels(made.timeline(), (15, 60)) == [
        Memory(rank=1, device=0, peak_allocated_bytes=300, peak_reserved_bytes=2000, num_allocations=1)
    ]


def test_the_level_at_the_start_is_that_of_the_mark_before() -> None:
    made = Made().level(0, 900, 1000).level(20, 300, 1000)
    (row,) = memory_levels.levels(made.timeline(), (10, 60))
    assert (row.peak_allocated_bytes, row.num_allocations) == (900, 0)


def test_a_level_that_only_stood_still_is_known() -> None:
    (row,) = memory_levels.levels(Made().level(0, 900, 1000).timeline(), (10, 60))
    assert (row.peak_allocated_bytes, row.num_allocations) == (900, 0)


def test_a_level_that_comes_after_the_window_is_not_told() -> None:
    assert memory_levels.levels(Made().level(70, 900, 1000).timeline(), (10, 60)) == []


def test_devices_stand_apart_and_host_memory_is_left_out() -> None:
    made = (
        Made()
        .level(0, 5, 10, device=1)
        .level(1, 7, 10, device=0)
        .level(2, 6, 10, device=1)
        .level(3, 99, 99, device=-1)
    )
    rows = memory_levels.levels(made.timeline(), (0, 10))
    assert [(row.device, row.peak_allocated_bytes, row.num_allocations) for row in rows] == [
        (0, 7, 0),
        (1, 6, 1),
    ]


def test_a_mark_without_a_level_is_left_out() -> None:
    assert memory_levels.levels(Made().level(0, 5, -1).level(1, -1, 5).timeline(), (0, 10)) == []


@given(
    levels=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12, unique_by=lambda row: row[0]
    ),
    at=st.integers(1, 40),
)
def test_two_windows_side_by_side_hold_what_one_over_both_holds(
    levels: list[tuple[int, int]], at: int
) -> None:
    made = Made()
    for time, level in levels:
        made.level(time, level, 10)
    timeline = made.timeline()
    whole = memory_levels.levels(timeline, (0, 50))
    parts = memory_levels.levels(timeline, (0, at)) + memory_levels.levels(timeline, (at, 50))
    assert sum(row.num_allocations for row in parts) == sum(row.num_allocations for row in whole)
    assert max((row.peak_allocated_bytes for row in parts), default=None) == max(
        (row.peak_allocated_bytes for row in whole), default=None
    )
