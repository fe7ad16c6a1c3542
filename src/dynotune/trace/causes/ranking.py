"""Rank the causes of lost time, and write the verdict in one sentence. docs/reference/trace.md defines the
ranking."""

from collections.abc import Sequence

import numpy as np

from dynotune.schema.causes import CAUSES
from dynotune.schema.trace_summary import (
    RANK_PHASES,
    Cause,
    Operator,
    Place,
    RankPhase,
    Ranks,
    Shares,
    Straggler,
)
from dynotune.trace.causes import host, idle, work
from dynotune.trace.causes.figures import duration, percent, time_per_step
from dynotune.trace.causes.idle import LOW_BUSY_SHARE
from dynotune.trace.causes.lost_time import LostTime, in_window
from dynotune.trace.facts import intervals, rank_phases
from dynotune.trace.facts.host_names import STEP
from dynotune.trace.facts.idle import working_thread
from dynotune.trace.facts.rank_facts import RankFacts
from dynotune.trace.timeline import HostKind

MIN_SHARE = 0.01
"""Smallest share of the time window for a cause to be listed. Smaller losses are within the variation between
steps."""

_PHASES = {"input": "its input", "upload": "copies to its device", "other": "other work"}


def causes(ranks: Sequence[RankFacts], compared: Ranks | None) -> list[Cause]:
    """Return causes that take at least a hundredth of their rank's time window, largest loss first.

    Losses with the same id and place are one cause. Ranks run in parallel, so the loss of an id is the
    largest loss of any rank, as a share of that rank's time window.
    """
    found: dict[str, list[Cause]] = {}
    for facts in ranks:
        if facts.window_ns:
            for cause, rows in _of_rank(facts, named_rank=len(ranks) > 1).items():
                if sum(row.share for row in rows) > sum(row.share for row in found.get(cause, [])):
                    found[cause] = rows
    listed = [cause for rows in (*found.values(), _imbalance(ranks, compared)) for cause in rows]
    listed = [cause for cause in listed if cause.share >= MIN_SHARE]
    return sorted(listed, key=lambda cause: (-cause.share, cause.id, _words(cause.where)))


def _of_rank(facts: RankFacts, *, named_rank: bool) -> dict[str, list[Cause]]:
    merged: dict[tuple[str, Place], list[LostTime]] = {}
    waits = idle.losses(facts) if facts.busiest is not None else host.losses(facts)
    for loss in (*waits, *work.losses(facts)):
        merged.setdefault((loss.id, loss.where), []).append(loss)
    suffix = [f"rank {facts.timeline.rank}"] if named_rank and facts.timeline.rank is not None else []
    rows: dict[str, list[Cause]] = {}
    for (cause, where), losses in merged.items():
        lost_ns = sum(loss.lost_ns for loss in losses)
        rows.setdefault(cause, []).append(
            Cause(
                id=cause,
                lost_s=lost_ns / 1e9,
                share=lost_ns / facts.window_ns,
                claim=losses[0].claim or CAUSES[cause].claim,
                where=where,
                evidence=[line for loss in losses for line in loss.evidence] + suffix,
                work_s=sum(loss.work_ns for loss in losses) / 1e9,
            )
        )
    return rows


def _imbalance(ranks: Sequence[RankFacts], compared: Ranks | None) -> list[Cause]:
    """Return, for the rank that waits most, the time that the rank waits for stragglers."""
    if compared is None or not compared.stragglers:
        return []
    rows, late = [], {one.rank for one in compared.stragglers}
    for facts, row in zip(ranks, compared.ranks, strict=True):
        if row.waits_s is not None and row.rank not in late and facts.window_ns:
            waits = time_per_step(facts, row.waits_s * 1e9)
            evidence = [f"rank {row.rank} waits {waits} in collectives before the last rank joins"]
            if compared.imbalance is not None:
                evidence.append(
                    f"the busiest rank computes {compared.imbalance:.2f} times as long as the idlest"
                )
            rows.append(
                Cause(
                    id="rank-imbalance",
                    lost_s=row.waits_s,
                    share=row.waits_s * 1e9 / facts.window_ns,
                    claim=_who_is_late(compared.stragglers),
                    where=_late_at(ranks, compared),
                    evidence=evidence,
                )
            )
    return sorted(rows, key=lambda cause: -cause.share)[:1]


def _who_is_late(stragglers: Sequence[Straggler]) -> str:
    told = []
    for one in stragglers:
        if one.late_s is None:
            return f"The other ranks wait for rank {one.rank} in collectives."
        named = " and ".join(_PHASES.get(phase, phase) for phase in one.phases)
        where = f"in {named} each step" if named else "each step, in which phase is not known"
        told.append(f"rank {one.rank} is {duration(one.late_s * 1e9)} late {where}")
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}: the others wait."


