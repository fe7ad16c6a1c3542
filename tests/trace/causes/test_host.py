"""Optimizers of programs without a device."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.trace_summary import Cause
from dynotune.trace.summary import summarise

from ..facts.test_callers import optimizer


def found(num: int, **fields: Any) -> list[Cause]:
    return [
        cause
        for cause in summarise([optimizer(num, **fields).timeline()]).causes
        if cause.id == "optimizer-forloop"
    ]


def test_many_short_operators_in_a_call_cost_what_the_fused_ones_do_not() -> None:
    (cause,) = found(150)
    assert cause.lost_s == pytest.approx(3 * (30e-3 - 10e-3))
    assert cause.work_s == pytest.approx(3 * 150 * 5e-6)
    assert cause.evidence == ["150 operators in each call of the optimizer, 5 µs each"]


@pytest.mark.parametrize(
    "fields", [{"num": 50}, {"num": 150, "name": "aten::_foreach_add_"}, {"num": 150, "length": 60_000}]
)  # few; each of many parameters; long ones
def test_other_optimizers_are_no_loop(fields: dict[str, Any]) -> None:
    assert found(**fields) == []
