"""Busy time of a device by kinds of work: it computes, copies memory and communicates, also at once."""

from dataclasses import dataclass

import numpy as np

from dynotune.trace.facts import intervals, kernel_names, kernels
from dynotune.trace.timeline import DeviceKind, Timeline

_COMPUTE = 1
_COPY = 2
_COMMUNICATION = 4


@dataclass(frozen=True, slots=True)
class Busy:
    """Nanoseconds by the combination of kinds of work that ran at once; the fields sum to the device's busy
    time."""

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
        return (
            self.communication_ns
            + self.compute_and_communication_ns
            + self.copy_and_communication_ns
            + self.all_ns
        )


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
    collective = kernels.classes_of(timeline) == kernel_names.COMMUNICATION
    copies = spans.kind == DeviceKind.COPY
    compute, copy, communication = (
        intervals.clip(intervals.union(spans.start_ns[here & kind], spans.end_ns[here & kind]), *window)
        for kind in (~copies & ~collective, copies, collective)
    )
    return compute, copy, communication
