"""Time in the time window by kinds of work.

A device computes, copies memory and communicates, also at once. One process on the host is in the loader, in operators,
or in collectives on the CPU.
"""

import re
from dataclasses import dataclass

import numpy as np

from dynotune.schema.trace_summary import HostTime
from dynotune.trace.facts import intervals, kernels
from dynotune.trace.facts.host_names import named
from dynotune.trace.facts.idle import in_loader, loader_spans, working_thread
from dynotune.trace.facts.kernel_names import CLASSES
from dynotune.trace.timeline import DeviceKind, HostKind, Ints, Timeline

_COMPUTE, _COPY, _COMMUNICATION = 1, 2, 4
_TRANSFER = re.compile(r"(gloo|mpi|ucc):")
COLLECTIVE = re.compile(r"(gloo|mpi|ucc|c10d):")
# Code that torch.compile generates calls no operator: the kernels of this code run inside these spans.
COMPILED = re.compile(r"## Call CompiledFxGraph|CompiledFunction")


@dataclass(frozen=True, slots=True)
class Busy:
    """Nanoseconds by the combination of kinds of work that ran at once; the fields sum to the device's busy time."""

    compute_ns: int
    copy_ns: int
    communication_ns: int
    compute_and_copy_ns: int
    compute_and_communication_ns: int
    copy_and_communication_ns: int
    all_ns: int

    @property
    def total_ns(self) -> int:
        return self.any_compute_ns + self.copy_ns + self.communication_ns + self.copy_and_communication_ns

    @property
    def any_compute_ns(self) -> int:
        return self.compute_ns + self.compute_and_copy_ns + self.compute_and_communication_ns + self.all_ns

    @property
    def any_copy_ns(self) -> int:
        return self.copy_ns + self.compute_and_copy_ns + self.copy_and_communication_ns + self.all_ns

    @property
    def any_communication_ns(self) -> int:
        return self.communication_ns + self.compute_and_communication_ns + self.copy_and_communication_ns + self.all_ns


def busy(timeline: Timeline, device: int, window: tuple[int, int]) -> Busy:
    """Return the device's busy time by kinds of work in the time window [start, end) of nanoseconds."""
    compute, copy, communication = work_sets(timeline, device, window)
    edges, kinds = [], []
    for kind, part in ((_COMPUTE, compute), (_COPY, copy), (_COMMUNICATION, communication)):
        edges += [part[:, 0], part[:, 1]]
        # Intervals of one kind of work are disjoint: each interval edge turns its kind on or off.
        kinds += [np.full(2 * len(part), kind)]
    time = np.concatenate(edges)
    order = np.argsort(time, kind="stable")
    running = np.bitwise_xor.accumulate(np.concatenate(kinds)[order]) if len(order) else order
    lasts = np.diff(time[order], append=time[order][-1:])
    total = [int(lasts[running == kinds_now].sum()) for kinds_now in range(8)]
    pairs = (_COMPUTE | _COPY, _COMPUTE | _COMMUNICATION, _COPY | _COMMUNICATION)
    together = (_COMPUTE, _COPY, _COMMUNICATION, *pairs, _COMPUTE | _COPY | _COMMUNICATION)
    return Busy(*(total[kinds] for kinds in together))


def work_sets(
    timeline: Timeline, device: int, window: tuple[int, int]
) -> tuple[intervals.Set, intervals.Set, intervals.Set]:
    """Return the intervals of the time window in which compute, memory copies and communication ran."""
    spans = timeline.device
    here = spans.device == device
    collective = kernels.classes_of(timeline) == CLASSES.index("communication")
    copies = spans.kind == DeviceKind.COPY
    compute, copy, communication = (
        intervals.clip(intervals.union(spans.start_ns[here & kind], spans.end_ns[here & kind]), *window)
        for kind in (~copies & ~collective, copies, collective)
    )
    return compute, copy, communication


def of_host(timeline: Timeline, window: tuple[int, int]) -> HostTime:
    """Return one rank's host time in the time window [start, end) of ns, in parts that do not overlap."""
    thread = working_thread(timeline)
    start, end = (np.array([time], dtype=np.int64) for time in window)
    drawn = loader_spans(timeline)
    own = drawn[timeline.host.thread[drawn] == thread]
    loader_ns = int(in_loader(timeline, start, end, np.array([thread], dtype=np.int64))[0])
    in_batch = intervals.union_of(timeline.host, own, window)
    collective = named(timeline, COLLECTIVE, HostKind.OPERATOR, HostKind.ANNOTATION)
    operators = intervals.difference(intervals.union_of(timeline.host, _operators(timeline, thread), window), in_batch)
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
    """Return the time spans of collectives that run on the host, each from when this rank joins the collective."""
    return named(timeline, _TRANSFER, HostKind.OPERATOR, HostKind.ANNOTATION)


def without_operators(timeline: Timeline, window: tuple[int, int]) -> intervals.Set:
    """Return the intervals of the time window in which the working thread runs no operator other than collectives."""
    rows = _operators(timeline, working_thread(timeline))
    return intervals.complement(intervals.union_of(timeline.host, rows, window), *window)


def _operators(timeline: Timeline, thread: int) -> Ints:
    """Return the spans of one thread's operators and of code that torch.compile generated, except collectives."""
    collective = named(timeline, COLLECTIVE, HostKind.OPERATOR, HostKind.ANNOTATION)
    rows = np.flatnonzero((timeline.host.kind == HostKind.OPERATOR) & (timeline.host.thread == thread))
    compiled = named(timeline, COMPILED, HostKind.ANNOTATION)
    return np.union1d(np.setdiff1d(rows, collective), compiled[timeline.host.thread[compiled] == thread])
