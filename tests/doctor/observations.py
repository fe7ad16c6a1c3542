"""Observations made by hand, for rules: only what a test names is known."""

from __future__ import annotations

from typing import Any

from dynotune.schema.attribution import Attribution, LostTime, Shares
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import TraceSummary

NOT_ASKED = Unknown("the test does not say")


def timing(**fields: Any) -> Timing:
    """A step of 100 ms, 50 of them, unless told otherwise."""
    step_s = fields.pop("step_s", 0.1)
    usual = {
        "num_steps": 50,
        "window_s": 50 * step_s,
        "step_s": step_s,
        "median_step_s": step_s,
        "p99_step_s": step_s,
        "longest_step_s": step_s,
    }
    return Timing(**(usual | fields))


def attribution(
    *losses: LostTime,
    busy_share: float | None = None,
    without: dict[str, float] | None = None,
    **shares: float,
) -> Attribution:
    """Shares that are named; the rest is the device's."""
    parts = dict.fromkeys(("input", "transfer", "host", "communication", "other"), 0.0) | shares
    parts.setdefault("device", 1.0 - sum(parts.values()))
    return Attribution(
        shares=Shares(**parts),
        lost_time=list(losses),
        busy_share=busy_share,
        counterfactual_savings=without or {},
    )


def loss(id_: str, share: float, **fields: Any) -> LostTime:
    return LostTime(id=id_, share=share, claim="", **fields)


def observed(
    *,
    facts: Facts | None = None,
    attributed: Attribution | Unknown = NOT_ASKED,
    trace: TraceSummary | Unknown = NOT_ASKED,
    timed: Timing | Unknown = NOT_ASKED,
    **process: Any,
) -> Observation:
    """One process that makes steps; `process` are fields of ProcessState."""
    state = ProcessState(pid=1, timing=timed, **process)
    return Observation(
        command=["python"], facts=facts or {}, processes=[state], trace=trace, attribution=attributed
    )
