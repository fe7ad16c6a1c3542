from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynotune.probe import compatibility
from dynotune.probe.gpu_code.gpu_archs import INTEGRATED
from dynotune.schema.facts import Unknown

KNOWN = {
    "torch.cuda": "13.0",
    "torch.arch_list": ["sm_75", "sm_80", "sm_90", "compute_120"],
    "gpu.cuda_driver": "13.1",
    "gpu.compute_capability": "9.0",
}


def test_a_build_that_fits():
    assert compatibility.facts(KNOWN) == {"torch.driver_ok": True, "torch.runs_natively": True}


@pytest.mark.parametrize(
    ("driver", "build", "expected"),
    [
        ("13.0", "13.0", True),
        ("12.2", "12.8", True),
        ("12.9", "13.0", False),
        ("13.0", "11.8", True),
        ("10.1", "10.2", False),
        ("10.2", "10.1", True),
    ],
)
def test_a_driver_runs_every_minor_version_of_its_major_one_from_cuda_11_on(driver, build, expected):
    assert compatibility.driver_supports(driver, build) is expected


@pytest.mark.parametrize(
    ("archs", "capability", "expected"),
    [
        (["sm_80"], "8.0", True),
        (["sm_80"], "8.9", True),
        (["sm_86"], "8.0", False),
        (["sm_80"], "9.0", False),
        (["compute_90"], "9.0", False),
        (["sm_90a"], "9.0", True),
        (["sm_120a"], "12.1", False),
        (["sm_100f"], "10.3", True),
        (["sm_100"], "12.0", False),
        ([], "9.0", False),
    ],
)
def test_machine_code_runs_on_its_major_version_from_its_minor_one_up(archs, capability, expected):
    assert compatibility.covers(archs, capability) is expected


@given(st.integers(5, 13), st.integers(0, 9), st.integers(0, 9))
def test_code_for_a_lower_minor_version_covers_whatever_the_higher_one_covers(major, low, high):
    low, high = sorted((low, high))
    assume(not {10 * major + low, 10 * major + high} & INTEGRATED)
    assert compatibility.covers([f"sm_{major}{low}"], f"{major}.{high}")
    assert low == high or not compatibility.covers([f"sm_{major}{high}"], f"{major}.{low}")


def test_a_build_without_cuda_has_no_driver_to_fit():
    facts = compatibility.facts(KNOWN | {"torch.cuda": None, "torch.arch_list": None})
    assert facts == {"torch.driver_ok": None, "torch.runs_natively": None}


@pytest.mark.parametrize("missing", sorted(KNOWN))
def test_compatibility_is_unknown_with_its_reason_when_a_fact_is_missing(missing):
    facts = compatibility.facts(KNOWN | {missing: Unknown("lost")})
    assert Unknown("lost") in facts.values()
    rest = {name: value for name, value in KNOWN.items() if name != missing}
    assert any(isinstance(value, Unknown) for value in compatibility.facts(rest).values())
