"""What fusing could spare: of rows of kernels, all but the longest."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.schema.trace_summary import Kernels
from dynotune.trace.facts.fusion import fusable_ns
from dynotune.trace.summary import summarise

from ..made import Made
from ..recorded import timeline_of

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)"
CAST = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}, at::native::memory::LoadWithCast<1>, "
    "at::native::memory::StoreWithCast<1>>(int)"
)
DROPOUT = "void at::native::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(float)"
SOFTMAX = "void softmax_warp_forward<float, float, float, 11, false, false>(float*, float const*, int)"
LOSS = "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)"
STATISTICS = (
    "void at::native::batch_norm_collect_statistics_kernel<at::native::Var, float, float, float, int>(float)"
)
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>(int)"
FUSED = (POINTWISE, CAST, DROPOUT, SOFTMAX, LOSS, STATISTICS)
KINDS = (*FUSED, GEMM, ADAM)

Row = tuple[str, int]


def one_after_the_other(*kernels: Row, stream: int = 7, made: Made | None = None) -> Made:
    """Kernels of so many nanoseconds from 0 on, without a pause."""
    made, at = made or Made(), 0
    for name, length in kernels:
        made.kernel(name, at, at + length, stream=stream)
        at += length
    return made


def fusable(made: Made, window: tuple[int, int] = (0, 1_000_000)) -> int | None:
    return fusable_ns(made.timeline(), window)


def test_conversions_random_numbers_and_softmax_are_in_the_rows() -> None:
    made = one_after_the_other(
        (GEMM, 500),
        (CAST, 10),
        (POINTWISE, 30),
        (DROPOUT, 21),
        (GEMM, 500),
        (CAST, 7),
        (SOFTMAX, 40),
        (LOSS, 2),
    )
    assert fusable(made) == (10 + 21) + (7 + 2)


@pytest.mark.parametrize("name", FUSED)
def test_a_kernel_that_stands_alone_spares_nothing(name: str) -> None:
    assert fusable(one_after_the_other((GEMM, 50), (name, 30), (GEMM, 50), (name, 20), (ADAM, 60))) == 0


@pytest.mark.parametrize("name", [GEMM, ADAM])
def test_products_and_what_is_fused_by_hand_end_a_row_and_are_not_counted(name: str) -> None:
    assert fusable(one_after_the_other((CAST, 10), (name, 50), (name, 50), (POINTWISE, 30), (CAST, 4))) == 4


def test_a_sum_over_the_batch_is_the_last_of_its_row() -> None:
    assert fusable(one_after_the_other((CAST, 10), (STATISTICS, 20), (POINTWISE, 30), (CAST, 5))) == 10 + 5


def test_rows_are_of_one_stream_and_of_the_part_inside_the_window() -> None:
    made = one_after_the_other((CAST, 10), (POINTWISE, 30))
    one_after_the_other((CAST, 16), (POINTWISE, 25), stream=8, made=made)
    assert fusable(made) == 10 + 16
    # Of the first row 4 and 18 are inside, of the second 10 and 12.
    assert fusable(made, (6, 28)) == 4 + 10


def test_fusion_is_known_whatever_part_of_the_time_the_rows_take() -> None:
    made = one_after_the_other((GEMM, 1000), (CAST, 4), (POINTWISE, 6)).operator("aten::add", 0, 1010)
    summary = summarise([made.timeline()])
    assert summary.kernels[0].fusable_s == 4e-9
    assert "compile-default" not in {cause.id for cause in summary.causes}


def test_no_kernels_spare_nothing_and_without_a_device_nothing_is_said() -> None:
    assert fusable(Made().copy("Memcpy HtoD (Pinned -> Device)", 0, 10)) == 0
    assert summarise([Made().operator("aten::add", 0, 10).timeline()]).kernels == []


def test_kernels_of_graphs_that_were_recorded_whole_leave_it_unknown() -> None:
    timeline = one_after_the_other((CAST, 10), (POINTWISE, 30)).operator("aten::add", 0, 40).timeline()
    timeline = dataclasses.replace(timeline, missing={"kernels_in_graphs": "CUDA graphs were recorded whole"})
    summary = summarise([timeline])
    assert summary.kernels[0].fusable_s is None
    assert "kernels_in_graphs" in summary.unknown


def test_a_record_of_before_reads_as_not_known() -> None:
    summary = summarise(
        [one_after_the_other((CAST, 10), (POINTWISE, 30)).operator("aten::add", 0, 40).timeline()]
    )
    record = msgspec.to_builtins(summary.kernels[0])
    assert record.pop("fusable_s") == 10e-9
    assert msgspec.convert(record, Kernels).fusable_s is None


@given(
    kernels=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(1, 100), st.sampled_from((7, 8))), max_size=40
    )
)
def test_fusion_is_the_sum_row_by_row(kernels: list[tuple[str, int, int]]) -> None:
    made, expected = Made(), 0
    for stream in (7, 8):
        of_stream = [(name, length) for name, length, on in kernels if on == stream]
        one_after_the_other(*of_stream, stream=stream, made=made)
        row: list[int] = []
        for name, length in [*of_stream, (GEMM, 0)]:
            if name in FUSED:
                row.append(length)
            if name not in FUSED or name == STATISTICS:
                expected += sum(row) - max(row, default=0)
                row = []
    assert fusable(made) == expected


@pytest.mark.parametrize("name", ["h100-qwen1.5-0.5b", "h100-timesformer"])
def test_of_recorded_traces_it_is_a_part_of_the_kernels_that_it_is_of(name: str) -> None:
    found = summarise([timeline_of(name)]).kernels[0]
    of_rows = sum(
        row.total_s
        for row in found.classes
        if row.name
        in ("elementwise", "normalisation", "reduction", "cast", "random", "softmax", "attention-math")
    )
    assert found.fusable_s is not None
    assert 0 < found.fusable_s < of_rows