def _late_at(ranks: Sequence[RankFacts], compared: Ranks) -> Place:
    """Return the place that causes most of the slowest rank's delay, if the rank is late in only one
    phase."""
    slowest, late = compared.stragglers[0], {one.rank for one in compared.stragglers}
    if len(slowest.phases) != 1 or slowest.late_s is None:
        return Place()
    rows = zip(ranks, compared.ranks, strict=True)
    of_rank = {row.rank: _places_of(facts, slowest.phases[0]) for facts, row in rows}
    own, others = of_rank[slowest.rank], [places for rank, places in of_rank.items() if rank not in late]
    beyond = {
        place: ns - float(np.median([one.get(place, 0.0) for one in others])) for place, ns in own.items()
    }
    place = max(beyond, key=lambda place: beyond[place], default=Place())
    return place if 2 * beyond.get(place, 0.0) > slowest.late_s * 1e9 else Place()


def _places_of(facts: RankFacts, phase: RankPhase) -> dict[Place, float]:
    """Return the nanoseconds per step of each place at which the host spent most of an interval of the
    phase."""
    sets = rank_phases.on_host(facts.timeline, facts.window)
    spent = np.empty((0, 2), dtype=np.int64) if sets is None else sets[RANK_PHASES.index(phase)]
    thread = np.full(len(spent), working_thread(facts.timeline), dtype=np.int64)
    found = facts.places.texts(facts.places.mostly(thread, spent[:, 0], spent[:, 1]))
    total: dict[Place, float] = {}
    for place, length in zip(found, (spent[:, 1] - spent[:, 0]).tolist(), strict=True):
        total[place] = total.get(place, 0.0) + length / (facts.num_steps or 1)
    return total


def verdict(
    facts: RankFacts, shares: Shares | None, ranked: Sequence[Cause], operators: Sequence[Operator]
) -> str:
    """Write in one sentence how busy the device was, and its largest avoidable loss."""
    if not facts.window_ns:
        return "The trace holds no work: no operator, no call and no device activity."
    span = _span(facts)
    if shares is None:
        return f"No device work was recorded: {span} on the host{_on_the_host(facts, ranked, operators)}."
    busy = shares.compute + shares.exposed_copy + shares.exposed_communication
    if not ranked:
        return (
            f"The device worked for {percent(busy)} of the time ({span}), and no cause lost a hundredth "
            "of it."
        )
    # Needless work matters only if the device is busy; for an idle device the verdict names a cause of idle
    # time.
    of_idle = [cause for cause in ranked if CAUSES[cause.id].lost == "idle"]
    first = of_idle[0] if of_idle and busy < LOW_BUSY_SHARE else ranked[0]
    kind = "the largest loss is" if CAUSES[first.id].lost == "idle" else "the largest cost is"
    if first is not ranked[0]:
        kind = "the largest part of its idle time went to"
    return f"The device worked for {percent(busy)} of the time ({span}); {kind} {_in_words(first)}."


def _in_words(cause: Cause) -> str:
    where = _words(cause.where)
    return f"{CAUSES[cause.id].words}{f' at {where}' if where else ''}, {percent(cause.share)}"


def _span(facts: RankFacts) -> str:
    """Return the time window's length. If the host runs ahead, its steps are short: the device's share
    counts."""
    if facts.num_steps is None:
        return duration(facts.window_ns)
    each = duration(facts.window_ns / facts.num_steps)
    return f"1 step of {each}" if facts.num_steps == 1 else f"{facts.num_steps:,} steps of {each}"


def _on_the_host(facts: RankFacts, ranked: Sequence[Cause], operators: Sequence[Operator]) -> str:
    first = max(operators, key=lambda row: row.self_s, default=None)
    share = first.self_s * 1e9 / facts.window_ns if first is not None else 0.0
    # The verdict does not name a small loss if needless work takes much more time.
    if ranked and ranked[0].share >= share:
        return f"; the largest loss is {_in_words(ranked[0])}"
    if first is not None:
        return f"; the longest operator is {first.name}, {percent(share)}"
    host = facts.timeline.host
    none = (
        ", in which no operator ran"
        if (host.kind == HostKind.OPERATOR).any()
        else ", with no operator recorded"
    )
    name, share = _longest_annotation(facts)
    return f"{none}; {name} takes {percent(share)} of it" if name else none


def _longest_annotation(facts: RankFacts) -> tuple[str, float]:
    """Return the annotation (except steps) that covers most of the time window, with its share; else no
    annotation."""
    host, names = facts.timeline.host, facts.timeline.names
    rows = np.flatnonzero(host.kind == HostKind.ANNOTATION)
    rows = rows[in_window(facts, host.start_ns[rows], host.end_ns[rows]) > 0]
    covered = {}
    for name in np.unique(host.name[rows]).tolist():
        own = rows[host.name[rows] == name]
        if not STEP.match(names[name]):
            covered[names[name]] = (
                intervals.length(intervals.union_of(host, own, facts.window)) / facts.window_ns
            )
    return max(covered.items(), key=lambda item: (item[1], item[0])) if covered else ("", 0.0)


def _words(place: Place) -> str:
    """Return the place as a short text: the function's name, else the operator's, else the CUDA call's."""
    return place.function or place.operator or place.call
