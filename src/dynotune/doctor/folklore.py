"""Popular remedies that are none: finding one by its name, and by the traces it leaves on a machine."""

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
        trace: what of it stands on this machine, in words; "" where nothing does.
        always: mentioned beside a finding that it bears on too, which says as much.
    """

    folklore: Folklore
    trace: Callable[[ObservationView], str] | None = None
    always: bool = False


def by_name(word: str) -> list[Folklore]:
    """Entries that `word` names, wholly or, where none, in part; best first."""
    plain = _plain(word)
    if not plain:
        return []
    every = [entry.folklore for entry in entries()]
    exact = [each for each in every if plain in {_plain(name) for name in [each.id, *each.about]}]
    if exact or len(plain) < SHORTEST_PART:
        return exact
    return [each for each in every if any(plain in _plain(name) for name in [each.id, *each.about])]


def about_finding(id_: str) -> list[Folklore]:
    """Entries that bear on a finding."""
    return [entry.folklore for entry in entries() if id_ in entry.folklore.bears_on]


def seen_here(view: ObservationView, finding_ids: Collection[str] = ()) -> Iterator[Folklore]:
    """Entries whose traces stand on this machine, with what was seen.

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
    """Without case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()


# Traces


def differs(fact: str, name: str, *defaults: float) -> Callable[[ObservationView], str]:
    """A kernel setting that is at none of its defaults."""

    def trace(view: ObservationView) -> str:
        value = number_or_none(view, fact)
        if value is None or value in defaults:
            return ""
        return f"{name} is {value:.15g} (default {' or '.join(f'{each:.15g}' for each in defaults)})"

    return trace


def variable(name: str, *values: str) -> Callable[[ObservationView], str]:
    """A variable that is set, to one of `values` where any are given."""

    def trace(view: ObservationView) -> str:
        value = fact_or_none(view, f"env.{name}")
        if not isinstance(value, str) or (values and value.lower() not in values):
            return ""
        return f"{name}={value}"

    return trace


def either(*traces: Callable[[ObservationView], str]) -> Callable[[ObservationView], str]:
    """All that any of them saw."""
    return lambda view: "; ".join(filter(None, (trace(view) for trace in traces)))


def real_time(view: ObservationView) -> str:
    """A real-time kernel."""
    return "the kernel is built with PREEMPT_RT" if fact_or_none(view, "host.preempt_rt") is True else ""


def raised(fact: str, name: str, at: int, largest: int) -> Callable[[ObservationView], str]:
    """One number of a row of three, `tcp_rmem`, that is above its largest default: below it, memory decides."""

    def trace(view: ObservationView) -> str:
        row = fact_or_none(view, fact)
        value = row[at] if isinstance(row, list) and len(row) > at else None
        if not isinstance(value, int) or value <= largest:
            return ""
        return f"the largest of {name} is {value} (default up to {largest})"

    return trace
