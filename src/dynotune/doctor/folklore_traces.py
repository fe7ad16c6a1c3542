"""Traces that a popular remedy leaves on a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.explanation import Folklore


@dataclass(frozen=True, slots=True)
class Entry:
    """One remedy.

    Args:
        trace: returns the remedy's trace on this machine, in words; "" if there is none.
        always: shown even beside a finding that it bears on.
    """

    folklore: Folklore
    trace: Callable[[ObservationView], str] | None = None
    always: bool = False


def differs(fact: str, name: str, *defaults: float) -> Callable[[ObservationView], str]:
    """Make a trace of a kernel setting that is at none of its defaults."""

    def trace(view: ObservationView) -> str:
        value = view.number_or_none(fact)
        if value is None or value in defaults:
            return ""
        return f"{name} is {value:.15g} (default {' or '.join(f'{each:.15g}' for each in defaults)})"

    return trace


def variable(name: str, *values: str) -> Callable[[ObservationView], str]:
    """Make a trace of a variable that is set, to one of `values` if any are given."""

    def trace(view: ObservationView) -> str:
        value = view.fact_or_none(f"env.{name}")
        if not isinstance(value, str) or (values and value.lower() not in values):
            return ""
        return f"{name}={value}"

    return trace


def either(*traces: Callable[[ObservationView], str]) -> Callable[[ObservationView], str]:
    """Make a trace that joins those of all."""
    return lambda view: "; ".join(filter(None, (trace(view) for trace in traces)))


def real_time(view: ObservationView) -> str:
    """Return the trace of a real-time kernel."""
    return "the kernel is built with PREEMPT_RT" if view.fact_or_none("host.preempt_rt") is True else ""


def raised(fact: str, name: str, at: int, largest: int) -> Callable[[ObservationView], str]:
    """Make a trace of a number in a row, `tcp_rmem`, above its largest default. Below, it depends on memory."""

    def trace(view: ObservationView) -> str:
        row = view.fact_or_none(fact)
        value = row[at] if isinstance(row, list) and len(row) > at else None
        if not isinstance(value, int) or value <= largest:
            return ""
        return f"the largest of {name} is {value} (default up to {largest})"

    return trace
