"""What a remedy that is none leaves on a machine, and how it is found there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dynotune.doctor.machine import known, known_number
from dynotune.doctor.observation_view import Seen
from dynotune.schema.explanation import Folklore


@dataclass(frozen=True, slots=True)
class Entry:
    """One remedy.

    Args:
        trace: what of it stands on this machine, in words; "" where nothing does.
        always: mentioned beside a finding that it bears on too, which says as much.
    """

    folklore: Folklore
    trace: Callable[[Seen], str] | None = None
    always: bool = False


def differs(fact: str, name: str, *defaults: float) -> Callable[[Seen], str]:
    """A kernel setting that is at none of its defaults."""

    def trace(seen: Seen) -> str:
        value = known_number(seen, fact)
        if value is None or value in defaults:
            return ""
        return f"{name} is {value:.15g} (default {' or '.join(f'{each:.15g}' for each in defaults)})"

    return trace


def variable(name: str, *values: str) -> Callable[[Seen], str]:
    """A variable that is set, to one of `values` where any are given."""

    def trace(seen: Seen) -> str:
        value = known(seen, f"env.{name}")
        if not isinstance(value, str) or (values and value.lower() not in values):
            return ""
        return f"{name}={value}"

    return trace


def either(*traces: Callable[[Seen], str]) -> Callable[[Seen], str]:
    """All that any of them saw."""
    return lambda seen: "; ".join(filter(None, (trace(seen) for trace in traces)))


def real_time(seen: Seen) -> str:
    """A real-time kernel."""
    return "the kernel is built with PREEMPT_RT" if known(seen, "host.preempt_rt") is True else ""


def raised(fact: str, name: str, at: int, largest: int) -> Callable[[Seen], str]:
    """One number of a row of three, `tcp_rmem`, that is above its largest default: below it, memory decides."""

    def trace(seen: Seen) -> str:
        row = known(seen, fact)
        value = row[at] if isinstance(row, list) and len(row) > at else None
        if not isinstance(value, int) or value <= largest:
            return ""
        return f"the largest of {name} is {value} (default up to {largest})"

    return trace
