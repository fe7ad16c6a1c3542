"""Compare the ranks of a job by their collectives: clock offsets, waits, and the straggler."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dynotune.schema.trace_summary import RANK_PHASES, Ranks, RankTime, Straggler
from dynotune.trace.facts import host_time, intervals, rank_phases
from dynotune.trace.facts.kernel_names import COMMUNICATION, without_arguments
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.facts.steps import Steps
from dynotune.trace.timeline import Ints, Timeline, queued_ns

Window = tuple[int, int]

TOGETHER_NS = 1_000_000
"""Ranks leave a collective within this time of each other. Leaving takes some hops of microseconds each;
larger differences mean different collectives."""

STRAGGLER_SHARE = 0.02
"""Share of the time window that other ranks must wait for a straggler; ordinary variation between steps is
smaller."""

# Least share of collectives, matched by their order, that must end together for this matching to be accepted.
_BELIEVED = 0.8
# Fewest collectives from which clock offsets are derived: one or two collectives always agree with their
# median.
_FEWEST = 3
# Most collectives of one name that one recording may have more than another, at the recordings' edges.
_MOST_LAG = 8


@dataclass(frozen=True, slots=True)
class _Collectives:
    """Collectives of one rank that start in its time window, in order: positions of each name, and times.

    Args:
        queued_ns: when the host queued each collective.
        on_host: whether the rank has no device.
    """

    of_name: dict[str, Ints]
    start_ns: Ints
    end_ns: Ints
    queued_ns: Ints
    on_host: bool = False


@dataclass(frozen=True, slots=True)
class _Alignment:
    """Offset of each rank's clock from the first rank's clock, and the collectives that all ranks share."""

    aligned_by: Literal["clock", "collectives", "nothing"]
    offset_ns: list[int] | None
    matched: NDArray[np.int64]


def compare(
    timelines: Sequence[Timeline], windows: Sequence[Window], steps: Sequence[Steps | None]
) -> Ranks | None:
    """Compare the ranks of one job, each in its own time window; None for fewer than two ranks.

    Args:
        timelines, windows, steps: one of each per rank, in the same order of ranks.
    """
    if len(timelines) < 2:
        return None
    collectives = [_collectives(*pair) for pair in zip(timelines, windows, strict=True)]
    alignment = _align(timelines, collectives)
    free = [_free(*pair) for pair in zip(timelines, windows, strict=True)]
    waits = _waits(collectives, windows, free, alignment) if alignment.matched.size else None
    own_ns = _own_ns(timelines, windows, steps[0], collectives, free, alignment)
    stragglers = [Straggler(rank=rank) for rank in _awaited(waits[1], windows)] if waits else []
    middle_s = []
    if own_ns is not None:
        stragglers, told_ns = _stragglers(own_ns)
        middle_s = [(np.median(one, axis=0) / 1e9).tolist() for one in told_ns]
    middling_s = [dict(zip(RANK_PHASES, row, strict=True)) for row in middle_s] or [{} for _ in timelines]
    labels = [index if timeline.rank is None else timeline.rank for index, timeline in enumerate(timelines)]
    rows = [
        RankTime(
            rank=labels[index],
            step_s=_step_s(steps[index]),
            busy_s=_busy_s(timeline, windows[index]),
            waits_s=waits[0][index] / 1e9 if waits else None,
            clock_offset_s=alignment.offset_ns[index] / 1e9 if alignment.offset_ns else None,
            phase_s=middling_s[index],
        )
        for index, timeline in enumerate(timelines)
    ]
    return Ranks(
        ranks=rows,
        stragglers=[replace(one, rank=labels[one.rank]) for one in stragglers],
        imbalance=_imbalance(timelines, windows, steps),
        aligned_by=alignment.aligned_by,
    )


def _collectives(timeline: Timeline, window: Window) -> _Collectives:
    on_host = not len(timeline.device)
    spans = timeline.host if on_host else timeline.device
    rows = (
        host_time.collectives(timeline) if on_host else np.flatnonzero(classes_of(timeline) == COMMUNICATION)
    )
    rows = rows[(spans.start_ns[rows] >= window[0]) & (spans.start_ns[rows] < window[1])]
    names = spans.name[rows]
    positions: dict[str, list[Ints]] = {}
    for index in np.unique(names):
        name = without_arguments(timeline.names[index])
        positions.setdefault(name, []).append(np.flatnonzero(names == index))
    of_name = {name: np.sort(np.concatenate(found)) for name, found in positions.items()}
    queued = spans.start_ns[rows] if on_host else queued_ns(timeline, rows)
    return _Collectives(of_name, spans.start_ns[rows], spans.end_ns[rows], queued, on_host)


def _free(timeline: Timeline, window: Window) -> intervals.Set:
    """Return the intervals in which a rank computes nothing: on its devices or, without a device, on its
    thread."""
    if not len(timeline.device):
        return host_time.without_operators(timeline, window)
    computes = intervals.union_of(timeline.device, classes_of(timeline) != COMMUNICATION, window)
    return intervals.complement(computes, *window)


def _align(timelines: Sequence[Timeline], collectives: list[_Collectives]) -> _Alignment:
    """Align ranks by their clocks if the collectives do not contradict the clocks; else by the
    collectives."""
    clock = _clock_offsets(timelines)
    first = collectives[0]
    if clock is not None and all(own.on_host for own in collectives):
        pairs_of = [
            _overlapping(first, other, lag) for other, lag in zip(collectives[1:], clock[1:], strict=True)
        ]
        if all(pairs is not None for pairs in pairs_of):
            return _Alignment(
                "clock", clock, _on_all_ranks([pairs for pairs in pairs_of if pairs is not None])
            )
    by_order = [pairs for other in collectives[1:] if (pairs := _by_order(first, other)) is not None]
    if len(by_order) == len(collectives) - 1:
        offset = [0] + [pairs[1] for pairs in by_order]
        matched = _on_all_ranks([pairs[0] for pairs in by_order])
        if clock is not None and np.abs(np.subtract(clock, offset)).max() <= TOGETHER_NS:
            return _Alignment("clock", clock, matched)
        if matched.shape[1] >= _FEWEST:
            return _Alignment("collectives", offset, matched)
    if clock is None:
        return _Alignment("nothing", None, np.empty((len(timelines), 0), dtype=np.int64))
    by_time = [_by_time(first, other, lag) for other, lag in zip(collectives[1:], clock[1:], strict=True)]
    return _Alignment("clock", clock, _on_all_ranks(by_time))


def _clock_offsets(timelines: Sequence[Timeline]) -> list[int] | None:
    """Return how far each rank's clock is ahead of the first rank's clock; None if the recordings lack clock
    bases."""
    bases = [timeline.clock_base_ns for timeline in timelines]
    known = [base for base in bases if base is not None]
    return [known[0] - base for base in known] if len(known) == len(bases) else None


def _by_order(first: _Collectives, other: _Collectives) -> tuple[NDArray[np.int64], int] | None:
    """Return pairs of rows, shape (2, n), and the clock offset, if the i-th collectives of each name end
    together."""
    found = _ith_of_names(first, other)
    if not any(pairs.size for pairs in found):
        return None
    both = np.concatenate(found, axis=1)
    apart = other.end_ns[both[1]] - first.end_ns[both[0]]
    offset = int(np.median(apart))
    together = np.abs(apart - offset) <= TOGETHER_NS
    return (both[:, together], offset) if together.mean() >= _BELIEVED else None


def _overlapping(first: _Collectives, other: _Collectives, offset_ns: int) -> NDArray[np.int64] | None:
    """Return pairs of host collectives (rows, shape (2, n)) of names whose i-th collectives overlap in time.

    A host thread may notice late that a collective has ended, so the recorded ends may differ between ranks.
    The root of a broadcast may leave before another rank joins.
    """
    believed = []
    for both in _ith_of_names(first, other):
        start_ns, end_ns = other.start_ns[both[1]] - offset_ns, other.end_ns[both[1]] - offset_ns
        at_once = (first.start_ns[both[0]] < end_ns + TOGETHER_NS) & (
            start_ns < first.end_ns[both[0]] + TOGETHER_NS
        )
        if len(at_once) and at_once.mean() >= _BELIEVED:
            believed.append(both[:, at_once])
    return np.concatenate(believed, axis=1) if believed else None


def _ith_of_names(first: _Collectives, other: _Collectives) -> list[NDArray[np.int64]]:
    """Return pairs of rows, shape (2, n), for each collective's name that occurs about as often on both
    ranks."""
    pairs = []
    for name in sorted(first.of_name.keys() & other.of_name.keys()):
        a, b = first.of_name[name], other.of_name[name]
        if abs(len(a) - len(b)) <= _MOST_LAG:
            pairs.append(_best_lag(a, b, first.end_ns, other.end_ns))
    return pairs


def _best_lag(a: Ints, b: Ints, ends_a: Ints, ends_b: Ints) -> NDArray[np.int64]:
    """Return paired rows of one name in order; if the counts differ, shifted so that pairs end close
    together."""
    num = min(len(a), len(b))
    candidates = [np.stack((a[lag : lag + num], b[:num])) for lag in range(len(a) - num + 1)]
    candidates += [np.stack((a[:num], b[lag : lag + num])) for lag in range(1, len(b) - num + 1)]
    if len(candidates) == 1:
        return candidates[0]
    apart = [ends_b[pairs[1]] - ends_a[pairs[0]] for pairs in candidates]
    spread = [float(np.median(np.abs(lags - np.median(lags)))) for lags in apart]
    return candidates[int(np.argmin(spread))]


def _by_time(first: _Collectives, other: _Collectives, offset_ns: int) -> NDArray[np.int64]:
    """Return pairs of rows, shape (2, n), of one name that end together on known clocks, nearest to each
    other."""
    pairs = [np.empty((2, 0), dtype=np.int64)]
    for name in sorted(first.of_name.keys() & other.of_name.keys()):
        a, b = first.of_name[name], other.of_name[name]
        ends_a, ends_b = first.end_ns[a], other.end_ns[b] - offset_ns
        nearest = _nearest(ends_a, ends_b)
        mutual = _nearest(ends_b, ends_a)[nearest] == np.arange(len(a))
        # If collectives follow each other closely, ends close in time prove little.
        spacing = min(
            (int(np.median(np.diff(np.sort(ends)))) for ends in (ends_a, ends_b) if len(ends) > 1), default=0
        )
        near = np.abs(ends_b[nearest] - ends_a) <= min(TOGETHER_NS, spacing // 10)
        pairs.append(np.stack((a[mutual & near], b[nearest[mutual & near]])))
    return np.concatenate(pairs, axis=1)


def _nearest(times: Ints, among: Ints) -> NDArray[np.int64]:
    order = np.argsort(among, kind="stable")
    sorted_times = among[order]
    after = np.clip(np.searchsorted(sorted_times, times), 0, len(among) - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.where(
        np.abs(sorted_times[before] - times) <= np.abs(sorted_times[after] - times), before, after
    )
    return order[nearer]


def _on_all_ranks(pairs: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return rows of shape (ranks, n): the first rank's rows that have a partner on every other rank, with
    partners."""
    common = pairs[0][0]
    for of_rank in pairs[1:]:
        common = np.intersect1d(common, of_rank[0])
    common = np.sort(common)
    partners = [of_rank[1][np.argsort(of_rank[0])][np.isin(np.sort(of_rank[0]), common)] for of_rank in pairs]
    return np.stack([common, *partners])


