"""Popular remedies that do not help: lookup by name, and by their traces on a machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from dynotune.doctor.machine import fact_or_none, number_or_none
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.explanation import Folklore

SHORTEST_PART = 4
"""Characters of a word that may stand for a longer one: `rmem` for `net.core.rmem_max`."""


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


def by_name(word: str) -> list[Folklore]:
    """Return the entries that `word` names wholly; if there are none, those that it names in part."""
    plain = _plain(word)
    if not plain:
        return []
    every = [entry.folklore for entry in entries()]
    exact = [each for each in every if plain in {_plain(name) for name in [each.id, *each.about]}]
    if exact or len(plain) < SHORTEST_PART:
        return exact
    return [each for each in every if any(plain in _plain(name) for name in [each.id, *each.about])]


def about_finding(id_: str) -> list[Folklore]:
    """Return the entries that bear on a finding."""
    return [entry.folklore for entry in entries() if id_ in entry.folklore.bears_on]


def seen_here(view: ObservationView, finding_ids: Collection[str] = ()) -> Iterator[Folklore]:
    """Yield the entries whose traces are on this machine, with the trace.

    Args:
        finding_ids: of findings that were made. Entries that bear on one of these are left out.
    """
    for entry in entries():
        is_covered = not entry.always and any(id_ in finding_ids for id_ in entry.folklore.bears_on)
        text = entry.trace(view) if entry.trace and not is_covered else ""
        if text:
            yield msgspec.structs.replace(entry.folklore, seen=text)


def entries() -> tuple[Entry, ...]:
    """All of them."""
    from dynotune.doctor.folklore_entries import ENTRIES

    return ENTRIES


def _plain(text: str) -> str:
    """Drop case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()


# Traces


def differs(fact: str, name: str, *defaults: float) -> Callable[[ObservationView], str]:
    """Make a trace of a kernel setting that is at none of its defaults."""

    def trace(view: ObservationView) -> str:
        value = number_or_none(view, fact)
        if value is None or value in defaults:
            return ""
        return f"{name} is {value:.15g} (default {' or '.join(f'{each:.15g}' for each in defaults)})"

    return trace


def variable(name: str, *values: str) -> Callable[[ObservationView], str]:
    """Make a trace of a variable that is set, to one of `values` if any are given."""

    def trace(view: ObservationView) -> str:
        value = fact_or_none(view, f"env.{name}")
        if not isinstance(value, str) or (values and value.lower() not in values):
            return ""
        return f"{name}={value}"

    return trace


def either(*traces: Callable[[ObservationView], str]) -> Callable[[ObservationView], str]:
    """Make a trace that joins those of all."""
    return lambda view: "; ".join(filter(None, (trace(view) for trace in traces)))


def real_time(view: ObservationView) -> str:
    """Return the trace of a real-time kernel."""
    return "the kernel is built with PREEMPT_RT" if fact_or_none(view, "host.preempt_rt") is True else ""


def raised(fact: str, name: str, at: int, largest: int) -> Callable[[ObservationView], str]:
    """Make a trace of a number in a row, `tcp_rmem`, above its largest default. Below, it depends on memory."""

    def trace(view: ObservationView) -> str:
        row = fact_or_none(view, fact)
        value = row[at] if isinstance(row, list) and len(row) > at else None
        if not isinstance(value, int) or value <= largest:
            return ""
        return f"the largest of {name} is {value} (default up to {largest})"

    return trace
