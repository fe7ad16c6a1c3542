"""Find which span of a thread encloses which: spans of one thread nest, apart from the recorder's jitter."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.facts import intervals
from dynotune.trace.timeline import UNKNOWN, HostSpans, Ints

MAX_PASSES = 8
"""Passes over spans that outlive the span they started in. Rounding needs one or two passes; spans that are left after
these (ranges that overlap like tiles) go through a loop."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Spans of one thread as a tree; positions count from 0 in the order of `start_ns`.

    Args:
        rows: rows of the spans in their table, int64.
        start_ns, end_ns: int64. A span that outlives its enclosing span is cut at the end of that one.
        parent: position of the enclosing span, int64; UNKNOWN for the outermost spans.
    """

    rows: Ints
    start_ns: Ints
    end_ns: Ints
    parent: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def innermost(self, time_ns: Ints) -> Ints:
        """Return the position of the innermost span that covers each time (its end excluded); UNKNOWN without one."""
        at = np.searchsorted(self.start_ns, time_ns, side="right").astype(np.int64) - 1
        if not len(self.rows):
            return at
        past = np.flatnonzero((at >= 0) & (self.end_ns[at] <= time_ns))
        while len(past):
            at[past] = self.parent[at[past]]
            past = past[(at[past] >= 0) & (self.end_ns[at[past]] <= time_ns[past])]
        return at

    def nearest(self, of_kind: NDArray[np.bool_]) -> Ints:
        """Return the position of the nearest span of the kind, from each span upwards; UNKNOWN if there is none."""
        found = np.where(of_kind, np.arange(len(self.rows)), self.parent)
        # A span of another kind points to its parent; following the pointers of pointers ends in log2(depth) rounds.
        while len(asking := np.flatnonzero((found >= 0) & ~of_kind[found])):
            onward = found.copy()
            onward[asking] = found[found[asking]]
            found = onward
        return found


def nest(rows: Ints, start_ns: Ints, end_ns: Ints) -> Nesting:
    """Return the tree of one thread's spans.

    Args:
        rows: rows of the spans in their table, in the table's order: by start, the longer first.
        start_ns, end_ns: times of these rows, int64.
    """
    # Doubled, so that a span without duration ends after its start, but before any other event.
    opens = start_ns * 2
    closes = np.where(end_ns > start_ns, end_ns * 2, opens + 1)
    parent = parents(opens, closes)
    for _ in range(MAX_PASSES):
        if not _outlives(parent, closes).any():
            break
        reach = _reach(parent, closes)
        closes = np.where(reach > opens, np.minimum(closes, reach), closes)
        parent = parents(opens, closes)
    else:
        if _outlives(parent, closes).any():
            parent, closes = _one_by_one(opens, closes)
    return Nesting(rows=rows, start_ns=start_ns, end_ns=closes // 2, parent=parent)


def depths(nesting: Nesting) -> Ints:
    closes = np.where(nesting.end_ns > nesting.start_ns, nesting.end_ns * 2, nesting.start_ns * 2 + 1)
    return _depths(nesting.start_ns * 2, closes)


def outermost(spans: HostSpans, rows: Ints) -> Ints:
    """Return those of `rows` that no other row of their thread encloses or overlaps from before."""
    outer = []
    for thread in np.unique(spans.thread[rows]):
        own = rows[spans.thread[rows] == thread]
        reach = np.maximum.accumulate(spans.end_ns[own])
        outer.append(own[np.concatenate(([True], spans.start_ns[own][1:] >= reach[:-1]))])
    return np.sort(np.concatenate(outer)) if outer else rows


def begins_inside(spans: HostSpans, rows: Ints, outer: Ints, begin_ns: Ints | None = None) -> NDArray[np.bool_]:
    """Tell for each of these rows whether it begins inside one of the rows `outer`, on the same thread.

    Args:
        begin_ns: begins of the rows `outer`, if they count only from later than their start.
    """
    begin_ns = spans.start_ns[outer] if begin_ns is None else begin_ns
    inside = np.zeros(len(rows), dtype=bool)
    for thread in np.unique(spans.thread[outer]):
        own = spans.thread[outer] == thread
        within = intervals.union(begin_ns[own], spans.end_ns[outer[own]])
        start = spans.start_ns[rows]
        inside |= (spans.thread[rows] == thread) & (intervals.covered(within, start, start + 1) > 0)
    return inside


def _depths(opens: Ints, closes: Ints) -> Ints:
    closed: Ints = np.searchsorted(np.sort(closes), opens, side="right").astype(np.int64)
    return np.arange(len(opens), dtype=np.int64) - closed


def parents(opens: Ints, closes: Ints) -> Ints:
    """Return the last span before each that is one level up: all spans between them are deeper, or closed."""
    depth = _depths(opens, closes)
    num = len(opens)
    if not num:
        return depth
    order = np.argsort(depth.astype(np.min_scalar_type(int(depth.max()))), kind="stable")
    keys = depth[order] * num + order
    enclosed = depth[order] > 0
    parent = np.full(num, UNKNOWN, dtype=np.int64)
    at = np.searchsorted(keys, keys[enclosed] - num, side="left") - 1
    parent[order[enclosed]] = order[at]
    return parent


def _outlives(parent: Ints, closes: Ints) -> NDArray[np.bool_]:
    outlives: NDArray[np.bool_] = (parent >= 0) & (closes > closes[parent])
    return outlives


def _reach(parent: Ints, closes: Ints) -> Ints:
    """Return the earliest end among the spans that enclose each span; the largest integer for the outermost."""
    never = np.iinfo(np.int64).max
    ends = np.append(closes, never)
    onward = np.append(np.where(parent >= 0, parent, len(parent)), len(parent))
    reach = ends[onward]
    while (onward < len(parent)).any():
        reach = np.minimum(reach, reach[onward])
        onward = onward[onward]
    earliest: Ints = reach[:-1]
    return earliest


def _one_by_one(opens: Ints, closes: Ints) -> tuple[Ints, Ints]:
    parents: list[int] = []
    open_now: list[int] = []
    cut = closes.tolist()
    for position, start in enumerate(opens.tolist()):
        while open_now and cut[open_now[-1]] <= start:
            open_now.pop()
        if open_now:
            cut[position] = min(cut[position], cut[open_now[-1]])
        parents.append(open_now[-1] if open_now else UNKNOWN)
        open_now.append(position)
    return np.array(parents, dtype=np.int64), np.array(cut, dtype=np.int64)
