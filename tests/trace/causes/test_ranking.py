from __future__ import annotations

import dataclasses

import pytest

from dynotune.schema.causes import CAUSES
from dynotune.schema.trace_summary import Cause, Place, TraceSummary
from dynotune.trace.summary import summarise
from dynotune.trace.timeline import DeviceProperties, Timeline

from ..made import Made

US, MS = 1_000, 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SGEMM, TENSOR_GEMM = (
    "ampere_sgemm_128x64_tn",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
)
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}, at::native::memory::LoadWithCast<1>, "
    "at::native::memory::StoreWithCast<1>>(int)"
)
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


class Step:
    """One marked step of 100 ms in train.py, on a device that is busy unless told otherwise."""

    def __init__(self, *, length: int = 100 * MS, rank: int | None = None) -> None:
        self.made, self.num = Made(rank=rank), 0
        self.length = length
        self.made.annotation("ProfilerStep#1", 0, length).python("train.py(31): step", -10, length + 10)

    def call(self, name: str, start: int, end: int, *, thread: str = "main") -> Step:
        self.made.call(name, start, end, thread=thread)
        return self

    def operator(self, name: str, start: int, end: int) -> Step:
        self.made.operator(name, start, end)
        return self

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        *,
        called: int | None = None,
        returned: int | None = None,
        call: str = "cudaLaunchKernel",
        stream: int = 7,
    ) -> Step:
        """Queued by a call that returned just before it started, unless told otherwise."""
        self.num += 1
        returned = start if returned is None else returned
        self.made.launch(call, returned - 1 if called is None else called, returned, correlation=self.num)
        self.made.kernel(name, start, end, correlation=self.num, stream=stream)
        return self

    def copy(
        self,
        name: str,
        start: int,
        end: int,
        *,
        called: int | None = None,
        returned: int | None = None,
        num_bytes: int = 1 << 20,
    ) -> Step:
        self.num += 1
        returned = start if returned is None else returned
        called = returned - 1 if called is None else called
        self.made.launch("cudaMemcpyAsync", called, returned, correlation=self.num)
        self.made.copy(name, start, end, correlation=self.num, num_bytes=num_bytes)
        return self

    def summary(self) -> TraceSummary:
        return summarise([self.made.timeline()])

    def causes(self) -> dict[str, Cause]:
        """By id; each has one place in these tests."""
        found = self.summary().causes
        assert len({cause.id for cause in found}) == len(found)
        return {cause.id: cause for cause in found}


def lost(cause: Cause) -> int:
    """Nanoseconds."""
    return round(cause.lost_s * 1e9)


def test_waiting_for_the_loader():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).kernel(TENSOR_GEMM, 90 * MS, 100 * MS)
    step.made.annotation(LOADER, 55 * MS, 85 * MS)
    found = step.causes()
    assert lost(found["loader-bound"]) == 25 * MS
    assert found["loader-bound"].share == 0.25
    assert found["loader-bound"].where == Place("train.py(31): step", LOADER)
    assert lost(found["host-bound"]) == 5 * MS
    assert "30 ms each" in found["loader-bound"].evidence[0]


def test_host_work_after_the_loader_is_not_placed_inside_the_loader():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).kernel(TENSOR_GEMM, 90 * MS, 100 * MS)
    step.made.annotation(LOADER, 55 * MS, 85 * MS).python("data.py(6): collate", 57 * MS, 84 * MS)
    step.made.python("train.py(9): forward", 86 * MS, 90 * MS)
    found = step.causes()["host-bound"]
    assert (found.where.function, lost(found)) == ("train.py(9): forward", 5 * MS)
    assert len(found.evidence) == 1
    assert found.evidence[0].endswith("5 ms at most")


def test_loader_cause_names_the_users_function_beside_the_place_where_batches_are_drawn():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).kernel(TENSOR_GEMM, 90 * MS, 100 * MS)
    step.made.annotation(LOADER, 55 * MS, 85 * MS).python("data.py(6): collate", 57 * MS, 84 * MS)
    found = step.causes()["loader-bound"]
    assert found.where.function == "train.py(31): step"
    assert found.evidence[1] == "longest inside data.py(6): collate"


def test_a_synchronisation_each_step():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).operator("aten::item", 1 * MS, 61 * MS)
    step.call("cudaStreamSynchronize", 2 * MS, 61 * MS).kernel(TENSOR_GEMM, 80 * MS, 100 * MS)
    found = step.causes()
    assert set(found) == {"sync-per-step"}
    assert lost(found["sync-per-step"]) == 20 * MS
    assert found["sync-per-step"].where == Place("train.py(31): step", "aten::item", "cudaStreamSynchronize")


