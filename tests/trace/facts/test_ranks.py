"""Collectives, and ranks side by side."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema.trace_summary import Straggler
from dynotune.trace.facts import ranks
from dynotune.trace.timeline import Timeline

from ..made import Made

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MS = 1_000_000


@dataclass(frozen=True)
class Steps:
    start_ns: np.ndarray
    end_ns: np.ndarray


def steps(*pairs: tuple[int, int]) -> Steps:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Steps(start_ns=table[:, 0], end_ns=table[:, 1])


def rank_of(
    index: int | None, collectives: list[tuple[int, int]], *, shift: int = 0, base: int | None = None
) -> Timeline:
    """A rank whose clock shows `shift` more than the others'."""
    made = Made(rank=index)
    for start, end in collectives:
        made.kernel(ALL_REDUCE, start + shift, end + shift)
    return dataclasses.replace(made.timeline(), clock_base_ns=base)


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    assert ranks.compare([], [], []) is None
    assert ranks.compare([rank_of(0, [(0, 10)])], [(0, 10)], [None]) is None


def test_a_rank_waits_in_a_collective_until_the_last_has_joined() -> None:
    # The second joins 30 and 20 later.
    first = rank_of(0, [(10, 100), (200, 300)], base=0)
    second = rank_of(1, [(40, 101), (220, 299)], base=0)
    found = ranks.compare([first, second], [(0, 400), (0, 400)], [None, None])
    assert found is not None
    assert [(row.rank, row.waits_s, row.clock_offset_s) for row in found.ranks] == [
        (0, 50e-9, 0.0),
        (1, 0.0, 0.0),
    ]
    assert ([one.rank for one in found.stragglers], found.aligned_by) == ([1], "clock")


def test_waiting_ends_with_the_collective_and_counts_once_a_moment() -> None:
    # Recorded so that the last seems to join after the first had left; and two collectives at once.
    first = rank_of(0, [(0, 50), (10, 50)], base=0)
    second = rank_of(1, [(60, 70), (60, 70)], base=0)
    found = ranks.compare([first, second], [(0, 400), (0, 400)], [None, None])
    assert found is not None
    assert found.ranks[0].waits_s == 50e-9


def test_clocks_that_are_off_are_set_by_the_ends_of_collectives() -> None:
    shift = 5_000 * MS
    times = [(10 * MS, 20 * MS), (50 * MS, 60 * MS), (90 * MS, 95 * MS)]
    late = [(13 * MS, 20 * MS + 7), (50 * MS, 60 * MS), (90 * MS, 95 * MS)]
    windows = [(0, 100 * MS), (shift, shift + 100 * MS)]
    found = ranks.compare([rank_of(0, times), rank_of(1, late, shift=shift)], windows, [None, None])
    assert found is not None
    assert (found.aligned_by, found.ranks[1].clock_offset_s) == ("collectives", 5.0)
    assert [row.waits_s for row in found.ranks] == [3e-3, 0.0]


def test_clocks_that_the_collectives_contradict_are_not_believed() -> None:
    shift = 3 * MS
    times = [(10 * MS, 20 * MS), (50 * MS, 60 * MS), (80 * MS, 90 * MS)]
    found = ranks.compare(
        [rank_of(0, times, base=0), rank_of(1, times, shift=shift, base=0)],
        [(0, 100 * MS), (shift, shift + 100 * MS)],
        [None, None],
    )
    assert found is not None
    assert (found.aligned_by, [row.clock_offset_s for row in found.ranks]) == ("collectives", [0.0, 3e-3])
    assert [row.waits_s for row in found.ranks] == [0.0, 0.0]


@pytest.mark.parametrize(("num", "aligned_by"), [(2, "nothing"), (3, "collectives")])
def test_clocks_are_set_by_collectives_when_there_are_three(num: int, aligned_by: str) -> None:
    times = [(10 * MS, 20 * MS), (50 * MS, 60 * MS), (80 * MS, 90 * MS)][:num]
    found = ranks.compare([rank_of(0, times), rank_of(1, times)], [(0, 100 * MS)] * 2, [None, None])
    assert found is not None
    assert found.aligned_by == aligned_by


