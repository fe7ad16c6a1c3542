from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.facts import idle, intervals
from dynotune.trace.facts.idle import CAUSES, Gaps

from ..made import Made

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
TO_PAGEABLE, FROM_PAGEABLE = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


def gaps(made: Made, start: int, end: int, *, device: int = 0) -> Gaps:
    return idle.gaps(made.timeline(), device, (start, end))


def split(of: Gaps) -> list[dict[str, int]]:
    """Of each gap the causes that hold a part of it."""
    return [
        {cause: int(of.split_ns[cause][row]) for cause in CAUSES if of.split_ns[cause][row]}
        for row in range(len(of))
    ]


def one_kernel_to(end: int) -> Made:
    """A kernel that runs from 0 to `end`."""
    return Made().launch("cudaLaunchKernel", -10, -5, correlation=1).kernel("first", 0, end, correlation=1)


def test_until_the_call_returns_the_device_waits_for_the_host_and_then_for_the_kernel_to_start():
    made = (
        one_kernel_to(100)
        .launch("cudaLaunchKernel", 120, 130, correlation=2)
        .kernel("k", 137, 200, correlation=2)
    )
    found = gaps(made, 0, 200)
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([100], [137])
    assert split(found) == [{"host": 30, "kernel": 7}]


def test_work_queued_before_the_gap_began_waits_for_nothing_but_its_start():
    made = (
        one_kernel_to(100)
        .launch("cudaLaunchKernel", 20, 30, correlation=2)
        .kernel("k", 104, 200, correlation=2)
    )
    assert split(gaps(made, 0, 200)) == [{"kernel": 4}]


def test_work_that_starts_before_its_call_returns_was_waited_for_on_the_host_alone():
    made = one_kernel_to(100).launch("cudaMemcpyAsync", 120, 180, correlation=2)
    made.copy(FROM_PAGEABLE, 150, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 50}]


def test_kernels_of_a_graph_wait_for_their_start_once_the_graph_is_launched():
    made = Made().launch("cudaGraphLaunch", 0, 40, correlation=1)
    for start in (50, 70, 90):
        made.kernel("k", start, start + 15, correlation=1)
    assert split(gaps(made, 0, 105)) == [{"host": 40, "kernel": 10}, {"kernel": 5}, {"kernel": 5}]


def test_the_time_inside_the_loader_is_the_loaders():
    made = one_kernel_to(100).annotation(LOADER, 110, 150)
    made.launch("cudaLaunchKernel", 160, 170, correlation=2).kernel("k", 175, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 30, "loader": 40, "kernel": 5}]


def test_the_loader_counts_from_where_the_gap_began():
    made = one_kernel_to(100).annotation(LOADER, 50, 150)
    made.launch("cudaLaunchKernel", 160, 170, correlation=2).kernel("k", 175, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 20, "loader": 50, "kernel": 5}]


def test_a_loader_on_another_thread_counts_while_the_launching_thread_does_nothing():
    made = one_kernel_to(100).annotation(LOADER, 100, 150, thread="prefetch")
    made.launch("cudaLaunchKernel", 160, 170, correlation=2).kernel("k", 175, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 20, "loader": 50, "kernel": 5}]


def test_a_loader_in_the_background_holds_nobody_up_who_works():
    made = one_kernel_to(100).annotation(LOADER, 0, 200, thread="prefetch").operator("aten::mm", 100, 172)
    made.launch("cudaLaunchKernel", 160, 170, correlation=2).kernel("k", 175, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 70, "kernel": 5}]


def test_a_gap_that_begins_in_a_synchronisation_is_its_fault():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 20, 105)
    made.launch("cudaLaunchKernel", 120, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    found = gaps(made, 0, 200)
    assert split(found) == [{"sync": 30, "kernel": 7}]
    assert found.cause() == ["sync"]
    timeline = made.timeline()
    assert timeline.names[timeline.host.name[found.wait[0]]] == "cudaStreamSynchronize"


def test_a_synchronisation_is_at_fault_for_no_more_than_the_host_waited_in_it():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 98, 105)
    made.launch("cudaLaunchKernel", 120, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 23, "sync": 7, "kernel": 7}]


def test_the_loader_comes_before_the_synchronisation():
    made = one_kernel_to(100).call("cudaDeviceSynchronize", 20, 105).annotation(LOADER, 110, 125)
    made.launch("cudaLaunchKernel", 126, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"loader": 15, "sync": 15, "kernel": 7}]


def test_a_synchronisation_that_began_after_the_queue_ran_dry_is_not_at_fault():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 101, 103)
    made.launch("cudaLaunchKernel", 120, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 30, "kernel": 7}]


def test_a_synchronisation_that_returned_as_the_gap_began_is_not_at_fault():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 20, 100)
    made.launch("cudaLaunchKernel", 120, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 30, "kernel": 7}]