def _waits(
    collectives: list[_Collectives],
    windows: Sequence[Window],
    free: Sequence[intervals.Set],
    alignment: _Alignment,
) -> tuple[list[int], NDArray[np.int64]]:
    """Return the ns that each rank waits, and the ns that rank i waits for rank j, shape (ranks, ranks).

    A rank without a device waits while no operator runs (`free`). A collective beside an operator delays no
    rank.
    """
    assert alignment.offset_ns is not None
    rows = list(zip(collectives, alignment.matched, alignment.offset_ns, strict=True))
    joined = _joined_ns(collectives, alignment)
    last, last_at = joined.argmax(axis=0), joined.max(axis=0)
    waits, for_whom = [], np.zeros((len(rows), len(rows)), dtype=np.int64)
    for rank, (own, at, offset) in enumerate(rows):
        start, end = own.start_ns[at], np.minimum(last_at + offset, own.end_ns[at])
        waited = intervals.clip(intervals.union(start, end), *windows[rank])
        inside = np.clip(end, *windows[rank]) - np.clip(start, *windows[rank])
        if own.on_host:
            waits.append(int(intervals.covered(free[rank], waited[:, 0], waited[:, 1]).sum()))
            inside = intervals.covered(free[rank], start, np.maximum(start, end))
        else:
            waits.append(intervals.length(waited))
        for_whom[rank] = np.bincount(last, weights=np.maximum(inside, 0), minlength=len(rows)).astype(
            np.int64
        )
    return waits, for_whom