def test_a_copy_that_blocks_the_host():
    step = Step().copy("Memcpy HtoD (Pinned -> Device)", 0, 20 * MS)
    step.call("cudaStreamSynchronize", 1 * MS, 21 * MS).kernel(TENSOR_GEMM, 30 * MS, 100 * MS)
    found = step.causes()
    assert lost(found["h2d-blocking"]) == 10 * MS
    assert lost(found["h2d-not-overlapped"]) == 20 * MS
    assert set(found) == {"h2d-blocking", "h2d-not-overlapped"}


def test_a_copy_from_pageable_memory():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).copy("Memcpy HtoD (Pageable -> Device)", 50 * MS, 80 * MS)
    found = step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    assert set(found) == {"pin-memory-off"}
    assert lost(found["pin-memory-off"]) == 20 * MS


def test_a_copy_back_to_the_host():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).copy("Memcpy DtoH (Device -> Pinned)", 60 * MS, 80 * MS)
    found = step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    assert {name: lost(cause) for name, cause in found.items()} == {"d2h-not-overlapped": 20 * MS}


def test_kernels_shorter_than_their_launch():
    step = Step()
    for start in range(0, 100 * MS, 50 * US):
        step.operator("aten::add", start, start + 45 * US).kernel(
            TENSOR_GEMM, start + 40 * US, start + 45 * US
        )
    found = step.causes()
    assert set(found) == {"launch-bound"}
    assert lost(found["launch-bound"]) == 90 * MS
    assert found["launch-bound"].where == Place("train.py(31): step", "aten::add")


def test_long_pauses_between_short_kernels_are_the_hosts_own():
    step = Step()
    for start in range(0, 50 * MS, 50 * US):
        step.kernel(TENSOR_GEMM, start + 40 * US, start + 45 * US)
    found = step.operator("aten::cumsum", 51 * MS, 99 * MS).kernel(TENSOR_GEMM, 99 * MS, 100 * MS).causes()
    assert lost(found["launch-bound"]) == 45 * MS - 5 * US
    assert lost(found["host-bound"]) == 49 * MS + 5 * US
    assert found["host-bound"].where == Place("train.py(31): step", "aten::cumsum")


def test_a_host_that_is_slower_than_its_device():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).operator("aten::sort", 60 * MS, 79 * MS)
    found = step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    assert set(found) == {"host-bound"}
    assert lost(found["host-bound"]) == 20 * MS
    assert found["host-bound"].where == Place("train.py(31): step", "aten::sort")


def test_places_that_hold_much_of_the_window_stand_apart():
    step = Step().kernel(TENSOR_GEMM, 0, 40 * MS)
    step.made.python("data.py(5): crop", 40 * MS, 60 * MS).python("model.py(9): forward", 61 * MS, 79 * MS)
    step.kernel(TENSOR_GEMM, 60 * MS, 61 * MS).kernel(TENSOR_GEMM, 79 * MS, 98 * MS)
    found = step.kernel(TENSOR_GEMM, 99 * MS, 100 * MS).summary().causes
    assert [(cause.id, cause.where.function, lost(cause)) for cause in found] == [
        ("host-bound", "data.py(5): crop", 20 * MS),
        ("host-bound", "model.py(9): forward", 18 * MS),
        ("host-bound", "train.py(31): step", 1 * MS),
    ]


def test_small_places_take_in_time_at_an_unknown_place():
    made = Made().annotation("ProfilerStep#1", 0, 100 * MS).operator("aten::sort", 90 * MS, 91 * MS)
    made.launch("cudaLaunchKernel", -9, -1, correlation=1).kernel(TENSOR_GEMM, 0, 60 * MS, correlation=1)
    made.launch("cudaLaunchKernel", 79 * MS, 80 * MS, correlation=2)
    made.kernel(TENSOR_GEMM, 80 * MS, 90 * MS, correlation=2)
    made.launch("cudaLaunchKernel", 90 * MS, 91 * MS, correlation=3)
    made.kernel(TENSOR_GEMM, 91 * MS, 100 * MS, correlation=3)
    (found,) = summarise([made.timeline()]).causes
    assert (found.id, lost(found), found.where) == ("host-bound", 21 * MS, Place())


