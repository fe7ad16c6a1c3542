"""Find the enclosing span of each span of a thread: spans of one thread nest, apart from the recorder's
jitter."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.facts import intervals
from dynotune.trace.timeline import UNKNOWN, HostSpans, Ints

MAX_PASSES = 8
"""Number of vectorised passes that cut spans which outlive the span in which they started. Rounded times need
one or two passes; spans that remain afterwards (ranges that overlap like tiles) go through a loop."""


@dataclass(frozen=True, slots=True)
class Nesting:
    """Spans of one thread as a tree; positions count from 0 in the order of `start_ns`.

    Args:
        rows: row number of each span in the table of spans, int64.
        start_ns, end_ns: int64. A span that outlives its enclosing span ends with the enclosing span.
        parent: position of the enclosing span, int64; UNKNOWN for the outermost spans.
    """

    rows: Ints
    start_ns: Ints
    end_ns: Ints
    parent: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def innermost(self, time_ns: Ints) -> Ints:
        """Return the position of the innermost span that covers each time; UNKNOWN where no span covers the
        time."""
        at = np.searchsorted(self.start_ns, time_ns, side="right").astype(np.int64) - 1
        if not len(self.rows):
            return at
        past = np.flatnonzero((at >= 0) & (self.end_ns[at] <= time_ns))
        while len(past):
            at[past] = self.parent[at[past]]
            past = past[(at[past] >= 0) & (self.end_ns[at[past]] <= time_ns[past])]
        return at

    def nearest(self, of_kind: NDArray[np.bool_]) -> Ints:
        """Return the position of each span's nearest ancestor of the kind, the span itself included; else
        UNKNOWN."""
        found = np.where(of_kind, np.arange(len(self.rows)), self.parent)
        # A span of another kind points to its parent; doubling the pointers' reach ends in log2(depth)
        # rounds.
        while len(asking := np.flatnonzero((found >= 0) & ~of_kind[found])):
            onward = found.copy()
            onward[asking] = found[found[asking]]
            found = onward
        return found


def nest(rows: Ints, start_ns: Ints, end_ns: Ints) -> Nesting:
    """Return the tree of one thread's spans.

    Args:
        rows: row numbers of the thread's spans, in the table's order: by start, the longer span first.
        start_ns, end_ns: start and end of each of the spans, int64.
    """
    # Times are doubled, so that a span without duration ends after its start, but before any other event.
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
    """Return the spans of `rows` that no other span of the same thread encloses, or overlaps from an earlier
    start."""
    outer = []
    for thread in np.unique(spans.thread[rows]):
        own = rows[spans.thread[rows] == thread]
        reach = np.maximum.accumulate(spans.end_ns[own])
        outer.append(own[np.concatenate(([True], spans.start_ns[own][1:] >= reach[:-1]))])
    return np.sort(np.concatenate(outer)) if outer else rows


def begins_inside(
    spans: HostSpans, rows: Ints, outer: Ints, begin_ns: Ints | None = None
) -> NDArray[np.bool_]:
    """Return for each of the spans `rows` whether the span begins inside a span of `outer` on the same
    thread.

    Args:
        begin_ns: times from which the spans `outer` count, if these times are later than the spans' starts.
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
    """Return each span's parent: the last earlier span one level higher; spans in between are deeper or
    closed."""
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
    """Return the earliest end among the spans that enclose each span; the largest integer for the
    outermost."""
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
