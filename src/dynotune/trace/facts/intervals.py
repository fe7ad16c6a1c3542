"""Arithmetic on sets of half-open intervals [start, end) of whole nanoseconds.

A set is a sorted int64 array of shape (n, 2) of disjoint, non-empty intervals. `union` makes a set from any
intervals.
"""

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.timeline import DeviceSpans, HostSpans

Set = NDArray[np.int64]


def union(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> Set:
    """Return the set that covers all intervals [start, end); the intervals may overlap, touch and be in any
    order."""
    kept = end_ns > start_ns
    start, end = start_ns[kept], end_ns[kept]
    if not len(start):
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((start[first], reach[last]))


def union_of(
    spans: HostSpans | DeviceSpans,
    rows: NDArray[np.int64] | NDArray[np.bool_],
    window: tuple[int, int] | None = None,
) -> Set:
    """Return the set that covers the given rows (spans) of a table, clipped to the time window if one is
    given."""
    found = union(spans.start_ns[rows], spans.end_ns[rows])
    return found if window is None else clip(found, *window)


def length(of: Set) -> int:
    return int((of[:, 1] - of[:, 0]).sum())


def clip(of: Set, start_ns: int, end_ns: int) -> Set:
    """Return the set clipped to the interval [start, end)."""
    clipped = np.clip(of, start_ns, end_ns)
    return clipped[clipped[:, 1] > clipped[:, 0]]


def complement(of: Set, start_ns: int, end_ns: int) -> Set:
    inside = clip(of, start_ns, end_ns)
    edges = np.concatenate(([start_ns], inside.ravel(), [end_ns])).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def intersection(a: Set, b: Set) -> Set:
    if not len(a) or not len(b):
        return np.empty((0, 2), dtype=np.int64)
    # Every interval of the result starts where an interval of one set starts inside the other set.
    start = np.sort(np.concatenate((a[:, 0], b[:, 0])))
    of_a = np.searchsorted(a[:, 0], start, side="right") - 1
    of_b = np.searchsorted(b[:, 0], start, side="right") - 1
    end = np.minimum(a[of_a, 1], b[of_b, 1])
    kept = (of_a >= 0) & (of_b >= 0) & (end > start)
    pairs = np.column_stack((start[kept], end[kept]))
    # Intervals of both sets that start together occur twice.
    return pairs[np.concatenate(([True], np.diff(pairs[:, 0]) > 0))] if len(pairs) else pairs


def difference(a: Set, b: Set) -> Set:
    if not len(a):
        return a
    return intersection(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def covered(of: Set, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many nanoseconds of each interval [start, end) the set covers; the intervals may overlap."""
    if not len(of):
        return np.zeros(len(start_ns), dtype=np.int64)
    inside: NDArray[np.int64] = np.maximum(_covered_before(end_ns, of) - _covered_before(start_ns, of), 0)
    return inside


def _covered_before(time_ns: NDArray[np.int64], of: Set) -> NDArray[np.int64]:
    lengths = of[:, 1] - of[:, 0]
    earlier = np.concatenate(([0], np.cumsum(lengths)))
    at = np.searchsorted(of[:, 0], time_ns, side="right") - 1
    within = np.where(at >= 0, np.minimum(time_ns - of[at, 0], lengths[at]), 0)
    total: NDArray[np.int64] = earlier[np.maximum(at, 0)] + within
    return total