def test_queued_kernels_that_pause_before_each_other():
    step = Step()
    for start in range(0, 100 * MS, 100 * US):
        step.kernel(TENSOR_GEMM, start, start + 95 * US, returned=-1)
    found = step.causes()
    assert {name: lost(cause) for name, cause in found.items()} == {"launch-latency": 999 * 5 * US}


def test_queued_work_that_does_not_start_for_long():
    found = Step().kernel(TENSOR_GEMM, 0, 60 * MS).kernel(TENSOR_GEMM, 80 * MS, 100 * MS, returned=5).causes()
    assert {name: lost(cause) for name, cause in found.items()} == {"queue-stalled": 20 * MS}


def test_device_memory_allocated_and_freed_in_each_step():
    step = (
        Step()
        .kernel(TENSOR_GEMM, 0, 60 * MS)
        .call("cudaFree", 61 * MS, 66 * MS)
        .call("cudaMalloc", 67 * MS, 70 * MS)
    )
    found = step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    assert {name: lost(cause) for name, cause in found.items()} == {
        "empty-cache-in-loop": 8 * MS,
        "host-bound": 12 * MS,
    }
    assert found["empty-cache-in-loop"].where == Place("train.py(31): step", "", "cudaFree")
    assert found["empty-cache-in-loop"].evidence == ["cudaFree: 1 a step, 5 ms; cudaMalloc: 1 a step, 3 ms"]


def test_device_memory_that_still_grows_in_a_step():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).call("cudaMalloc", 61 * MS, 70 * MS)
    found = step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    assert lost(found["alloc-retries"]) == 9 * MS


def test_a_program_may_allocate_where_no_steps_are_known():
    made = Made().call("cudaMalloc", 0, 9 * MS).launch("cudaLaunchKernel", 9 * MS, 10 * MS, correlation=1)
    found = summarise([made.kernel(TENSOR_GEMM, 10 * MS, 20 * MS, correlation=1).timeline()]).causes
    assert [cause.id for cause in found] == ["host-bound"]


def test_page_locked_memory_allocated_in_a_step():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).call("cudaHostAlloc", 61 * MS, 70 * MS)
    found = (
        step.call("cudaHostAlloc", 70 * MS, 79 * MS, thread="pin")
        .kernel(TENSOR_GEMM, 80 * MS, 100 * MS)
        .causes()
    )
    assert lost(found["pinned-alloc-slow"]) == 9 * MS
    assert lost(found["host-bound"]) == 11 * MS


def test_memory_page_locked_by_the_program_in_each_step():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).call("cudaHostAlloc", 61 * MS, 70 * MS)
    found = (
        step.operator("aten::pin_memory", 60 * MS, 71 * MS).kernel(TENSOR_GEMM, 80 * MS, 100 * MS).causes()
    )
    assert lost(found["pin-in-hot-loop"]) == 11 * MS
    assert "pinned-alloc-slow" not in found


def test_time_is_lost_to_copies_when_a_step_makes_many_small_ones():
    step = Step().kernel(TENSOR_GEMM, 0, 50 * MS)
    for number in range(200):
        end = 50 * MS + (number + 1) * 200 * US
        step.copy("Memcpy HtoD (Pinned -> Device)", end - 10 * US, end, num_bytes=4096)
    found = step.kernel(TENSOR_GEMM, 90 * MS, 100 * MS).causes()
    assert lost(found["many-small-copies"]) == 200 * (190 + 10) * US
    assert "host-bound" not in found


def test_an_optimizer_that_takes_each_parameter_alone():
    step = Step().kernel(TENSOR_GEMM, 0, 50 * MS)
    step.made.annotation("Optimizer.step#AdamW.step", 50 * MS, 90 * MS)
    for number in range(400):
        end = 50 * MS + (number + 1) * 100 * US
        step.kernel(POINTWISE, end - 2 * US, end)
    found = step.kernel(TENSOR_GEMM, 91 * MS, 100 * MS).causes()
    assert lost(found["optimizer-forloop"]) == 400 * 100 * US
    assert found["optimizer-forloop"].where == Place("train.py(31): step", "Optimizer.step#AdamW.step")
    assert lost(found["host-bound"]) == 1 * MS


