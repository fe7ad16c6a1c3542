"""Popular remedies that are none: finding one by its name, and by the traces it leaves on a machine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import msgspec

from dynotune.doctor.folklore_entries import ENTRIES
from dynotune.doctor.folklore_traces import Entry
from dynotune.doctor.observation_view import Seen
from dynotune.schema.explanation import Folklore

SHORTEST_PART = 4
"""Characters of a word that may stand for a longer one: `rmem` for `net.core.rmem_max`."""


def by_name(word: str) -> list[Folklore]:
    """Entries that `word` names, wholly or, where none, in part; best first."""
    asked = _plain(word)
    if not asked:
        return []
    every = [entry.folklore for entry in entries()]
    exact = [each for each in every if asked in {_plain(name) for name in [each.id, *each.about]}]
    if exact or len(asked) < SHORTEST_PART:
        return exact
    return [each for each in every if any(asked in _plain(name) for name in [each.id, *each.about])]


def about_finding(id_: str) -> list[Folklore]:
    """Entries that bear on a finding."""
    return [entry.folklore for entry in entries() if id_ in entry.folklore.bears_on]


def seen_here(seen: Seen, found: Collection[str] = ()) -> Iterator[Folklore]:
    """Entries whose traces stand on this machine, with what was seen.

    Args:
        found: ids of findings that were made: entries that bear on them have been said already.
    """
    for entry in entries():
        said = not entry.always and any(id_ in found for id_ in entry.folklore.bears_on)
        text = entry.trace(seen) if entry.trace and not said else ""
        if text:
            yield msgspec.structs.replace(entry.folklore, seen=text)


def entries() -> tuple[Entry, ...]:
    """All of them."""
    return ENTRIES


def _plain(text: str) -> str:
    """Without case, dashes, dots and spaces: people write `rmem-max` and `RMEM_MAX`."""
    return re.sub(r"[\W_]+", "", text).lower()
