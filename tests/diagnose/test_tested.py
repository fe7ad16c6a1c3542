"""How findings are tested by delays: which part a finding blames, what refutes it, and what it then costs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.conclusions import conclude
from dynotune.diagnose.tested import (
    REFUTING_SLOPE,
    claimed_parts,
    sort_by_tests,
)
from dynotune.doctor import all_rules
from dynotune.schema.diagnosis import Delayed, Finding, ReadFromTrace
from dynotune.schema.facts import Unknown
from dynotune.schema.host import Collections
from dynotune.schema.trace_summary import Place

from ..doctor.devices import on_cpu
from .test_delayed import all_of, part

FAMILIES = {id_: rule.family for id_, rule in all_rules().items()}


def finding(id_="host-bound", share=0.4, severity="high", **fields):
    return Finding(id=id_, severity=severity, claim="", share=share, **fields)


def sorted_by(tests, *findings, has_device=True):
    return sort_by_tests(findings, FAMILIES, all_of(*tests), has_device=has_device)


def test_finding_is_delayed_when_its_part_has_a_slope():
    found = sorted_by([part("host", 1.0), part("device", 0.1)], finding())
    (one,) = found.standing
    assert one.tested == Delayed(
        part="host", slope=1.0, ci=pytest.approx((0.9, 1.1)), cost=pytest.approx(0.4)
    )
    assert one.share == 0.4
    assert not found.refuted


def test_delay_tests_no_cause_when_it_is_of_the_whole_part():
    tests = [part("host", 1.0), part("device", 0.1)]
    whole, cause = sorted_by(tests, finding(), finding("optimizer-forloop"), has_device=False).standing
    assert whole.tested.tests_cause and not cause.tested.tests_cause
    assert cause.tested.slope == whole.tested.slope


def test_finding_about_starts_of_workers_is_not_tested_when_the_loader_is_delayed():
    (one,) = sorted_by([part("loader", 1.0)], finding("persistent-workers")).standing
    assert one.tested == ReadFromTrace()


def test_finding_is_refuted_when_a_delay_of_its_part_disappears():
    found = sorted_by([part("host", 0.02, half=0.1), part("device", 1.0)], finding(), finding("amp-absent"))
    assert [one.id for one in found.standing] == ["amp-absent"]
    (refuted,) = found.refuted
    assert refuted.id == "host-bound"
    assert refuted.tested.slope == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("tests", "id_", "is_refuted"),
    [
        (
            [part("host", 0.15, half=0.1)],
            "host-bound",
            False,
        ),  # the interval reaches beyond the slope that refutes
        ([part("host", 0.0)], "tensor-from-list", False),  # the loader, in which it may be, was not delayed
        ([part("host", 0.0), part("loader", 0.0)], "tensor-from-list", True),
        ([part("host", 0.0), part("loader", 1.0)], "tensor-from-list", False),
        ([part("host", 0.0), part("device", 1.0)], "queue-stalled", False),
        ([part("host", 0.0)], "cpu-oversubscribed", False),  # threads that want one core: no delay tells
        ([part("host", 0.0)], "validation-often", False),
        ([part("host", 0.0)], "gpu-power-capped", False),
    ],
)
def test_finding_is_refuted_only_when_all_parts_that_it_may_blame_are(tests, id_, is_refuted):
    found = sorted_by(tests, finding(id_))
    assert bool(found.refuted) == is_refuted


def test_finding_is_read_from_the_trace_when_nothing_tested_it():
    found = sort_by_tests([finding()], FAMILIES, Unknown("not asked for"), has_device=True)
    assert found.standing[0].tested == ReadFromTrace()


def test_finding_is_read_from_the_trace_when_its_test_did_not_decide():
    found = sorted_by([part("host", 0.6, half=9.0)], finding())
    assert found.standing[0].tested == ReadFromTrace()
    assert found.standing[0].share == 0.4


def test_finding_has_no_test_when_it_is_not_about_speed():
    found = sorted_by([part("host", 0.0)], finding("gc-jitter", kind="jitter"))
    assert found.standing[0].tested is None


def test_operators_are_tested_by_the_host_when_there_is_no_device():
    assert claimed_parts("amp-absent", "precision", has_device=False) == {"host"}
    assert claimed_parts("small-operators", "work", has_device=False) == {"host"}
    assert claimed_parts("amp-absent", "precision", has_device=True) == {"device"}


def test_place_decides_when_it_was_delayed_itself():
    here = Place("train.py(31): prepared")
    of_place = part("function", 0.3, half=0.1)
    own = msgspec.structs.replace(of_place, place=here.function)
    found = sorted_by([part("host", 1.0), own], finding("built-per-step", where=here))
    (one,) = found.standing
    assert one.tested.part == "function"
    assert one.share == pytest.approx(0.4 * 0.4)
    assert one.severity == "high"


@given(st.floats(-0.5, 2), st.floats(0.01, 1), st.floats(0.01, 0.9))
def test_share_is_never_above_what_the_slope_allows_when_it_is_delayed(slope, half, share):
    found = sorted_by([part("host", slope, half=half)], finding(share=share))
    assert bool(found.refuted) == (slope + half < REFUTING_SLOPE)
    for one in found.standing:
        assert one.share <= share
        if one.tested == ReadFromTrace():
            assert one.share == share
            continue
        assert one.share == pytest.approx(share * min(1.0, max(0.0, slope + half)), abs=1e-6)
        assert one.tested.cost <= share


def test_diagnosis_lists_refuted_findings_apart_when_delays_were_timed():
    seen = on_cpu(collections=Collections(num=9, num_oldest=9, total_s=3.0, longest_s=0.4))
    findings = {one.id for one in conclude(seen).findings}
    assert "gc-jitter" in findings
    delays = all_of(part("host", 0.0), part("loader", 1.0))
    told = conclude(msgspec.structs.replace(seen, delays=delays))
    assert "gc-jitter" in {one.id for one in told.refuted}
    assert "gc-jitter" not in {one.id for one in told.findings}
