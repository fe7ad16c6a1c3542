from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.facts.nesting import Nesting, depths, nest, outermost
from dynotune.trace.timeline import UNKNOWN

from ..made import Made


def nested(*spans: tuple[int, int]) -> Nesting:
    spans = tuple(sorted(spans, key=lambda span: (span[0], -span[1])))
    start, end = (np.array([span[side] for span in spans], dtype=np.int64) for side in (0, 1))
    return nest(np.arange(len(spans)), start, end)


def innermost(of: Nesting, *times: int) -> list[int]:
    return of.innermost(np.array(times, dtype=np.int64)).tolist()


def one_by_one(spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Parents and ends by a stack, span after span."""
    parents, ends, stack = [], [], []
    for position, (start, end) in enumerate(spans):
        # A span without duration holds those of no duration that follow it at the same time.
        while stack and (
            ends[stack[-1]] < start or (ends[stack[-1]] == start and spans[stack[-1]][0] < start)
        ):
            stack.pop()
        parents.append(stack[-1] if stack else UNKNOWN)
        ends.append(min(end, ends[stack[-1]]) if stack else end)
        stack.append(position)
    return parents, ends


def test_a_span_is_inside_the_one_that_started_last_and_still_runs():
    tree = nested((0, 100), (10, 50), (20, 30), (60, 90))
    assert tree.parent.tolist() == [UNKNOWN, 0, 1, 0]
    assert depths(tree).tolist() == [0, 1, 2, 1]


def test_the_innermost_span_covers_its_start_and_not_its_end():
    tree = nested((0, 100), (10, 50), (20, 30))
    assert innermost(tree, -1, 0, 10, 20, 29, 30, 50, 99, 100) == [UNKNOWN, 0, 1, 2, 2, 1, 0, 0, UNKNOWN]


def test_a_span_that_starts_as_another_ends_is_not_inside_it():
    assert nested((0, 10), (10, 20)).parent.tolist() == [UNKNOWN, UNKNOWN]


def test_a_span_that_outlives_its_parent_by_rounding_is_cut_and_its_siblings_keep_theirs():
    tree = nested((0, 100), (50, 101), (60, 102), (100, 120))
    assert tree.parent.tolist() == [UNKNOWN, 0, 1, UNKNOWN]
    assert tree.end_ns.tolist() == [100, 100, 100, 120]


def test_ranges_that_overlap_like_tiles_are_cut_one_after_the_other():
    spans = [(10 * index, 10 * index + 15) for index in range(50)]
    tree = nested(*spans)
    parents, ends = one_by_one(spans)
    assert tree.parent.tolist() == parents
    assert tree.end_ns.tolist() == ends


def test_spans_without_duration_nest_and_cover_nothing():
    tree = nested((0, 10), (5, 5), (5, 5), (6, 8))
    assert tree.parent.tolist() == [UNKNOWN, 0, 1, 0]
    assert innermost(tree, 5, 6) == [0, 3]


def test_no_spans_enclose_nothing():
    tree = nested()
    assert innermost(tree, 1, 2) == [UNKNOWN, UNKNOWN]
    assert len(depths(tree)) == 0


def test_the_nearest_span_of_a_kind_is_the_span_itself_or_one_that_encloses_it():
    tree = nested((0, 100), (10, 90), (20, 80), (30, 70), (110, 120))
    of_kind = np.array([True, False, True, False, False])
    assert tree.nearest(of_kind).tolist() == [0, 0, 2, 2, UNKNOWN]


def test_the_outermost_of_some_rows_are_found_on_each_thread():
    made = Made().operator("a", 0, 100).operator("b", 10, 20).operator("c", 5, 50, thread="other")
    spans = made.operator("d", 100, 110).timeline().host
    assert outermost(spans, np.arange(4)).tolist() == [0, 1, 3]
    assert outermost(spans, np.array([2, 3])).tolist() == [2, 3]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40).map(
    lambda pairs: sorted(
        ((start, start + length) for start, length in pairs), key=lambda span: (span[0], -span[1])
    )
)


@given(SPANS)
def test_nested_spans_make_the_tree_of_a_stack(spans: list[tuple[int, int]]):
    tree = nested(*spans)
    parents, ends = one_by_one(spans)
    assert tree.parent.tolist() == parents
    assert tree.end_ns.tolist() == ends


@given(SPANS, st.lists(st.integers(-5, 100), max_size=20))
def test_innermost_span_is_the_last_that_covers_the_time(spans: list[tuple[int, int]], times: list[int]):
    tree = nested(*spans)
    covering = [
        max(
            (row for row in range(len(tree)) if tree.start_ns[row] <= time < tree.end_ns[row]),
            default=UNKNOWN,
        )
        for time in times
    ]
    assert innermost(tree, *times) == covering
