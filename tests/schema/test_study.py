"""What a study tells of its own values."""

from __future__ import annotations

import pytest

from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.diagnosis import Diagnosis, Finding, ReadFromTrace, Switched
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, Study

from ..fakes import spec

PAIR = Pair("baseline", 1.0, 0.5)


def study(unit, *blocks):
    within = [
        Comparison(id="", run=spec(), candidate_settings=[], max_pairs=12, facts={}, unit=of, pairs=pairs)
        for of, pairs in blocks
    ]
    return Study(id="x", run=spec(), budget_s=60.0, candidates=[], unit=unit, within=within)


@pytest.mark.parametrize(
    ("unit", "blocks", "expected"),
    [
        ("s/step", [], "step"),
        ("J/step", [], "step"),
        ("s/sample", [("step", [PAIR])], "sample"),
        ("", [("step", [PAIR])], "step"),
        ("", [("sample", [PAIR]), ("step", [PAIR])], "step"),
        ("", [("step", [])], "sample"),
        ("", [], "sample"),
    ],
)
def test_values_are_per_step_when_fresh_runs_or_else_blocks_say_so(unit, blocks, expected):
    assert study(unit, *blocks).per == expected


def diagnosed(*within):
    findings = [
        Finding(id=id_, severity="high", claim="", share=0.3, tested=ReadFromTrace())
        for id_ in ("num-workers-zero", "amp-absent")
    ]
    found = Diagnosis(
        command=[],
        verdict="",
        bottleneck="input",
        shares=Unknown(""),
        findings=findings,
        unknown=[],
        steps=Unknown(""),
    )
    workers = Candidate(setting=Setting("loader.num_workers", 2), effect="sampling", why=["num-workers-zero"])
    return Study(
        id="x",
        run=spec(),
        budget_s=60.0,
        diagnosis=found,
        candidates=[workers],
        within=[in_blocks(*one) for one in within],
    )


def in_blocks(speedup, setting, only_chooses=""):
    return Comparison(
        id="", run=spec(), candidate_settings=[setting], speedup=speedup, ci=(speedup - 0.1, speedup + 0.1),
        num_pairs=4, within=True, only_chooses=only_chooses,
    )  # fmt: skip


def test_finding_is_switched_when_its_candidate_ran_in_blocks():
    first, second = diagnosed((1.4, Setting("loader.num_workers", 2))).findings
    assert first.tested == Switched(
        arm="loader.num_workers=2", speedup=1.4, ci=(1.4 - 0.1, 1.4 + 0.1), num_blocks=4
    )
    assert second.tested == ReadFromTrace()


@pytest.mark.parametrize(
    "within",
    [
        [],
        [(1.4, Setting("precision.autocast", "bf16"))],
        [(1.4, Setting("loader.num_workers", 2), "the baseline changed")],
    ],
)
def test_finding_stays_as_it_was_when_no_block_tested_its_candidate(within):
    assert diagnosed(*within).findings[0].tested == ReadFromTrace()
