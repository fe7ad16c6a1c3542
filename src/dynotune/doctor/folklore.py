"""Popular remedies that do not help: lookup by name, and by their traces on a machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import msgspec

from dynotune.doctor.folklore_entries import ENTRIES, Entry
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.explanation import Folklore

SHORTEST_PART = 4
"""Characters of a word that may stand for a longer one: `rmem` for `net.core.rmem_max`."""


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

    `finding_ids`: of findings that were made. Entries that bear on one of these are left out.
    """
    for entry in entries():
        is_covered = not entry.always and any(id_ in finding_ids for id_ in entry.folklore.bears_on)
        text = entry.trace(view) if entry.trace and not is_covered else ""
        if text:
            yield msgspec.structs.replace(entry.folklore, seen=text)


def entries() -> tuple[Entry, ...]:
    """All of them."""
    return ENTRIES


def _plain(text: str) -> str:
    """Drop case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()