def test_a_query_does_not_wait():
    made = one_kernel_to(100).call("cudaEventQuery", 20, 105)
    made.launch("cudaLaunchKernel", 120, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 30, "kernel": 7}]


def test_a_thread_that_waits_on_while_another_queues_holds_nobody_up():
    made = one_kernel_to(100).call("cudaEventSynchronize", 20, 190, thread="watchdog")
    made.launch("cudaLaunchKernel", 120, 130, correlation=2).kernel("k", 137, 200, correlation=2)
    assert split(gaps(made, 0, 200)) == [{"host": 30, "kernel": 7}]


def test_a_wait_on_one_thread_delays_what_another_queues_afterwards():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 20, 105)
    made.launch("cudaLaunchKernel", 120, 130, correlation=2, thread="autograd").kernel(
        "k", 137, 200, correlation=2
    )
    assert split(gaps(made, 0, 200)) == [{"sync": 30, "kernel": 7}]


def test_a_copy_to_pageable_memory_waits_for_the_device():
    made = one_kernel_to(100).launch("cudaMemcpyAsync", 20, 118, correlation=2)
    made.copy(TO_PAGEABLE, 100, 110, correlation=2).call("cudaStreamSynchronize", 119, 121)
    made.launch("cudaLaunchKernel", 130, 140, correlation=3).kernel("k", 145, 200, correlation=3)
    assert split(gaps(made, 0, 200)) == [{"sync": 30, "kernel": 5}]


def test_a_copy_to_pinned_memory_does_not_wait():
    made = one_kernel_to(100).launch("cudaMemcpyAsync", 20, 118, correlation=2)
    made.copy("Memcpy DtoH (Device -> Pinned)", 100, 110, correlation=2)
    made.launch("cudaLaunchKernel", 130, 140, correlation=3).kernel("k", 145, 200, correlation=3)
    assert split(gaps(made, 0, 200)) == [{"host": 30, "kernel": 5}]


def test_a_wait_behind_a_copy_from_pageable_memory_includes_the_time_of_that_copy():
    made = one_kernel_to(10).launch("cudaMemcpyAsync", 0, 90, correlation=2)
    made.copy(FROM_PAGEABLE, 10, 100, correlation=2).call("cudaStreamSynchronize", 92, 105)
    made.launch("cudaLaunchKernel", 150, 160, correlation=3).kernel("k", 165, 200, correlation=3)
    assert split(gaps(made, 0, 200)) == [{"sync": 60, "kernel": 5}]


def test_a_wait_behind_another_launch_counts_for_itself():
    made = (
        one_kernel_to(10)
        .launch("cudaMemcpyAsync", 0, 60, correlation=2)
        .copy(FROM_PAGEABLE, 10, 70, correlation=2)
    )
    made.launch("cudaLaunchKernel", 62, 66, correlation=3).kernel("k", 70, 100, correlation=3)
    made.call("cudaStreamSynchronize", 92, 105)
    made.launch("cudaLaunchKernel", 150, 160, correlation=4).kernel("k", 165, 200, correlation=4)
    assert split(gaps(made, 0, 200)) == [{"host": 47, "sync": 13, "kernel": 5}]


def test_the_end_of_the_window_is_waited_for_like_the_host():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 20, 105).annotation(LOADER, 150, 180)
    assert split(gaps(made, 0, 400)) == [{"host": 185, "loader": 30, "sync": 85}]


def test_at_the_end_of_the_window_the_thread_that_queues_most_must_be_idle_for_a_loader_elsewhere_to_count():
    made = one_kernel_to(100).annotation(LOADER, 50, 300, thread="prefetch").operator("aten::mm", 110, 180)
    assert split(gaps(made, 0, 200)) == [{"host": 70, "loader": 30}]


def test_a_gap_whose_ending_work_has_no_recorded_call_is_of_no_known_cause():
    made = one_kernel_to(100).call("cudaStreamSynchronize", 20, 105).kernel("before", 137, 150)
    made.launch("cudaLaunchKernel", 152, 155, correlation=2).kernel("k", 160, 200, correlation=2)
    found = gaps(made, 0, 200)
    assert split(found) == [{"other": 37}, {"host": 5, "kernel": 5}]
    assert found.cause() == ["other", "host"]


def test_without_any_recorded_launch_every_gap_is_of_no_known_cause():
    made = Made().kernel("a", 10, 20).kernel("b", 40, 50).annotation(LOADER, 20, 40)
    assert gaps(made, 0, 100).idle_ns() == {"host": 0, "loader": 0, "sync": 0, "kernel": 0, "other": 80}


