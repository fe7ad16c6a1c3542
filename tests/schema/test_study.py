"""What a study tells of its own values."""

from __future__ import annotations

import pytest

from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.study import Study

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
