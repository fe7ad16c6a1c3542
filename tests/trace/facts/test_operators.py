"""Operators by the host's own time in them."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema.trace_summary import Operator
from dynotune.trace.facts import operators

from ..made import Made


def _plain(found: list[Operator]) -> list[Operator]:
    """Without who called them."""
    return [msgspec.structs.replace(row, callers={}) for row in found]


def test_the_time_of_an_operator_excludes_the_operators_inside() -> None:
    made = (
        Made()
        .operator("aten::linear", 0, 100)
        .operator("aten::addmm", 10, 60)
        .operator("aten::empty", 20, 30)
    )
    made.operator("aten::add", 70, 75).operator("aten::empty", 200, 205)
    assert _plain(operators.facts(made.timeline(), (0, 300))) == [
        Operator(name="aten::linear", num=1, self_s=45e-9),
        Operator(name="aten::addmm", num=1, self_s=40e-9),
        Operator(name="aten::empty", num=2, self_s=15e-9),
        Operator(name="aten::add", num=1, self_s=5e-9),
    ]


def test_calls_annotations_and_functions_inside_are_the_operators_own_time() -> None:
    made = Made().operator("aten::copy_", 0, 100).call("cudaMemcpyAsync", 10, 90).python("a.py(1): f", 0, 100)
    made.annotation("ProfilerStep#1", 0, 100)
    assert _plain(operators.facts(made.timeline(), (0, 100))) == [
        Operator(name="aten::copy_", num=1, self_s=100e-9)
    ]


def test_operators_of_other_threads_are_not_inside() -> None:
    made = Made().operator("forward", 0, 100).operator("backward", 10, 60, thread="autograd")
    assert _plain(operators.facts(made.timeline(), (0, 100))) == [
        Operator(name="forward", num=1, self_s=100e-9),
        Operator(name="backward", num=1, self_s=50e-9),
    ]


def test_an_operator_counts_with_the_part_inside_the_window() -> None:
    made = (
        Made()
        .operator("outer", 0, 100)
        .operator("inner", 5, 30)
        .operator("early", 0, 5)
        .operator("late", 90, 100)
    )
    assert _plain(operators.facts(made.timeline(), (20, 80))) == [
        Operator(name="outer", num=1, self_s=50e-9),
        Operator(name="inner", num=1, self_s=10e-9),
    ]


def test_an_operator_that_calls_itself_counts_once_for_each_moment() -> None:
    made = Made().operator("aten::to", 0, 10).operator("aten::to", 0, 10).operator("aten::to", 2, 5)
    assert _plain(operators.facts(made.timeline(), (0, 10))) == [
        Operator(name="aten::to", num=3, self_s=10e-9)
    ]


def test_one_that_outlasts_what_it_started_in_takes_over() -> None:
    made = Made().operator("a", 0, 10).operator("b", 8, 11).operator("c", 9, 12)
    assert {row.name: row.self_s for row in operators.facts(made.timeline(), (0, 20))} == {
        "a": 8e-9,
        "b": 1e-9,
        "c": 3e-9,
    }


def test_the_two_hundred_largest_are_told() -> None:
    made = Made()
    for index in range(210):
        made.operator(f"op{index}", 300 * index, 300 * index + index + 1)
    rows = operators.facts(made.timeline(), (0, 100_000))
    assert [row.name for row in rows] == [f"op{index}" for index in range(209, 9, -1)]


def test_no_operator_is_no_row() -> None:
    assert operators.facts(Made().call("cudaFree", 0, 5).timeline(), (0, 10)) == []


spans = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(0, 20), st.sampled_from("abc"), st.sampled_from(["main", "autograd"])
    ),
    max_size=14,
)


def counted(rows: list[tuple[int, int, str, str]], start: int, end: int) -> dict[str, int]:
    """Which operator is innermost, asked nanosecond by nanosecond."""
    own = dict.fromkeys("abc", 0)
    for thread in ("main", "autograd"):
        # As the tables are ordered: by start, the longer first.
        spans = sorted((row for row in rows if row[3] == thread), key=lambda row: (row[0], -row[1]))
        for time in range(start, end):
            inside = [row for row in spans if row[0] <= time < row[0] + row[1]]
            if inside:
                own[inside[-1][2]] += 1
    return own


@given(rows=spans, window=st.tuples(st.integers(0, 20), st.integers(1, 40)))
def test_own_times_equal_a_count_nanosecond_by_nanosecond_whether_or_not_they_nest(
    rows: list[tuple[int, int, str, str]], window: tuple[int, int]
) -> None:
    made, (start, length) = Made(), window
    for at, takes, name, thread in rows:
        made.operator(name, at, at + takes, thread=thread)
    found = {
        row.name: round(row.self_s * 1e9) for row in operators.facts(made.timeline(), (start, start + length))
    }
    expected = counted(rows, start, start + length)
    assert {name: found.get(name, 0) for name in "abc"} == expected


def test_a_long_stair_of_spans_that_cross_is_told_apart() -> None:
    start = np.arange(2000, dtype=np.int64)
    own = operators.self_times(start, start + 500)
    assert own.tolist() == [1] * 1999 + [500]
