"""Calls that wait for the device, and calls that allocate."""

from __future__ import annotations

import numpy as np
import pytest

from dynotune.schema.trace_summary import Calls, Place
from dynotune.trace.facts import cuda_calls
from dynotune.trace.timeline import Timeline

from ..made import Made

NOWHERE = Place()


def nowhere(rows: np.ndarray) -> list[Place]:
    return [NOWHERE] * len(rows)


def by_thread(timeline: Timeline):
    """Places that name the thread of each call."""
    return lambda rows: [Place(function=timeline.threads[index]) for index in timeline.host.thread[rows]]


@pytest.mark.parametrize(
    "name",
    [
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaStreamSynchronize_v3020",
        "cudaStreamSynchronize_ptsz",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMemcpy_v3020_ptds",
        "cudaMemcpy2D",
        "cudaMemcpyToSymbol",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "cuMemcpyDtoH_v2",
        "cuMemcpyHtoD_v2",
        "hipDeviceSynchronize",
        "hipStreamSynchronize",
        "hipEventSynchronize",
        "hipMemcpy",
        "hipMemcpyWithStream",
        "hipMemcpyDtoH",
    ],
)
def test_a_call_that_waits_is_known_by_its_name(name: str) -> None:
    assert cuda_calls.waits(Made().call(name, 0, 10).timeline()).tolist() == [True]


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemcpyAsync_v3020",
        "cudaMemcpyPeer",
        "cudaMemsetAsync",
        "cudaEventQuery",
        "cudaStreamQuery",
        "cudaStreamWaitEvent",
        "cudaEventRecord",
        "cuMemcpyDtoD_v2",
        "cuMemcpyDtoHAsync_v2",
        "hipMemcpyAsync",
        "cudaFree",
        "synchronize",
        "aten::cudaDeviceSynchronize",
        "",
    ],
)
def test_a_call_that_does_not_wait_is_not_taken_for_one(name: str) -> None:
    assert cuda_calls.waits(Made().call(name, 0, 10).timeline()).tolist() == [False]


def test_waiting_calls_are_gathered_by_function_and_place_largest_first() -> None:
    made = Made(rank=2).call("cudaStreamSynchronize", 0, 10).call("cudaStreamSynchronize", 20, 25)
    made.call("cudaStreamSynchronize", 30, 90, thread="other").call("cudaEventSynchronize_v3020", 40, 41)
    made.call("cudaLaunchKernel", 50, 60).operator("cudaDeviceSynchronize", 0, 99)
    timeline = made.timeline()
    assert cuda_calls.syncs(timeline, (0, 100), by_thread(timeline)) == [
        Calls(rank=2, call="cudaStreamSynchronize", num=1, total_s=60e-9, where=Place(function="other")),
        Calls(rank=2, call="cudaStreamSynchronize", num=2, total_s=15e-9, where=Place(function="main")),
        Calls(rank=2, call="cudaEventSynchronize", num=1, total_s=1e-9, where=Place(function="main")),
    ]


def test_a_call_counts_with_the_part_inside_the_window() -> None:
    made = Made().call("cudaDeviceSynchronize", 0, 30).call("cudaDeviceSynchronize", 90, 200)
    made.call("cudaDeviceSynchronize", 0, 10).call("cudaDeviceSynchronize", 100, 110)
    (row,) = cuda_calls.syncs(made.timeline(), (10, 100), nowhere)
    assert (row.num, row.total_s) == (2, 30e-9)


