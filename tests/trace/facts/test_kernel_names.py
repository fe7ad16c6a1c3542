"""What the names of kernels tell, on names that were recorded or published."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dynotune.trace.facts import kernel_names
from dynotune.trace.facts.kernel_names import (
    CLASSES,
    classify,
    is_of_half,
    uses_tensor_cores,
    without_arguments,
)

from ..recorded import FOLDER, raw

HERE = Path(__file__).parents[1]
# Where from, class, name: use of tensor cores. Each was verified by eye, copies and casts by the types of the
# tensors. Those of the nine traces are all that occur there.
NAMES: dict[str, dict[str, dict[str, int]]] = json.loads((HERE / "kernel_names.json").read_text())
RECORDED = {name: kind for kind, of_kind in NAMES["nine recorded traces"].items() for name in of_kind}


def as_nsight_writes(name: str) -> str:
    name = re.sub(r"\{lambda\((.*?)\)#(\d+)\}", r"[lambda(\1) (instance \2)]", name).replace(
        "operator()()", "operator ()()"
    )
    return re.sub(r"<(\d+), (\d+)", r"<(int)\1, (int)\2", name).replace("(anonymous namespace)", "<unnamed>")


def strided_copy(impl: str, unroll: int, dispatch: int, of: str) -> str:
    """A strided copy as torch instantiates it."""
    inner = (
        f"at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{{lambda()#{dispatch}}}::operator()() const::"  # noqa: E501
        f"{{lambda()#7}}::operator()() const::{{lambda({of})#1}}"
    )
    outer = f"at::native::{impl}<{inner}>(at::TensorIteratorBase&, {inner} const&)::{{lambda(int)#1}}"
    return f"void at::native::elementwise_kernel<128, {unroll}, {outer}>(int, {outer})"


@pytest.mark.parametrize(("source", "kind"), [(source, kind) for source in NAMES for kind in NAMES[source]])
def test_a_kernel_has_the_class_that_was_verified_by_eye(source: str, kind: str) -> None:
    names = list(NAMES[source][kind])
    assert [CLASSES[index] for index in classify(names)] == [kind] * len(names)


@pytest.mark.parametrize(("source", "kind"), [(source, kind) for source in NAMES for kind in NAMES[source]])
def test_a_name_tells_of_tensor_cores_as_was_verified_by_eye(source: str, kind: str) -> None:
    names = list(NAMES[source][kind])
    assert dict(zip(names, uses_tensor_cores(names).tolist(), strict=True)) == NAMES[source][kind]


@pytest.mark.parametrize(
    ("impl", "unroll", "dispatch", "of", "kind"),
    [
        ("gpu_kernel_impl", 4, 3, "float", "cast"),
        ("gpu_kernel_impl", 4, 3, "c10::BFloat16", "cast"),
        ("gpu_kernel_impl_nocast", 4, 3, "c10::BFloat16", "copy"),
        ("gpu_kernel_impl_nocast", 2, 3, "float", "copy"),
        # Before torch 2.0.
        ("gpu_kernel_impl", 2, 2, "float", "copy"),
        ("gpu_kernel_impl", 4, 2, "c10::Half", "copy"),
        ("gpu_kernel_impl", 4, 2, "float", "cast"),
    ],
)
def test_a_strided_copy_tells_whether_it_casts(
    impl: str, unroll: int, dispatch: int, of: str, kind: str
) -> None:
    name = strided_copy(impl, unroll, dispatch, of)
    assert [CLASSES[index] for index in classify([name, as_nsight_writes(name)])] == [kind, kind]


def test_nsight_spells_names_otherwise_and_they_tell_the_same() -> None:
    names = [name for of_source in NAMES.values() for of_kind in of_source.values() for name in of_kind]
    assert classify([as_nsight_writes(name) for name in names]).tolist() == classify(names).tolist()


def test_convolutions_of_amd_on_matrix_cores_are_no_slow_ones() -> None:
    names = [
        "igemm_fwd_gtcx2_nhwc_fp16_bx0_ex0_bt128x128x32",
        "igemm_wrw_gtcx3_nhwc_bf16_bx0",
        "miopen_xdlops_conv",
    ]
    assert [CLASSES[index] for index in classify(names)] == ["convolution"] * 3
    assert uses_tensor_cores(names).tolist() == [1, 1, 1]


def test_products_that_cublas_names_itself_tell_their_types() -> None:
    names = ["nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT"]
    assert all(is_of_half(name) for name in (*names, "nvjet_sm90_qqtst_64x8_128x16_1x2_h_bz_algo2_TNT"))
    assert not is_of_half("nvjet_sm90_sss_64x8_64x16_1x2_h_bz_NNT")


def test_a_kernel_of_fbgemm_is_no_matrix_product_for_its_name() -> None:
    assert CLASSES[classify(["void fbgemm_gpu::some_new_kernel<float>"])[0]] == "other"


def test_every_kernel_of_the_recorded_traces_is_of_a_known_kind() -> None:
    assert "other" not in RECORDED.values()


def test_every_class_that_a_name_can_tell_has_an_example() -> None:
    assert {kind for of_source in NAMES.values() for kind in of_source} == set(CLASSES) - {"attention-math"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json.gz")), ids=lambda path: path.name)
def test_the_list_holds_every_kernel_of_the_traces_and_arguments_change_nothing(path: Path) -> None:
    events = raw(path.name.removesuffix(".json.gz"))
    names = sorted({event["name"] for event in events if str(event.get("cat")).lower() == "kernel"})
    assert [CLASSES[index] for index in classify(names)] == [
        RECORDED[without_arguments(name)] for name in names
    ]


@pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the recorded traces are not here; DYNOTUNE_TRACES names their folder"
)
def test_the_recorded_traces_are_nine() -> None:
    assert len(list(FOLDER.glob("*.json.gz"))) == 9


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ncclKernel_AllReduce(ncclDevComm*)", "ncclKernel_AllReduce"),
        ("void f<g(int)::{lambda(int)#1}>(int, h<(a)3>)", "void f<g(int)::{lambda(int)#1}>"),
        ("void (anonymous namespace)::f<int>(int)", "void (anonymous namespace)::f<int>"),
        ("ampere_sgemm_32x32_tn", "ampere_sgemm_32x32_tn"),
        ("cut short(at::Tens", "cut short(at::Tens"),
        ("f)(", "f)("),
        ("f)", "f)"),
        ("(x)", "(x)"),
    ],
)
def test_a_name_is_cut_before_its_last_list_of_arguments(name: str, short: str) -> None:
    assert without_arguments(name) == short


def test_a_name_is_told_the_same_wherever_it_stands_in_the_list() -> None:
    names = list(RECORDED)
    assert classify(names[::-1]).tolist() == classify(names).tolist()[::-1]
    assert classify([]).tolist() == []


def test_each_name_is_judged_once_however_many_a_trace_has(monkeypatch):
    monkeypatch.setattr(kernel_names, "_COMPILED", ())
    names = [f"kernel_of_its_own_{number}" for number in range(70_000)]
    before = kernel_names.class_of.cache_info().misses
    for _ in range(3):
        kernel_names.classify(names)
    assert kernel_names.class_of.cache_info().misses - before == len(names)
    kernel_names.class_of.cache_clear()