def test_of_activities_that_end_a_gap_together_the_one_queued_first_counts():
    made = one_kernel_to(100)
    made.launch("cudaLaunchKernel", 120, 135, correlation=2).kernel("late", 137, 200, correlation=2, stream=1)
    made.launch("cudaLaunchKernel", 102, 110, correlation=3, thread="t").kernel(
        "early", 137, 150, correlation=3
    )
    assert split(gaps(made, 0, 200)) == [{"host": 10, "kernel": 27}]


def test_each_device_has_its_own_gaps():
    made = one_kernel_to(100).launch("cudaLaunchKernel", 20, 30, correlation=2)
    made.kernel("other", 40, 90, correlation=2, device=1)
    assert split(gaps(made, 0, 100, device=0)) == []
    assert split(gaps(made, 0, 100, device=1)) == [{"host": 30, "kernel": 10}, {"host": 10}]


def test_only_the_part_of_a_gap_inside_the_window_counts():
    made = (
        one_kernel_to(100)
        .launch("cudaLaunchKernel", 120, 130, correlation=2)
        .kernel("k", 140, 200, correlation=2)
    )
    assert split(gaps(made, 125, 135)) == [{"host": 10}]
    assert split(gaps(made, 125, 138)) == [{"host": 13}]
    assert split(gaps(made, 125, 145)) == [{"host": 5, "kernel": 10}]


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Launches, waits and batches of two threads, and what they queued on two devices."""
    spans: list[tuple[str, dict[str, Any]]] = []
    times = st.integers(0, 300)
    lengths = st.integers(0, 60)
    threads = st.sampled_from("abc")
    for number in range(draw(st.integers(0, 12))):
        start, took = draw(times), draw(lengths)
        spans.append(
            (
                "call",
                {
                    "name": "cudaLaunchKernel",
                    "start": start,
                    "end": start + took,
                    "correlation": number,
                    "thread": draw(threads),
                },
            )
        )
        begin = start + draw(lengths)
        name = draw(st.sampled_from(["gemm", "ncclDevKernel_AllReduce", TO_PAGEABLE, FROM_PAGEABLE]))
        spans.append(
            (
                "copy" if "Memcpy" in name else "kernel",
                {
                    "name": name,
                    "start": begin,
                    "end": begin + draw(lengths),
                    "correlation": number if draw(st.booleans()) else -1,
                    "device": draw(st.integers(0, 1)),
                    "stream": number % 3,
                },
            )
        )
    for name in ("cudaStreamSynchronize", LOADER):
        for _ in range(draw(st.integers(0, 4))):
            start = draw(times)
            spans.append(
                (
                    "annotation" if name is LOADER else "call",
                    {
                        "name": name,
                        "start": start,
                        "end": start + draw(lengths),
                        "thread": draw(st.sampled_from("abc")),
                    },
                )
            )
    return spans


def built(spans: list[tuple[str, dict[str, Any]]], *, later: int = 0) -> Made:
    made = Made()
    for kind, fields in spans:
        getattr(made, kind)(**(fields | {"start": fields["start"] + later, "end": fields["end"] + later}))
    return made


@given(programs(), st.integers(0, 200), st.integers(1, 200))
def test_the_parts_of_the_gaps_are_never_negative_and_sum_to_what_is_not_busy(
    spans: list[tuple[str, dict[str, Any]]], start: int, length: int
):
    timeline = built(spans).timeline()
    for device in timeline.devices:
        found = idle.gaps(timeline, device, (start, start + length))
        assert all((part >= 0).all() for part in found.split_ns.values())
        assert (sum(found.split_ns.values()) == found.end_ns - found.start_ns).all()
        own = timeline.device.device == device
        busy = intervals.union(timeline.device.start_ns[own], timeline.device.end_ns[own])
        busy_ns = intervals.length(intervals.clip(busy, start, start + length))
        assert sum(found.idle_ns().values()) + busy_ns == length


@given(programs(), st.randoms(use_true_random=False), st.integers(-(10**6), 10**18))
def test_neither_the_order_of_the_events_nor_the_clocks_zero_matters(
    spans: list[tuple[str, dict[str, Any]]], random: Any, later: int
):
    shuffled = list(spans)
    random.shuffle(shuffled)
    # Which thread comes first in the table is the reader's choice; each shows the same gaps.
    first, second = built(spans).timeline(), built(shuffled, later=later).timeline()
    for device in first.devices:
        a, b = idle.gaps(first, device, (0, 400)), idle.gaps(second, device, (later, 400 + later))
        assert (a.start_ns == b.start_ns - later).all()
        assert all((a.split_ns[cause] == b.split_ns[cause]).all() for cause in CAUSES)


def test_a_window_without_gaps_has_none():
    found = gaps(one_kernel_to(100), 10, 90)
    assert len(found) == 0
    assert found.cause() == []
    assert np.sum(list(found.idle_ns().values())) == 0