def test_an_asynchronous_copy_to_pageable_memory_waits() -> None:
    made = (
        Made()
        .call("cudaMemcpyAsync", 0, 50, correlation=1)
        .copy("Memcpy DtoH (Device -> Pageable)", 20, 45, correlation=1)
    )
    made.call("cudaStreamSynchronize", 50, 52)
    assert [(row.call, row.total_s) for row in cuda_calls.syncs(made.timeline(), (0, 100), nowhere)] == [
        ("cudaMemcpyAsync", 50e-9),
        ("cudaStreamSynchronize", 2e-9),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "Memcpy DtoH (Device -> Pinned)",
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy DtoH (Device -> Unknown)",
        "Memcpy DtoD (Device -> Device)",
    ],
)
def test_other_asynchronous_copies_do_not_wait(name: str) -> None:
    made = Made().call("cudaMemcpyAsync", 0, 50, correlation=1).copy(name, 20, 45, correlation=1)
    assert cuda_calls.syncs(made.timeline(), (0, 100), nowhere) == []


def test_the_launch_of_a_graph_that_copies_to_pageable_memory_does_not_wait() -> None:
    made = (
        Made()
        .call("cudaGraphLaunch", 0, 5, correlation=1)
        .copy("Memcpy DtoH (Device -> Pageable)", 20, 45, correlation=1)
    )
    assert not cuda_calls.waits(made.timeline()).any()


def test_a_driver_call_inside_a_runtime_call_is_not_counted_twice() -> None:
    made = Made().call("cudaDeviceSynchronize", 0, 50).call("cuCtxSynchronize", 1, 49)
    # One of the same length, one on another thread, one that follows at once.
    made.call("cudaFree", 60, 70).call("cuMemFree_v2", 60, 70)
    made.call("cuCtxSynchronize", 10, 20, thread="other").call("cuCtxSynchronize", 50, 50)
    timeline = made.timeline()
    assert [(row.call, row.num, row.total_s) for row in cuda_calls.syncs(timeline, (0, 100), nowhere)] == [
        ("cudaDeviceSynchronize", 1, 50e-9),
        ("cuCtxSynchronize", 2, 10e-9),
    ]
    assert [(row.call, row.num) for row in cuda_calls.allocations(timeline, (0, 100), nowhere)] == [
        ("cudaFree", 1)
    ]


@pytest.mark.parametrize(
    "name",
    [
        "cudaMalloc",
        "cudaMalloc_v3020",
        "cudaMallocAsync",
        "cudaMallocHost",
        "cudaMallocManaged",
        "cudaHostAlloc",
        "cudaHostRegister",
        "cudaHostUnregister",
        "cudaFree",
        "cudaFreeAsync",
        "cudaFreeHost",
        "cuMemCreate",
        "cuMemMap",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressReserve",
        "cuMemSetAccess",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "hipMalloc",
        "hipExtMallocWithFlags",
        "hipFree",
        "hipHostMalloc",
        "hipHostFree",
    ],
)
def test_a_call_that_allocates_or_frees_is_known_by_its_name(name: str) -> None:
    made = Made().call(name, 0, 5)
    (row,) = cuda_calls.allocations(made.timeline(), (0, 10), nowhere)
    assert (row.call, row.num, row.total_s) == (cuda_calls.plain_name(name), 1, 5e-9)
    assert cuda_calls.syncs(made.timeline(), (0, 10), nowhere) == []


@pytest.mark.parametrize(
    "name", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaGraphInstantiate", "cudaMemsetAsync"]
)
def test_a_call_that_does_not_allocate_is_not_taken_for_one(name: str) -> None:
    assert cuda_calls.allocations(Made().call(name, 0, 5).timeline(), (0, 10), nowhere) == []


def test_places_are_asked_for_with_the_rows_of_the_calls() -> None:
    made = Made().operator("aten::item", 0, 20).call("cudaStreamSynchronize", 5, 10)
    asked: list[int] = []

    def place_of(rows: np.ndarray) -> list[Place]:
        asked.extend(rows.tolist())
        return nowhere(rows)

    cuda_calls.syncs(made.timeline(), (0, 100), place_of)
    assert asked == [1]


def test_no_call_is_no_row_and_nobody_is_asked() -> None:
    assert cuda_calls.syncs(Made().timeline(), (0, 1), lambda rows: pytest.fail("asked")) == []