def _joined_ns(collectives: list[_Collectives], alignment: _Alignment) -> Ints:
    """Return the time at which each rank joined each matched collective, on the first rank's clock, (ranks,
    n)."""
    assert alignment.offset_ns is not None
    rows = zip(collectives, alignment.matched, alignment.offset_ns, strict=True)
    return np.stack([own.start_ns[at] - offset for own, at, offset in rows])


def _laps(collectives: list[_Collectives], steps: Steps, alignment: _Alignment) -> tuple[Ints, Ints]:
    """Return the column of each step's last collective, and when the last rank joined it and all ranks went
    on."""
    queued = collectives[0].queued_ns[alignment.matched[0]]
    step = np.searchsorted(steps.start_ns, queued, side="right") - 1
    inside = np.flatnonzero((step >= 0) & (queued < steps.end_ns[step]))
    joined = _joined_ns(collectives, alignment).max(axis=0)
    laps = np.array(
        [max(inside[step[inside] == one], key=joined.item) for one in np.unique(step[inside])], dtype=np.int64
    )
    return laps, joined[laps]


def _own_ns(
    timelines: Sequence[Timeline],
    windows: Sequence[Window],
    steps: Steps | None,
    collectives: list[_Collectives],
    free: Sequence[intervals.Set],
    alignment: _Alignment,
) -> Ints | None:
    """Return ranks' own times, by device and by host-issued work, (2, ranks, laps, phases); None if
    unknown."""
    if steps is None or not len(steps.start_ns) or not alignment.matched.size or alignment.offset_ns is None:
        return None
    (laps, joined), found = _laps(collectives, steps, alignment), []
    for index, own in enumerate(collectives):
        spans = own.start_ns, own.end_ns, own.queued_ns
        both = rank_phases.own_sets(timelines[index], windows[index], spans, free[index])
        if both is None or len(laps) < 2:
            return None
        edges = joined + alignment.offset_ns[index]
        asked = edges if own.on_host else own.queued_ns[alignment.matched[index][laps]]
        pairs = zip(both, (edges, asked), strict=True)
        found.append([[intervals.covered(one, at[:-1], at[1:]) for one in sets] for sets, at in pairs])
    return np.array(found).transpose(1, 0, 3, 2)


