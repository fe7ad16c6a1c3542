"""How many kernels ran, how long, how deeply queued, and in which classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.facts import kernels
from dynotune.trace.timeline import DeviceKind

from ..made import Made

GEMM = "ampere_fp16_s16816gemm_fp16_128x128_tn"
SGEMM = "ampere_sgemm_32x128_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_two_kernels_have_their_mean_median_and_shares() -> None:
    made = Made(rank=3).launch("cudaLaunchKernel", 0, 5, correlation=1).kernel(GEMM, 10, 40, correlation=1)
    made.launch("cudaLaunchKernel", 6, 8, correlation=2).kernel(ADD, 50, 60, correlation=2)
    facts = kernels.facts(made.timeline(), (0, 100), 2)
    assert (facts.rank, facts.num, facts.num_launches, facts.in_graphs) == (3, 2, 2, 0)
    assert (facts.total_s, facts.mean_s, facts.median_s) == (40e-9, 20e-9, 20e-9)
    assert (facts.per_s, facts.per_step) == (2e7, 1.0)
    assert [(row.name, row.num, row.share, row.largest) for row in facts.classes] == [
        ("matmul", 1, 0.75, GEMM),
        ("elementwise", 1, 0.25, ADD),
    ]


def test_a_kernel_counts_with_the_part_inside_the_window() -> None:
    made = Made().kernel(ADD, 0, 30).kernel(ADD, 90, 200).kernel(ADD, 200, 210).kernel(ADD, 5, 10)
    facts = kernels.facts(made.timeline(), (10, 100), None)
    assert (facts.num, facts.total_s) == (2, 30e-9)
    # One of them was running already.
    assert facts.per_s == pytest.approx(1e9 / 90)
    assert facts.per_step is None


def test_no_kernel_has_no_mean() -> None:
    facts = kernels.facts(Made().operator("aten::add", 0, 10).timeline(), (0, 10), 1)
    assert (facts.num, facts.total_s, facts.per_s, facts.per_step, facts.classes) == (0, 0.0, 0.0, 0.0, [])
    assert facts.mean_s is facts.median_s is facts.num_launches is facts.in_graphs is None
    assert facts.mean_queue_depth is facts.max_queue_depth is facts.tensor_core_share is None


def test_launches_that_were_not_recorded_leave_their_number_and_the_queue_unknown() -> None:
    facts = kernels.facts(Made().kernel(ADD, 0, 10).timeline(), (0, 10), None)
    assert facts.num == 1
    assert facts.num_launches is facts.in_graphs is facts.mean_queue_depth is facts.max_queue_depth is None


@pytest.mark.parametrize(
    "call", ["cudaGraphLaunch", "cudaGraphLaunch_v10000", "cuGraphLaunch", "hipGraphLaunch"]
)
def test_kernels_of_a_graph_share_one_launch(call: str) -> None:
    made = Made().launch(call, 0, 5, correlation=1).launch("cudaLaunchKernel", 6, 7, correlation=2)
    for start in (10, 20, 30):
        made.kernel(ADD, start, start + 5, correlation=1)
    made.kernel(ADD, 40, 45, correlation=2)
    facts = kernels.facts(made.timeline(), (0, 50), None)
    assert (facts.num, facts.num_launches, facts.in_graphs) == (4, 2, 3)


def test_work_is_queued_from_the_return_of_its_launch_until_it_ends() -> None:
    made = Made().launch("cudaLaunchKernel", 0, 10, correlation=1).kernel(ADD, 20, 50, correlation=1)
    made.launch("cudaLaunchKernel", 10, 20, correlation=2).kernel(ADD, 50, 60, correlation=2)
    # [10, 50) and [20, 60) of 100.
    facts = kernels.facts(made.timeline(), (0, 100), None)
    assert (facts.mean_queue_depth, facts.max_queue_depth) == (0.8, 2)


def test_work_that_begins_before_its_launch_returns_is_queued_from_its_begin() -> None:
    made = Made().launch("cudaMemcpyAsync", 0, 90, correlation=1)
    made.copy("Memcpy DtoH (Device -> Pageable)", 40, 80, correlation=1)
    facts = kernels.facts(made.timeline(), (0, 100), None)
    assert (facts.mean_queue_depth, facts.max_queue_depth) == (0.4, 1)


def test_queue_is_not_deeper_when_a_kernel_ends_as_the_next_is_queued() -> None:
    made = Made().launch("cudaLaunchKernel", 0, 10, correlation=1).kernel(ADD, 10, 20, correlation=1)
    made.launch("cudaLaunchKernel", 10, 20, correlation=2).kernel(ADD, 20, 30, correlation=2)
    assert kernels.facts(made.timeline(), (0, 100), None).max_queue_depth == 1


def test_kernels_launched_inside_math_attention_are_its_own() -> None:
    made = Made().operator(kernels.MATH_ATTENTION, 0, 100).operator("aten::bmm", 10, 20)
    made.launch("cudaLaunchKernel", 12, 14, correlation=1).kernel(GEMM, 200, 260, correlation=1)
    # The same time on another thread, and the same thread afterwards.
    made.launch("cudaLaunchKernel", 13, 15, correlation=2, thread="backward").kernel(
        GEMM, 260, 280, correlation=2
    )
    made.launch("cudaLaunchKernel", 100, 102, correlation=3).kernel(ADD, 280, 300, correlation=3)
    facts = kernels.facts(made.timeline(), (0, 300), None)
    assert {row.name: row.total_s for row in facts.classes} == {
        "attention-math": 60e-9,
        "matmul": 20e-9,
        "elementwise": 20e-9,
    }
    # What uses tensor cores is the product, whatever asked for it.
    assert facts.tensor_core_share == 1.0


def test_the_share_of_tensor_cores_is_of_the_products_whose_names_tell() -> None:
    made = (
        Made()
        .kernel(GEMM, 0, 30)
        .kernel(SGEMM, 30, 40)
        .kernel("triton_tem_fused_mm_0", 40, 60)
        .kernel(ADD, 60, 99)
    )
    assert kernels.facts(made.timeline(), (0, 100), None).tensor_core_share == 0.75


def test_the_share_of_tensor_cores_is_unknown_where_most_products_do_not_tell() -> None:
    made = Made().kernel(GEMM, 0, 10).kernel("triton_tem_fused_mm_0", 10, 21)
    assert kernels.facts(made.timeline(), (0, 100), None).tensor_core_share is None


def test_the_largest_kernel_of_a_class_is_that_of_most_time_not_the_longest() -> None:
    made = Made().kernel(GEMM, 0, 10).kernel(SGEMM, 10, 17).kernel(SGEMM, 20, 27)
    (row,) = kernels.facts(made.timeline(), (0, 100), None).classes
    assert (row.largest, row.num) == (SGEMM, 3)


def test_copies_and_memsets_have_no_class() -> None:
    made = Made().kernel(NCCL, 0, 10).copy("Memcpy DtoD (Device -> Device)", 10, 20)
    made.device.append((20, 30, DeviceKind.SET, "Memset (Device)", 0, 7, -1, 64))
    classes = kernels.classes_of(made.timeline())
    assert classes.tolist() == [kernels.CLASSES.index("communication"), -1, -1]


spans = st.lists(
    st.tuples(
        st.integers(0, 60),  # launched
        st.integers(0, 10),  # the launch takes
        st.integers(-5, 20),  # starts so long after the launch began
        st.integers(0, 15),  # runs
        st.sampled_from([GEMM, SGEMM, ADD, NCCL, "unheard_of"]),
        st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch", ""]),
    ),
    max_size=12,
)


def made_of(rows: list[tuple[int, int, int, int, str, str]]) -> Made:
    made = Made()
    for index, (at, takes, delay, runs, name, call) in enumerate(rows):
        if call:
            made.launch(call, at, at + takes, correlation=index, thread=f"{index}")
        start = max(at + delay, 0)
        made.kernel(name, start, start + runs, correlation=index, stream=index)
    return made


@given(rows=spans, window=st.tuples(st.integers(0, 60), st.integers(1, 60)))
def test_totals_and_depths_equal_a_count_nanosecond_by_nanosecond(
    rows: list[tuple[int, int, int, int, str, str]], window: tuple[int, int]
) -> None:
    start, end = window[0], window[0] + window[1]
    facts = kernels.facts(made_of(rows).timeline(), (start, end), None)
    running, depth = np.zeros(200, dtype=int), np.zeros(200, dtype=int)
    for at, takes, delay, runs, _, call in rows:
        begin = max(at + delay, 0)
        running[begin : begin + runs] += 1
        depth[min(at + takes, begin) if call else begin : begin + runs] += 1
    assert round(facts.total_s * 1e9) == running[start:end].sum()
    if facts.mean_queue_depth is not None:
        assert facts.mean_queue_depth == depth[start:end].mean()
        assert facts.max_queue_depth == depth[start:end].max()
    assert sum(row.num for row in facts.classes) == facts.num
    assert sum(row.total_s for row in facts.classes) == pytest.approx(facts.total_s)
    if facts.total_s:
        assert sum(row.share for row in facts.classes) == pytest.approx(1)


@given(rows=spans, order=st.randoms(use_true_random=False))
def test_the_order_of_kernels_in_the_file_changes_nothing(
    rows: list[tuple[int, int, int, int, str, str]], order
) -> None:
    made = made_of(rows)
    facts = kernels.facts(made.timeline(), (0, 80), 3)
    order.shuffle(made.device)
    order.shuffle(made.host)
    assert kernels.facts(made.timeline(), (0, 80), 3) == facts


@given(rows=spans, devices=st.lists(st.integers(0, 1), min_size=12, max_size=12))
def test_two_devices_in_one_trace_add_up_to_what_each_says_alone(
    rows: list[tuple[int, int, int, int, str, str]], devices: list[int]
) -> None:
    def total(device: int | None) -> dict[str, tuple[int, int]]:
        made = made_of(rows)
        kept = [row for row in made.device if device is None or devices[row[5]] == device]
        made.device[:] = [(*row[:4], devices[row[5]], *row[5:]) for row in kept]
        classes = kernels.facts(made.timeline(), (5, 70), None).classes
        return {row.name: (row.num, round(row.total_s * 1e9)) for row in classes}

    first, second = total(0), total(1)
    added = {
        name: tuple(np.add(first.get(name, (0, 0)), second.get(name, (0, 0))).tolist())
        for name in first | second
    }
    assert added == total(None)
