"""Operators by self time: the host's time in an operator without the time in the operators that it calls."""

import numpy as np

from dynotune.schema.trace_summary import Called, Operator
from dynotune.trace.facts.callers import CALLERS, callers
from dynotune.trace.facts.nesting import parents
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline, touching

MOST = 200
"""Most operators that are reported: those with the largest self time."""


def facts(timeline: Timeline, window: tuple[int, int]) -> list[Operator]:
    """Return the operators of all threads of a process in the window [start, end) of ns, largest self time
    first."""
    host, (start, end) = timeline.host, window
    rows = np.flatnonzero((host.kind == HostKind.OPERATOR) & touching(host, window))
    if not len(rows):
        return []
    rows = rows[np.argsort(host.thread[rows], kind="stable")]
    # Put all threads one after another on one axis, so that spans of different threads do not meet.
    shift = host.thread[rows].astype(np.int64) * (end - start + 1) - start
    begins, ends = np.maximum(host.start_ns[rows], start) + shift, np.minimum(host.end_ns[rows], end) + shift
    # Sums by name and caller; each name is a row of the table.
    shape = (len(timeline.names), len(CALLERS))
    key = host.name[rows] * len(CALLERS) + callers(timeline, np.sort(rows))[np.argsort(np.argsort(rows))]
    size = len(timeline.names) * len(CALLERS)
    num = np.bincount(key, minlength=size).reshape(shape)
    own_ns = np.bincount(key, weights=self_times(begins, ends), minlength=size).reshape(shape)
    found = [
        Operator(
            name=timeline.names[index],
            num=int(num[index].sum()),
            self_s=int(own_ns[index].sum()) / 1e9,
            callers={
                CALLERS[caller]: Called(num=int(num[index, caller]), self_s=int(own_ns[index, caller]) / 1e9)
                for caller in np.flatnonzero(num[index]).tolist()
            },
        )
        for index in np.flatnonzero(num.sum(axis=1)).tolist()
    ]
    return sorted(found, key=lambda row: (-row.self_s, row.name))[:MOST]


def self_times(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return nanoseconds in which each span is the innermost one: of the open spans, the one that started
    last.

    Args:
        start_ns, end_ns: times of spans in order of start, enclosing spans first. The spans should nest. A
            span that starts inside another span and ends later, as with times rounded to microseconds, is the
            innermost from its start on.
    """
    rows, parent = _parents(start_ns, end_ns)
    child = rows[parent != UNKNOWN]
    if (end_ns[child] > end_ns[parent[parent != UNKNOWN]]).any():
        end_ns = _cut(start_ns, end_ns)
        rows, parent = _parents(start_ns, end_ns)
        child = rows[parent != UNKNOWN]
    length = end_ns - start_ns
    inside = np.bincount(parent[parent != UNKNOWN], weights=length[child], minlength=len(length))
    return length - inside.astype(np.int64)


def _cut(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the end of each span, or, if a later span starts inside the span and ends after it, that span's
    start."""
    num = len(start_ns)
    inside = np.searchsorted(start_ns, end_ns) - np.arange(1, num + 1)
    # Latest end among the next 1, 2, 4, … rows; a sentinel after the last row outlasts them all.
    latest = [np.append(end_ns, np.iinfo(np.int64).max)]
    while 1 << len(latest) <= inside.max():
        width = 1 << (len(latest) - 1)
        latest.append(np.maximum(latest[-1], np.append(latest[-1][width:], np.full(width, latest[0][-1]))))
    at = np.arange(1, num + 1)
    for level in reversed(range(len(latest))):
        at += (latest[level][at] <= end_ns).astype(np.int64) << level
    cut: Ints = np.minimum(end_ns, np.append(start_ns, latest[0][-1])[at])
    return cut


def _parents(start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Return spans longer than 0 ns, and each span's parent row (UNKNOWN for outermost spans); spans should
    nest."""
    # A span without length is innermost nowhere, and would confuse which spans are open at its time.
    rows = np.flatnonzero(end_ns > start_ns)
    parent = parents(start_ns[rows], end_ns[rows])
    return rows, np.where(parent == UNKNOWN, UNKNOWN, rows[parent])