def test_short_kernels_among_long_ones_are_launch_bound_where_they_are_many():
    step = Step().kernel(TENSOR_GEMM, 0, 40 * MS)
    for number in range(200):
        end = 40 * MS + (number + 1) * 150 * US
        step.kernel(POINTWISE, end - 2 * US, end)
    found = step.kernel(TENSOR_GEMM, 85 * MS, 100 * MS).causes()
    # Not the first pause, which follows a long kernel, nor the last, in which the host did something else.
    assert lost(found["launch-bound"]) == 199 * 148 * US
    assert lost(found["host-bound"]) == 148 * US + 15 * MS


def test_few_pauses_between_short_kernels_among_long_ones_are_not_launch_bound():
    step = Step().kernel(TENSOR_GEMM, 0, 40 * MS)
    for number in range(20):
        end = 40 * MS + (number + 1) * 150 * US
        step.kernel(POINTWISE, end - 2 * US, end)
    assert "launch-bound" not in step.kernel(TENSOR_GEMM, 85 * MS, 90 * MS).causes()


def test_optimizer_cause_leaves_out_a_closure_inside_the_optimizers_step():
    step = Step().kernel(TENSOR_GEMM, 0, 10 * MS)
    step.made.annotation("Optimizer.step#SGD.step", 10 * MS, 95 * MS)
    for number in range(400):
        end = 10 * MS + (number + 1) * 100 * US
        step.kernel(POINTWISE, end - 2 * US, end)
    step.made.operator(
        "autograd::engine::evaluate_function: MulBackward0", 60 * MS, 70 * MS, thread="autograd"
    )
    found = step.kernel(TENSOR_GEMM, 90 * MS, 100 * MS).causes()
    assert "optimizer-forloop" not in found


def test_an_optimizer_of_few_kernels_is_not_at_fault():
    step = Step().kernel(TENSOR_GEMM, 0, 50 * MS)
    step.made.annotation("Optimizer.step#AdamW.step", 50 * MS, 90 * MS)
    for number in range(40):
        step.kernel(POINTWISE, 50 * MS + number * MS, 50 * MS + number * MS + 2 * US)
    assert "optimizer-forloop" not in step.kernel(TENSOR_GEMM, 90 * MS, 100 * MS).causes()


@pytest.mark.parametrize(
    ("kernel", "capability", "expected"),
    [
        (SGEMM, (8, 0), {"fp32-matmul-no-tf32"}),
        (SGEMM, (7, 0), {"amp-absent"}),
        (SGEMM, None, {"amp-absent"}),
        (SGEMM, (6, 1), set()),
        (
            "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(int)",
            (9, 0),
            {"amp-absent"},
        ),
        (
            "void implicit_convolve_sgemm<__half, __half, 1024, 5, 5, 3, 3, 3, 1, false>(int)",
            (9, 0),
            {"gemm-misaligned"},
        ),
        (TENSOR_GEMM, (9, 0), set()),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4>(float)", (9, 0), set()),
        (
            "void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false>(int)",
            (9, 0),
            {"channels-last"},
        ),
        (ALL_REDUCE, (9, 0), {"communication-exposed"}),
    ],
)
def test_causes_of_a_busy_device_depend_on_its_kernels(
    kernel: str, capability: tuple[int, int] | None, expected: set[str]
):
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).kernel(kernel, 60 * MS, 80 * MS, returned=5)
    step.kernel(TENSOR_GEMM, 80 * MS, 100 * MS, returned=6)
    if capability is not None:
        step.made.properties[0] = DeviceProperties(compute_capability=capability)
    found = step.causes()
    assert set(found) == expected
    assert all(lost(cause) == 20 * MS for cause in found.values())


def test_kernels_that_convert_types_are_placed_where_they_were_launched():
    step = Step().kernel(TENSOR_GEMM, 0, 90 * MS).operator("aten::to", 10, 20 * MS)
    found = step.kernel(CAST, 90 * MS, 100 * MS, called=11, returned=12).causes()
    assert lost(found["casts"]) == 10 * MS
    assert found["casts"].where == Place("train.py(31): step", "aten::to", "cudaLaunchKernel")


def test_attention_by_its_plain_formula():
    step = Step().kernel(TENSOR_GEMM, 0, 80 * MS)
    step.operator("aten::scaled_dot_product_attention", 100, 1000)
    step.operator("aten::_scaled_dot_product_attention_math", 200, 900)
    step.kernel(TENSOR_GEMM, 80 * MS, 90 * MS, called=300, returned=400)
    found = step.kernel(TENSOR_GEMM, 90 * MS, 100 * MS, called=950, returned=960).causes()
    assert lost(found["sdpa-math"]) == 10 * MS
    assert found["sdpa-math"].where == Place("train.py(31): step", "aten::scaled_dot_product_attention")


SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)"


def test_the_softmax_of_attention_by_its_plain_formula_is_not_written_by_hand():
    step = (
        Step().kernel(TENSOR_GEMM, 0, 80 * MS).operator("aten::_scaled_dot_product_attention_math", 200, 900)
    )
    found = step.kernel(SOFTMAX, 80 * MS, 100 * MS, called=300, returned=400).causes()
    assert set(found) == {"sdpa-math"}


def test_a_large_softmax_of_its_own():
    step = Step().kernel(TENSOR_GEMM, 0, 80 * MS).kernel(SOFTMAX, 80 * MS, 100 * MS, returned=5)
    assert lost(step.causes()["manual-attention"]) == 20 * MS
    losses = SOFTMAX.replace("softmax_warp_forward", "cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>")
    step = Step().kernel(TENSOR_GEMM, 0, 80 * MS).kernel(losses, 80 * MS, 100 * MS, returned=5)
    assert step.causes() == {}


def test_pointwise_kernels_count_from_a_fifth_of_the_time_on():
    for share, expected in ((15, set()), (30, {"compile-default"})):
        step = Step().kernel(TENSOR_GEMM, 0, (100 - share) * MS)
        step.kernel(POINTWISE, (100 - share) * MS, 95 * MS, returned=5)
        assert set(step.kernel(POINTWISE, 95 * MS, 100 * MS, returned=6).causes()) == expected


def row_of(*kernels: tuple[str, int], streams: tuple[int, ...] = ()) -> Step:
    """Kernels of so many milliseconds, one after the other, all queued early; 100 ms in all."""
    assert sum(length for _, length in kernels) == 100
    step, at = Step(), 0
    for number, (name, length) in enumerate(kernels):
        stream = streams[number] if streams else 7
        step.kernel(name, at * MS, (at + length) * MS, returned=min(at * MS, 5 + number), stream=stream)
        at += length
    return step


def test_of_pointwise_kernels_in_a_row_the_longest_stays():
    found = row_of((TENSOR_GEMM, 40), (POINTWISE, 10), (POINTWISE, 30), (POINTWISE, 20)).causes()
    assert lost(found["compile-default"]) == 30 * MS
    # A product between them, or another stream, keeps them apart.
    found = row_of((POINTWISE, 10), (TENSOR_GEMM, 40), (POINTWISE, 30), (POINTWISE, 20)).causes()
    assert lost(found["compile-default"]) == 20 * MS
    assert row_of((POINTWISE, 30), (TENSOR_GEMM, 40), (POINTWISE, 30)).causes() == {}
    assert row_of((TENSOR_GEMM, 40), (POINTWISE, 30), (POINTWISE, 30), streams=(7, 7, 8)).causes() == {}


def test_compile_cause_does_not_fuse_kernels_across_a_sum_over_the_batch():
    statistics = (
        "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var, float>(float*)"
    )
    transform = "void at::native::batch_norm_transform_input_channels_last_kernel<float, float>(float*)"
    row = ((POINTWISE, 10), (statistics, 20), (transform, 25), (POINTWISE, 15))
    assert lost(row_of((TENSOR_GEMM, 30), *row).causes()["compile-default"]) == 25 * MS


def test_conversions_between_types_do_not_interrupt_a_row_and_are_counted_by_themselves():
    found = row_of((TENSOR_GEMM, 40), (POINTWISE, 20), (CAST, 10), (POINTWISE, 30)).causes()
    assert lost(found["compile-default"]) == 20 * MS
    assert lost(found["casts"]) == 10 * MS


def test_all_reduces_of_distributed_data_parallel():
    step = Step().operator("DistributedDataParallel.forward", 0, 50).kernel(TENSOR_GEMM, 0, 80 * MS)
    found = (
        step.kernel(ALL_REDUCE, 50 * MS, 95 * MS, returned=9)
        .kernel(TENSOR_GEMM, 90 * MS, 100 * MS, returned=9)
        .causes()
    )
    assert {name: lost(cause) for name, cause in found.items()} == {"ddp-bucket-cap": 10 * MS}