def test_clocks_of_different_origin_are_set_by_it() -> None:
    times = [(10 * MS, 20 * MS), (50 * MS, 60 * MS)]
    shift = -7 * MS
    found = ranks.compare(
        [rank_of(0, times, base=100), rank_of(1, times, shift=shift, base=100 + 7 * MS)],
        [(0, 100 * MS), (shift, shift + 100 * MS)],
        [None, None],
    )
    assert found is not None
    assert (found.aligned_by, found.ranks[1].clock_offset_s) == ("clock", -7e-3)


def test_a_collective_more_at_the_edge_of_one_rank_is_passed_over() -> None:
    times = [(10 * MS, 20 * MS), (50 * MS, 63 * MS), (90 * MS, 95 * MS), (140 * MS, 151 * MS)]
    found = ranks.compare([rank_of(0, times), rank_of(1, times[1:])], [(0, 200 * MS)] * 2, [None, None])
    assert found is not None
    assert (found.aligned_by, found.ranks[1].clock_offset_s) == ("collectives", 0.0)


def test_recordings_with_gaps_are_matched_by_time_where_clocks_are_known() -> None:
    # Of ten collectives each rank recorded others; three they share.
    ends = [20, 50, 90, 140, 200, 270, 350, 440, 540, 650]
    own = [[0, 1, 2, 5, 7, 9], [1, 3, 4, 5, 6, 9]]
    late = [0, 4]
    timelines = [
        rank_of(
            index,
            [((ends[at] - 10 + late[index]) * MS, ends[at] * MS + index * 50_000) for at in own[index]],
            base=0,
        )
        for index in (0, 1)
    ]
    found = ranks.compare(timelines, [(0, 700 * MS)] * 2, [None, None])
    assert found is not None
    assert found.aligned_by == "clock"
    assert [row.waits_s for row in found.ranks] == [12e-3, 0.0]


def by_ends(index: int, ends_us: list[int]) -> Timeline:
    """A rank of collectives of 100 µs, on a known clock."""
    return rank_of(index, [((end - 100) * 1000, end * 1000) for end in ends_us], base=0)


def test_collectives_that_follow_each_other_closely_are_not_matched_for_being_near() -> None:
    # Every 2 ms; the second rank's lie half a millisecond off, and it has others in between.
    first = by_ends(0, list(range(2_000, 60_000, 2_000)))
    second = by_ends(1, [end + 500 for end in range(2_000, 60_000, 2_000) if end % 3_000])
    found = ranks.compare([first, second], [(0, 100 * MS)] * 2, [None, None])
    assert found is not None
    assert (found.aligned_by, found.ranks[0].waits_s) == ("clock", None)


def test_of_two_collectives_near_the_same_one_the_nearer_is_matched() -> None:
    first = by_ends(
        0, [100_000, 100_300, 200_000, 300_000, 400_000, 500_000, 600_000, 700_000, 800_000, 900_000]
    )
    second = by_ends(1, [100_310])
    found = ranks.compare([first, second], [(0, 1000 * MS)] * 2, [None, None])
    assert found is not None
    assert [row.waits_s for row in found.ranks] == [10e-6, 0.0]


def test_recordings_that_share_nothing_are_not_aligned() -> None:
    found = ranks.compare(
        [rank_of(None, [(0, 10)]), Made().kernel("gemm", 0, 5).timeline()], [(0, 20)] * 2, [None, None]
    )
    assert found is not None
    assert (found.aligned_by, found.stragglers) == ("nothing", [])
    assert [(row.rank, row.waits_s, row.clock_offset_s) for row in found.ranks] == [
        (0, None, None),
        (1, None, None),
    ]


def test_ranks_with_the_same_clock_and_no_collectives_are_aligned_by_it() -> None:
    timelines = [dataclasses.replace(Made(rank=3).kernel("gemm", 0, 5).timeline(), clock_base_ns=7)] * 2
    found = ranks.compare(timelines, [(0, 20)] * 2, [None, None])
    assert found is not None
    assert (found.aligned_by, found.ranks[0].waits_s) == ("clock", None)


