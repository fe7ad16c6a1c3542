from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynotune.probe.gpu_code import gpu_archs
from dynotune.probe.gpu_code.gpu_archs import INTEGRATED
from dynotune.schema.device_code import Code, Container, Gpu
from dynotune.schema.errors import UsageError

CODES = st.builds(
    Code,
    st.sampled_from(("machine", "ptx", "lto", "other")),
    st.integers(50, 139),
    st.sampled_from(("", "a", "f")),
    st.just(100),
    st.integers(100, 10_000),
)


def named(*names: str) -> Container:
    found = [gpu_archs.named(name) for name in names]
    return tuple(Code(code.form, code.sm, code.suffix, 500, 1000, (8, 4)) for code in found if code)


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("sm_80", "8.0", True),
        ("sm_80", "8.9", True),
        ("sm_86", "8.0", False),
        ("sm_90", "10.0", False),
        ("sm_90a", "9.0", True),
        ("sm_100a", "10.3", False),
        ("sm_120a", "12.1", False),
        ("sm_100f", "10.3", True),
        ("sm_103f", "10.0", False),
        ("sm_100f", "11.0", False),
        ("sm_120f", "12.1", True),
        ("compute_75", "12.0", True),
        ("compute_90", "8.9", False),
        ("compute_90a", "9.0", True),
        ("compute_90a", "10.0", False),
        ("compute_100f", "10.3", True),
        ("compute_100f", "12.0", False),
        ("compute_100f", "10.1", False),
        ("compute_101f", "11.0", True),
        # Jetson and other GPUs do not run each other's machine code; their PTX is the same.
        ("sm_80", "8.7", False),
        ("sm_87", "8.9", False),
        ("sm_87", "8.7", True),
        ("compute_80", "8.7", True),
        # Thor, before and after CUDA 13 gave it another number.
        ("sm_101a", "11.0", True),
        ("sm_100", "10.1", False),
    ],
)
def test_nvidias_rules_of_which_code_runs_where(name, capability, expected):
    code = gpu_archs.named(name)
    assert code is not None and gpu_archs.runs(code, gpu_archs.sm_of(capability)) is expected


@given(CODES, st.integers(50, 139))
def test_specific_code_never_runs_where_plain_code_would_not(code, sm):
    plain = Code(code.form, code.sm, "", code.stored_bytes, code.code_bytes)
    assert gpu_archs.runs(plain, sm) or not gpu_archs.runs(code, sm)


@given(CODES, st.integers(50, 139), st.integers(1, 9))
def test_code_runs_on_the_next_minor_versions_unless_it_is_for_exactly_one(code, sm, further):
    later = min(sm + further, sm // 10 * 10 + 9)
    assume(code.suffix != "a" and not {sm, later, code.sm} & INTEGRATED)
    assert gpu_archs.runs(code, later) or not gpu_archs.runs(code, sm)


@given(st.lists(CODES, max_size=6), st.integers(50, 139))
def test_a_container_is_native_or_compiled_only_by_code_of_its_own_that_runs(codes, sm):
    verdict, code = gpu_archs.container_verdict(tuple(codes), sm)
    fitting = [each for each in codes if gpu_archs.runs(each, sm)]
    if verdict in ("native", "jit"):
        assert code in fitting
        assert (verdict == "native") is any(each.form == "machine" for each in fitting)
    else:
        assert not fitting


def test_the_newest_ptx_that_fits_is_compiled():
    container = named("compute_75", "compute_80", "compute_90a", "compute_120")
    verdict, code = gpu_archs.container_verdict(container, 100)
    assert verdict == "jit" and code is not None and code.name == "compute_80"


def test_a_library_is_not_the_union_of_its_containers():
    # Together they look as if both had code for 9.0; the second has none.
    found = gpu_archs.verdict([named("sm_80", "sm_90"), named("sm_80")], Gpu(compute_capability="9.0"))
    assert (found.verdict, found.num_native, found.num_cannot) == ("partial", 1, 1)


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([("sm_90",)], "native"),
        ([("sm_90",), ("compute_75",)], "jit"),
        ([("compute_75",), ("sm_80",)], "jit"),
        ([("sm_80",), ("compute_100",)], "cannot"),
        ([("sm_90a",), ("sm_100",)], "partial"),
        ([], "empty"),
    ],
)
def test_the_verdict_of_a_library(containers, expected):
    found = gpu_archs.verdict([named(*each) for each in containers], Gpu(compute_capability="9.0"))
    assert found.verdict == expected


def test_only_the_chosen_ptx_of_containers_without_machine_code_counts_as_compiled():
    containers = [named("sm_90", "compute_90"), named("compute_75", "compute_80"), named("compute_120")]
    found = gpu_archs.verdict(containers, Gpu(compute_capability="9.0"))
    assert (found.ptx_bytes, found.num_jit, found.num_cannot) == (1000, 1, 1)


def test_ptx_without_a_function_is_nothing_to_compile():
    empty = (Code("ptx", 75, "", 60, 56),)
    found = gpu_archs.verdict([empty], Gpu(compute_capability="9.0"))
    assert (found.verdict, found.num_empty, found.ptx_bytes) == ("empty", 1, 0)


def test_a_kind_that_is_not_known_leaves_the_verdict_open_where_nothing_else_runs():
    strange = Code("other", 90, "", 10, 10, kind=16)
    gpu = Gpu(compute_capability="9.0")
    assert gpu_archs.verdict([(strange,)], gpu).verdict == "unknown"
    assert gpu_archs.verdict([(strange, *named("sm_80"))], gpu).verdict == "unknown"
    assert gpu_archs.verdict([(strange, *named("sm_90"))], gpu).verdict == "native"
    assert strange.name == "kind16_90"


def test_ptx_that_is_newer_than_the_driver_cannot_be_compiled():
    container = (Code("ptx", 75, "", 500, 1000, (9, 0)),)
    old, new = (Gpu(compute_capability="9.0", cuda_driver=cuda) for cuda in ("12.8", "13.0"))
    found = gpu_archs.verdict([container], old)
    assert (found.verdict, found.num_too_new, found.ptx_bytes) == ("cannot", 1, 0)
    assert gpu_archs.verdict([container], new).verdict == "jit"


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [("11.8", (7, 8)), ("12.5", (8, 5)), ("12.6", (8, 5)), ("12.9", (8, 8)), ("13.2", (9, 2))],
)
def test_the_newest_ptx_of_a_driver(cuda, expected):
    assert gpu_archs.newest_ptx(cuda) == expected


def test_a_driver_of_later_cuda_than_is_known_is_not_said_to_be_too_old():
    assert gpu_archs.newest_ptx("14.0") is None


@pytest.mark.parametrize("text", ["", "9", "90.0.0", "nine", "0.1", "12.0x"])
def test_sm_of_refuses_text_that_is_no_compute_capability(text):
    with pytest.raises(UsageError):
        gpu_archs.sm_of(text)


@pytest.mark.parametrize(("text", "expected"), [("9.0", 90), ("12.1", 121), ("sm_90", 90), ("120", 120)])
def test_compute_capabilities_as_people_write_them(text, expected):
    assert gpu_archs.sm_of(text) == expected