def test_the_rank_the_others_wait_for():
    timelines = []
    for rank, joined in ((0, 60), (1, 60), (2, 90)):
        step = Step(rank=rank).kernel(TENSOR_GEMM, 0, joined * MS)
        timeline = step.kernel(ALL_REDUCE, joined * MS, 100 * MS, returned=5).made.timeline()
        # One collective alone does not tell by how much clocks differ.
        timelines.append(dataclasses.replace(timeline, clock_base_ns=0))
    summary = summarise(timelines)
    found = {cause.id: cause for cause in summary.causes}
    assert lost(found["rank-imbalance"]) == 30 * MS
    assert "rank 2" in found["rank-imbalance"].claim
    # Of each other cause the rank that loses most counts, once.
    assert lost(found["communication-exposed"]) == 40 * MS
    assert len(summary.causes) == 2


def late_in_forward(rank: int, *, late_ms: int, num_steps: int = 9) -> Timeline:
    """Nine steps of 40 ms on the host, in each of which the second rank is late within one function."""
    made = Made(rank=rank)
    for begin in range(0, num_steps * 40 * MS, 40 * MS):
        ready = begin + (5 + late_ms * (rank == 1)) * MS
        made.annotation(f"ProfilerStep#{begin}", begin, begin + 40 * MS)
        made.annotation("DistributedDataParallel.forward", begin, ready - 2 * MS)
        made.python("train.py(7): augment", begin + MS, ready - 2 * MS).operator(
            "aten::mm", begin, begin + MS
        )
        made.operator("autograd::engine::evaluate_function: MmBackward0", ready - 2 * MS, ready)
        made.annotation("gloo:all_reduce", ready, begin + 39 * MS, thread="gloo")
        made.annotation("Optimizer.step#SGD.step", begin + 39 * MS, begin + 40 * MS)
    return dataclasses.replace(made.timeline(), clock_base_ns=0)


def test_the_phase_and_the_place_of_the_rank_the_others_wait_for():
    summary = summarise([late_in_forward(rank, late_ms=20) for rank in range(3)])
    found = next(cause for cause in summary.causes if cause.id == "rank-imbalance")
    assert found.claim == "Rank 1 is 20 ms late in forward each step: the others wait."
    assert found.where.function == "train.py(7): augment"


def test_of_few_steps_a_rank_is_named_without_phase_and_place():
    few = summarise([late_in_forward(rank, late_ms=20, num_steps=4) for rank in range(3)])
    found = next(cause for cause in few.causes if cause.id == "rank-imbalance")
    assert found.claim == "Rank 1 is 20 ms late each step, in which phase is not known: the others wait."
    assert found.where == Place()


def test_causes_of_less_than_a_hundredth_are_left_out():
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).kernel(TENSOR_GEMM, 60 * MS + 900 * US, 100 * MS)
    assert step.causes() == {}
    assert "no cause" in step.summary().verdict


def test_the_verdict_on_a_device_that_idles_names_its_idle_time_first():
    step = Step().kernel(POINTWISE, 0, 20 * MS).kernel(POINTWISE, 20 * MS, 40 * MS, returned=5)
    step.kernel(POINTWISE, 40 * MS, 60 * MS, returned=6).call("cudaMalloc", 61 * MS, 90 * MS)
    found = step.kernel(TENSOR_GEMM, 92 * MS, 98 * MS).summary()
    assert [cause.id for cause in found.causes][:2] == ["compile-default", "alloc-retries"]
    part = "the largest part of its idle time went to allocating and freeing device memory"
    assert f"{part} at train.py(31): step, 29.0%" in found.verdict


def test_idle_time_is_lost_once():
    step = (
        Step()
        .kernel(TENSOR_GEMM, 0, 10 * MS)
        .call("cudaMalloc", 11 * MS, 20 * MS)
        .call("cudaStreamSynchronize", 1, 10 * MS + 5)
    )
    step.made.annotation(LOADER, 21 * MS, 30 * MS)
    step.kernel(TENSOR_GEMM, 50 * MS, 51 * MS, called=30 * MS, returned=45 * MS)
    found = step.causes()
    idle = step.summary().devices[0]
    assert sum(lost(cause) for cause in found.values()) == round(idle.idle_s * 1e9)
    assert set(found) == {"loader-bound", "sync-per-step", "alloc-retries", "host-bound", "queue-stalled"}