def test_the_straggler_is_whom_the_others_wait_for_most() -> None:
    # Of three ranks the second is last three times, by 10 ms each; the third once, by 4.
    joins = [(0, 10, 0), (0, 10, 0), (0, 10, 0), (0, 0, 4)]
    timelines = [
        rank_of(
            7 + index,
            [((100 * at + join[index]) * MS, (100 * at + 50) * MS) for at, join in enumerate(joins)],
        )
        for index in range(3)
    ]
    found = ranks.compare(timelines, [(0, 400 * MS)] * 3, [None] * 3)
    assert found is not None
    assert [row.waits_s for row in found.ranks] == [34e-3, 4e-3, 30e-3]
    assert found.stragglers == [Straggler(rank=8)]


@pytest.mark.parametrize(("late_ms", "stragglers"), [(1, []), (3, [Straggler(rank=1)])])
def test_nobody_stands_out_below_two_percent_of_the_window(late_ms: int, stragglers: list[Straggler]) -> None:
    first, second = [(10 * MS, 50 * MS)], [((10 + late_ms) * MS, 50 * MS)]
    timelines = [rank_of(0, first, base=0), rank_of(1, second, base=0)]
    found = ranks.compare(timelines, [(0, 100 * MS)] * 2, [None, None])
    assert found is not None
    assert found.stragglers == stragglers


def test_nobody_stands_out_where_ranks_are_late_in_turn() -> None:
    first, second = [(0, 50 * MS), (110 * MS, 150 * MS)], [(10 * MS, 50 * MS), (100 * MS, 150 * MS)]
    timelines = [rank_of(0, first, base=0), rank_of(1, second, base=0)]
    found = ranks.compare(timelines, [(0, 200 * MS)] * 2, [None, None])
    assert found is not None
    assert ([row.waits_s for row in found.ranks], found.stragglers) == ([10e-3, 10e-3], [])


def test_busy_time_steps_and_imbalance_are_told_of_each_rank() -> None:
    slow = (
        Made(rank=0)
        .kernel("gemm", 0, 60)
        .kernel("gemm", 50, 80, stream=9)
        .copy("Memcpy DtoD (Device -> Device)", 80, 90)
    )
    fast = Made(rank=1).kernel("gemm", 0, 40).kernel(ALL_REDUCE, 40, 90)
    found = ranks.compare(
        [slow.timeline(), fast.timeline()],
        [(0, 100)] * 2,
        [steps((0, 40), (40, 100)), steps((0, 50), (50, 90))],
    )
    assert found is not None
    assert [(row.busy_s, row.step_s) for row in found.ranks] == [(90e-9, 50e-9), (90e-9, 45e-9)]
    assert found.imbalance == 2.0


def test_imbalance_is_a_step_where_all_know_theirs() -> None:
    timelines = [Made(rank=0).kernel("gemm", 0, 80).timeline(), Made(rank=1).kernel("gemm", 0, 40).timeline()]
    known = ranks.compare(timelines, [(0, 100)] * 2, [steps((0, 50), (50, 100)), steps((0, 100))])
    unknown = ranks.compare(timelines, [(0, 100)] * 2, [steps((0, 50), (50, 100)), None])
    assert known is not None
    assert unknown is not None
    assert (known.imbalance, unknown.imbalance) == (1.0, 2.0)


def test_a_rank_that_computed_nothing_leaves_imbalance_and_busy_time_unknown() -> None:
    timelines = [
        Made(rank=0).kernel("gemm", 0, 80).timeline(),
        Made(rank=1).operator("aten::add", 0, 40).timeline(),
    ]
    found = ranks.compare(timelines, [(0, 100)] * 2, [steps(), None])
    assert found is not None
    assert (found.imbalance, found.ranks[1].busy_s, found.ranks[0].step_s) == (None, None, None)


joins = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=3, max_size=3), st.integers(1, 40)),
    min_size=3,
    max_size=6,
)


