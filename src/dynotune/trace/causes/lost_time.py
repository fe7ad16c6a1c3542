"""Time lost to a cause, and the code places at which time was lost."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dynotune.schema.trace_summary import Place
from dynotune.trace.causes.figures import time_per_step
from dynotune.trace.facts.rank_facts import RankFacts
from dynotune.trace.facts.source_locations import PlaceRows
from dynotune.trace.timeline import UNKNOWN, Ints

APART_SHARE = 0.05
"""A code place with this share of the time window is its own cause; smaller places of a kind are combined."""
SAID_SHARE = 0.02
"""Least share of a cause's lost time for a code place to be listed."""


@dataclass(frozen=True, slots=True)
class LostTime:
    """Time lost to one cause at one place.

    Args:
        lost_ns: lost nanoseconds, as docs/reference/trace.md defines them for each cause.
        evidence: the figures from which the lost time follows.
        work_ns: nanoseconds of `lost_ns` in which the device worked, for causes that also include idle time.
        claim: one sentence on the cause, without the figure; "" for the sentence in causes.toml.
    """

    id: str
    lost_ns: int
    where: Place
    evidence: tuple[str, ...] = ()
    work_ns: int = 0
    claim: str = ""


def in_window(facts: RankFacts, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return how many nanoseconds of each span lie inside the time window."""
    inside: Ints = np.maximum(np.minimum(end_ns, facts.window[1]) - np.maximum(start_ns, facts.window[0]), 0)
    return inside


def launched_at(facts: RankFacts, rows: Ints, weight_ns: Ints) -> Place:
    """Return the code place that queued the most of the given device spans, counted by weight."""
    launch = facts.timeline.device.launch[rows]
    known = launch != UNKNOWN
    calls, of_row = np.unique(launch[known], return_inverse=True)
    if not len(calls):
        return Place()
    weight_of_call = np.bincount(of_row, weights=weight_ns[known]).astype(np.int64)
    return heaviest(facts, facts.places.of_calls(calls), weight_of_call)


def heaviest(facts: RankFacts, found: PlaceRows, weight: Ints) -> Place:
    """Return the function with the most weight among the places, and its heaviest operator and CUDA call."""
    chosen = np.arange(len(weight))
    for names in (found.function, found.operator, found.call):
        _, of_row = np.unique(names[chosen], return_inverse=True)
        chosen = chosen[of_row == np.argmax(np.bincount(of_row, weights=weight[chosen]))]
    return facts.places.texts(found.of(chosen[:1]))[0]


def by_place(facts: RankFacts, found: PlaceRows, lost_ns: Ints) -> Iterator[tuple[Place, Ints]]:
    """Yield places with their rows: each place with much time of the window, then all other places together.

    A place is a function if the function is known, else an operator. The other places together are named
    after the place that has more than half of their time, if there is one.
    """
    key = np.where(found.function != UNKNOWN, found.function, found.operator)
    keys, of_row = np.unique(key, return_inverse=True)
    total = np.bincount(of_row, weights=lost_ns, minlength=len(keys))
    apart = (total >= APART_SHARE * facts.window_ns) & (keys != UNKNOWN)
    largest_first = [index for index in np.argsort(-total, kind="stable").tolist() if apart[index]]
    groups = [np.flatnonzero((of_row == index) & (lost_ns > 0)) for index in largest_first]
    others = np.flatnonzero(~apart[of_row] & (lost_ns > 0))
    for rows in (*groups, others):
        if not len(rows):
            continue
        one = rows is not others or 2 * total[of_row[rows]].max() > lost_ns[rows].sum()
        yield heaviest(facts, found.of(rows), lost_ns[rows]) if one else Place(), rows


def largest_places(
    facts: RankFacts,
    found: PlaceRows,
    lost_ns: Ints,
    where: Place,
    most: int = 3,
) -> list[str]:
    """Return the places with the most lost time, as text.

    The list is empty if all time is lost at `where`, which the cause already names.
    """
    totals: dict[Place, int] = {}
    for place, lost in zip(facts.places.texts(found), lost_ns.tolist(), strict=True):
        totals[place] = totals.get(place, 0) + lost
    least = max(1, SAID_SHARE * sum(totals.values()))
    ranked = [(place, total) for place, total in totals.items() if total >= least]
    ranked.sort(key=lambda item: (-item[1], _in_words(item[0])))
    if [place for place, _ in ranked] == [where]:
        return []
    return [f"{time_per_step(facts, total)} at {_in_words(place)}" for place, total in ranked[:most]]


def _in_words(place: Place) -> str:
    parts = (place.call, place.operator, place.function)
    return " in ".join(part for part in parts if part) or "an unknown place"