def _stragglers(own_ns: Ints) -> tuple[list[Straggler], Ints]:
    """Return the ranks that are late, by position, and the own times (of device or host) that show most
    delay."""
    total = own_ns.sum(axis=3).max(axis=0)[..., None]
    late_ns = [rank_phases.late(total, rank)[1] for rank in range(len(total))]

    def told_ns(rank: int) -> Ints:
        return min(own_ns, key=lambda one: abs(rank_phases.late(one, rank)[1] - late_ns[rank]))

    slowest, found = int(np.median(total, axis=1).argmax()), []
    for rank in rank_phases.slow_ranks(total):
        # Behind the slowest rank, a rank of less than half its delay costs little.
        if late_ns[rank] > max(STRAGGLER_SHARE * float(np.median(total[rank])), late_ns[slowest] / 2):
            phases = rank_phases.late(told_ns(rank), rank)[0]
            found.append(Straggler(rank=rank, phases=phases, late_s=late_ns[rank] / 1e9))
    return found, told_ns(slowest)


def _awaited(for_whom: NDArray[np.int64], windows: Sequence[Window]) -> list[int]:
    """Return the rank that the others wait for most, for a notable share of their windows, if own times are
    unknown."""
    caused = for_whom.sum(axis=0)
    rank = int(caused.argmax())
    others = sum(end - start for index, (start, end) in enumerate(windows) if index != rank)
    stands_out = 2 * caused[rank] > caused.sum() and caused[rank] > STRAGGLER_SHARE * others
    return [rank] if stands_out else []


def _step_s(steps: Steps | None) -> float | None:
    if steps is None or not len(steps.start_ns):
        return None
    return float((steps.end_ns - steps.start_ns).mean()) / 1e9


def _busy_s(timeline: Timeline, window: Window) -> float | None:
    device = timeline.device
    if not len(device):
        return None
    return (
        sum(
            intervals.length(intervals.union_of(timeline.device, device.device == index, window))
            for index in timeline.devices
        )
        / 1e9
    )


def _imbalance(
    timelines: Sequence[Timeline], windows: Sequence[Window], steps: Sequence[Steps | None]
) -> float | None:
    """Return the ratio of the largest to the smallest compute time of ranks (per step if known); None if one
    is 0."""
    on_host = not any(len(timeline.device) for timeline in timelines)
    compute_ns = _operators_ns if on_host else _compute_ns
    compute = [compute_ns(*pair) for pair in zip(timelines, windows, strict=True)]
    num_steps = [len(own.start_ns) if own is not None else 0 for own in steps]
    if all(num_steps):
        compute = [time / num for time, num in zip(compute, num_steps, strict=True)]
    return max(compute) / min(compute) if min(compute) else None


def _compute_ns(timeline: Timeline, window: Window) -> float:
    """Return the union of kernels other than collectives on each device, summed over devices."""
    classes = classes_of(timeline)
    kernels = (classes >= 0) & (classes != COMMUNICATION)
    here = [kernels & (timeline.device.device == index) for index in timeline.devices]
    return float(sum(intervals.length(intervals.union_of(timeline.device, mask, window)) for mask in here))


def _operators_ns(timeline: Timeline, window: Window) -> float:
    return float(window[1] - window[0] - intervals.length(host_time.without_operators(timeline, window)))
