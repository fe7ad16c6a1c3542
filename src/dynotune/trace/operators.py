"""Operators by the time the host spent in them themselves, without the operators inside."""

from __future__ import annotations

import numpy as np

from dynotune.schema.trace_summary import Operator
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

MOST = 50
"""How many operators are reported: those of the largest self time."""


def facts(timeline: Timeline, window: tuple[int, int]) -> list[Operator]:
    """Operators on all threads of a process inside the window [start, end) of nanoseconds, largest self time first."""
    host, (start, end) = timeline.host, window
    inside = (host.start_ns < end) & ((host.end_ns > start) | (host.start_ns >= start))
    rows = np.flatnonzero((host.kind == HostKind.OPERATOR) & inside)
    if not len(rows):
        return []
    rows = rows[np.argsort(host.thread[rows], kind="stable")]
    # Threads one after another on one axis: there no span of a thread meets one of another.
    shift = host.thread[rows].astype(np.int64) * (end - start + 1) - start
    begins, ends = np.maximum(host.start_ns[rows], start) + shift, np.minimum(host.end_ns[rows], end) + shift
    names = host.name[rows]
    num = np.bincount(names)
    total = np.bincount(names, weights=self_times(begins, ends))
    found = [
        Operator(name=timeline.names[index], num=int(num[index]), self_s=int(total[index]) / 1e9)
        for index in np.flatnonzero(num).tolist()
    ]
    return sorted(found, key=lambda row: (-row.self_s, row.name))[:MOST]


def self_times(start_ns: Ints, end_ns: Ints) -> Ints:
    """Nanoseconds in which each span is the innermost one, which of those open started last.

    Args:
        start_ns, end_ns: of spans in order of start, of which enclosing ones come first. They should nest. Where one
            starts inside another and outlasts it, as times rounded to microseconds do, it takes over from there.
    """
    # A span without length is nowhere the innermost, and would blur which spans are open where it stands.
    rows = np.flatnonzero(end_ns > start_ns)
    start, end = start_ns[rows], end_ns[rows].copy()
    while True:
        parent = _parents(start, end)
        child = np.flatnonzero(parent != UNKNOWN)
        outlasting = child[end[child] > end[parent[child]]]
        if not len(outlasting):
            break
        # The first of them in order is inside its parent, so each round cuts at least one span.
        np.minimum.at(end, parent[outlasting], start[outlasting])
    length = end - start
    inside = np.bincount(parent[child], weights=length[child], minlength=len(rows)).astype(np.int64)
    own = np.zeros(len(start_ns), dtype=np.int64)
    own[rows] = length - inside
    return own


def _parents(start_ns: Ints, end_ns: Ints) -> Ints:
    """For spans that nest, all longer than nothing, in order of start: the row each lies in, UNKNOWN outside all."""
    num = len(start_ns)
    order = np.arange(num, dtype=np.int64)
    # How many are open when one starts: those before it, less those that have ended.
    depth = order - np.searchsorted(np.sort(end_ns), start_ns, side="right")
    # Its parent is the last one before it that is one level up. Levels one after another make that one search.
    by_depth = np.argsort(depth.astype(np.int32), kind="stable")
    level = depth[by_depth] * num + by_depth
    at = np.searchsorted(level, level - num) - 1
    parent = np.full(num, UNKNOWN, dtype=np.int64)
    inner = depth[by_depth] > 0
    parent[by_depth[inner]] = by_depth[at[inner]]
    return parent