MISALIGNED = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(Params)"


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (MISALIGNED, {"gemm-misaligned"}),
        (MISALIGNED.replace("align1", "align2"), {"gemm-misaligned"}),
        ("cutlass_80_tensorop_d884gemm_64x32_16x4_tn_align1", set()),
        (MISALIGNED.replace("align1", "align8"), set()),
        (MISALIGNED.replace("align1", "align16"), set()),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(Params)",
            {"gemm-misaligned"},
        ),  # TF32
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align4>()", set()),
    ],
)
def test_products_that_load_one_or_two_elements_at_once_are_misaligned(kernel: str, expected: set[str]):
    step = Step().kernel(TENSOR_GEMM, 0, 80 * MS).kernel(kernel, 80 * MS, 100 * MS, returned=5)
    found = step.causes()
    assert set(found) == expected
    assert all(lost(cause) == 20 * MS for cause in found.values())


def test_a_convolution_in_a_compiled_graph_is_told_as_one():
    convolves = (
        "void implicit_convolve_sgemm<__nv_bfloat16, __nv_bfloat16, 128, 5, 5, 3, 3, 3, 1, false>(int)"
    )
    step = Step().kernel(TENSOR_GEMM, 0, 60 * MS).operator("## Call CompiledFxGraph fab ##", 0, 10 * MS)
    step.kernel(convolves, 60 * MS, 80 * MS, called=5, returned=6).kernel(
        MISALIGNED, 80 * MS, 100 * MS, called=7
    )
    found = [cause for cause in step.summary().causes if cause.id == "gemm-misaligned"]
    assert {cause.where.operator: lost(cause) for cause in found} == {
        "convolution": 20 * MS,
        "## Call CompiledFxGraph fab ##": 20 * MS,
    }


def test_copies_within_the_device_beside_which_nothing_runs_are_named():
    step = Step().kernel(TENSOR_GEMM, 0, 80 * MS).copy("Memcpy DtoD (Device -> Device)", 80 * MS, 100 * MS)
    found = step.causes()["device-copies"]
    assert lost(found) == 20 * MS
    assert found.evidence[0].startswith("DtoD copies: 1 a step")


def test_evidence_calls_kernels_by_their_short_names():
    step = Step().kernel(TENSOR_GEMM, 0, 80 * MS).kernel(MISALIGNED, 80 * MS, 100 * MS, returned=5)
    assert step.causes()["gemm-misaligned"].evidence == [
        "kernels: 1 a step, 20 ms each; the longest is cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1"  # noqa: E501
    ]


def test_evidence_does_not_repeat_the_place_of_its_cause():
    step = Step().kernel(TENSOR_GEMM, 0, 40 * MS).operator("aten::mm", 45 * MS, 69 * MS)
    found = step.kernel(TENSOR_GEMM, 70 * MS, 100 * MS).causes()["host-bound"]
    assert found.where == Place("train.py(31): step", "aten::mm")
    assert found.evidence == ["gaps: 1 a step, 30 ms at most"]


def test_times_in_evidence_are_of_a_step():
    made = Made()
    for start in (0, 100 * MS):
        made.annotation(f"ProfilerStep#{start}", start, start + 100 * MS)
        made.kernel(ALL_REDUCE, start, start + 60 * MS, correlation=start + 1)
        made.launch("cudaLaunchKernel", start, start, correlation=start + 1)
        made.kernel(TENSOR_GEMM, start + 40 * MS, start + 100 * MS, correlation=start + 2)
        made.launch("cudaLaunchKernel", start, start, correlation=start + 2)
    (found,) = summarise([made.timeline()]).causes
    assert lost(found) == 80 * MS
    assert found.evidence[:2] == [
        "collectives: 1 a step, 60 ms in all, 20 ms of it under other work",
        "40 ms a step exposed in ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ]


def test_queue_stalled_tells_apart_time_that_a_graph_waited():
    step = Step().kernel(TENSOR_GEMM, 0, 10 * MS).kernel(TENSOR_GEMM, 30 * MS, 60 * MS, called=1, returned=2)
    step.kernel(TENSOR_GEMM, 70 * MS, 100 * MS, call="cudaGraphLaunch", called=3, returned=4)
    found = step.causes()["queue-stalled"]
    assert found.evidence == [
        "gaps: 2 a step, 15 ms each, 20 ms at most",
        "10 ms a step before or between pieces of CUDA graphs, of which a recording may lack some",
    ]


def test_a_cause_that_the_verdict_has_words_for_has_a_claim():
    assert [id_ for id_, cause in CAUSES.items() if not cause.claim] == ["rank-imbalance"]
