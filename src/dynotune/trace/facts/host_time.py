"""Host time in the time window: a process is in the loader, in operators, or in collectives of the CPU."""

import re

import numpy as np

from dynotune.schema.trace_summary import HostTime
from dynotune.trace.facts import intervals
from dynotune.trace.facts.host_names import COMPILED, named
from dynotune.trace.facts.idle import in_loader, loader_spans, working_thread
from dynotune.trace.timeline import HostKind, Ints, Timeline

_TRANSFER = re.compile(r"(gloo|mpi|ucc):")
COLLECTIVE = re.compile(r"(gloo|mpi|ucc|c10d):")


def host_time(timeline: Timeline, window: tuple[int, int]) -> HostTime:
    """Return one rank's host time in the time window [start, end) of ns, in parts that do not overlap."""
    thread = working_thread(timeline)
    start, end = (np.array([time], dtype=np.int64) for time in window)
    drawn = loader_spans(timeline)
    own = drawn[timeline.host.thread[drawn] == thread]
    loader_ns = int(in_loader(timeline, start, end, np.array([thread], dtype=np.int64))[0])
    in_batch = intervals.union_of(timeline.host, own, window)
    collective = named(timeline, COLLECTIVE, HostKind.OPERATOR, HostKind.ANNOTATION)
    in_operators = intervals.union_of(timeline.host, _operators(timeline, thread), window)
    operators = intervals.difference(in_operators, in_batch)
    under_way = intervals.difference(intervals.union_of(timeline.host, collective, window), in_batch)
    return HostTime(
        rank=timeline.rank,
        window_s=(window[1] - window[0]) / 1e9,
        loader_s=loader_ns / 1e9,
        operator_s=intervals.length(operators) / 1e9,
        communication_s=intervals.length(intervals.difference(under_way, operators)) / 1e9,
        loader_in_background=bool(len(drawn)) and not len(own),
    )


def collectives(timeline: Timeline) -> Ints:
    """Return the spans of collectives that run on the host, each from when this rank joins the collective."""
    return named(timeline, _TRANSFER, HostKind.OPERATOR, HostKind.ANNOTATION)


def without_operators(timeline: Timeline, window: tuple[int, int]) -> intervals.Set:
    """Return the intervals of the window in which the working thread runs no operator except collectives."""
    rows = _operators(timeline, working_thread(timeline))
    return intervals.complement(intervals.union_of(timeline.host, rows, window), *window)


def _operators(timeline: Timeline, thread: int) -> Ints:
    """Return the spans of a thread's operators and of generated code of torch.compile, not collectives."""
    collective = named(timeline, COLLECTIVE, HostKind.OPERATOR, HostKind.ANNOTATION)
    rows = np.flatnonzero((timeline.host.kind == HostKind.OPERATOR) & (timeline.host.thread == thread))
    compiled = named(timeline, COMPILED, HostKind.ANNOTATION)
    return np.union1d(np.setdiff1d(rows, collective), compiled[timeline.host.thread[compiled] == thread])