@given(joins=joins, shifts=st.lists(st.integers(-(10**12), 10**12), min_size=3, max_size=3))
def test_waits_do_not_depend_on_the_clocks_and_never_exceed_the_collectives(
    joins: list[tuple[list[int], int]], shifts: list[int]
) -> None:
    def compared(shifts: list[int]) -> ranks.Ranks | None:
        timelines = [
            rank_of(
                index,
                [
                    ((100 * at + join[index]) * MS, (100 * at + max(join) + runs) * MS)
                    for at, (join, runs) in enumerate(joins)
                ],
                shift=shifts[index],
            )
            for index in range(3)
        ]
        return ranks.compare(timelines, [(shift, shift + 700 * MS) for shift in shifts], [None] * 3)

    found = compared(shifts)
    assert found is not None
    assert [row.clock_offset_s for row in found.ranks] == [(shift - shifts[0]) / 1e9 for shift in shifts]
    waits = [sum(max(join) - join[index] for join, _ in joins) for index in range(3)]
    assert [row.waits_s for row in found.ranks] == [pytest.approx(wait / 1e3) for wait in waits]
    unshifted = compared([0, 0, 0])
    assert unshifted is not None
    assert found.stragglers == unshifted.stragglers


# Without a device


def on_host(index: int, *collectives: tuple[int, int], computes_ms: int) -> Timeline:
    """Steps of 10 ms, in which a rank computes and then joins."""
    made = Made(rank=index)
    for number, (start, end) in enumerate(collectives):
        made.operator("aten::mm", number * 10 * MS, (number * 10 + computes_ms) * MS)
        made.annotation("gloo:all_reduce", start, end, thread="gloo")
    return dataclasses.replace(made.timeline(), clock_base_ns=0)


def test_ranks_without_a_device_wait_in_the_hosts_collectives() -> None:
    slow = on_host(0, *((MS * (10 * step + 6), MS * (10 * step + 7)) for step in range(4)), computes_ms=6)
    # It is told late that a collective has ended, and joined while it still computed.
    fast = on_host(1, *((MS * (10 * step + 2), MS * (10 * step + 9)) for step in range(4)), computes_ms=3)
    windows = [(0, 40 * MS)] * 2
    found = ranks.compare([slow, fast], windows, [None, None])
    assert found is not None
    assert [row.waits_s for row in found.ranks] == [0.0, pytest.approx(4 * 3e-3)]
    assert [one.rank for one in found.stragglers] == [0]
    assert (found.imbalance, found.aligned_by) == (pytest.approx(2.0), "clock")


def test_collectives_of_the_host_that_were_not_under_way_at_once_are_not_matched() -> None:
    first = on_host(0, *((MS * (10 * step + 1), MS * (10 * step + 2)) for step in range(4)), computes_ms=1)
    second = on_host(
        1, *((MS * (10 * step + 6 + step), MS * (10 * step + 7)) for step in range(2)), computes_ms=1
    )
    found = ranks.compare([first, second], [(0, 40 * MS)] * 2, [None, None])
    assert found is not None
    assert (found.stragglers, [row.waits_s for row in found.ranks]) == ([], [None, None])


def test_a_broadcast_whose_root_is_gone_keeps_no_collective_of_all_from_being_matched() -> None:
    def rank(index: int, broadcast_ms: int, joined_ms: int) -> Timeline:
        made = Made(rank=index)
        for begin in range(0, 80 * MS, 20 * MS):
            made.operator("aten::mm", begin, begin + 2 * MS)
            for number in range(2):
                at = begin + broadcast_ms * MS + number * 1000
                made.annotation("gloo:broadcast", at, at + 1000, thread="gloo")
            made.annotation("gloo:all_reduce", begin + joined_ms * MS, begin + 16 * MS, thread="gloo")
        return dataclasses.replace(made.timeline(), clock_base_ns=0)

    found = ranks.compare([rank(0, 2, 5), rank(1, 9, 15)], [(0, 80 * MS)] * 2, [None, None])
    assert found is not None
    assert [row.waits_s for row in found.ranks] == [pytest.approx(40e-3), 0.0]
    assert [one.rank for one in found.stragglers] == [1]
