"""Find when a device was idle, and which event the device waited for. Defined in docs/reference/trace.md."""

from dataclasses import dataclass

import numpy as np

from dynotune.schema.trace_summary import Idle, IdleCause
from dynotune.trace.facts import cuda_calls, intervals
from dynotune.trace.facts.host_names import BACKWARD, LOADER, STEP, named
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.facts.steps import Steps
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Ints, Timeline

CAUSES: tuple[IdleCause, ...] = ("host", "loader", "sync", "kernel", "other")


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle gaps of one device in a time window, in order of time. Every column has one int64 value per gap.

    Args:
        split_ns: nanoseconds of each gap by cause (the five `CAUSES`); the causes of a gap sum to `end_ns -
            start_ns`.
        call: row of the CALL that queued the work after the gap; UNKNOWN if no call is known.
        thread: the thread that queued the work after the gap; if unknown, the thread that queues most work.
        wait: row of the CALL that waited for the device when the gap began; UNKNOWN if no call waited.
    """

    start_ns: Ints
    end_ns: Ints
    split_ns: dict[IdleCause, Ints]
    call: Ints
    thread: Ints
    wait: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def idle_ns(self) -> dict[IdleCause, int]:
        """Return each cause's total nanoseconds over all gaps. The totals sum to the device's idle time."""
        return {cause: int(part.sum()) for cause, part in self.split_ns.items()}

    def late_ns(self) -> int:
        """Return the ns of cause `kernel` in gaps that began before work was queued: earlier queueing hides
        these."""
        before = self.split_ns["host"] + self.split_ns["loader"] + self.split_ns["sync"]
        return int(self.split_ns["kernel"][before > 0].sum())

    def cause(self) -> list[IdleCause]:
        """Return for each gap the cause with the largest share of the gap."""
        largest = np.argmax([self.split_ns[cause] for cause in CAUSES], axis=0)
        return [CAUSES[index] for index in largest.tolist()]


def gaps(timeline: Timeline, device: int, window: tuple[int, int]) -> Gaps:
    """Return the intervals of the window in which the device was idle, each split by causes of the idle
    time."""
    ran = _ran(timeline, device)
    start_ns, end_ns = timeline.device.start_ns[ran], timeline.device.end_ns[ran]
    free = intervals.complement(intervals.union(start_ns, end_ns), *window)
    start, end = free[:, 0].copy(), free[:, 1].copy()
    call = _ending_call(timeline, ran, end)
    # No work was queued between the last activity and the window's end: treat the end as the return of a
    # queueing call.
    returned = _taken(timeline.host.end_ns, call, missing=end)
    queued = np.clip(returned, start, end)
    thread = np.full(len(start), launching_thread(timeline), dtype=np.int64)
    thread = _taken(timeline.host.thread.astype(np.int64), call, missing=thread)
    loader = in_loader(timeline, start, queued, thread)
    wait, waited = _waits(timeline, start, until=_taken(timeline.host.start_ns, call, missing=end))
    sync = np.minimum(queued - start - loader, waited)
    launches_known = bool((timeline.device.launch[ran] != UNKNOWN).any())
    explained = ((call != UNKNOWN) | ~np.isin(end, start_ns)) & launches_known
    split: dict[IdleCause, Ints] = {
        "host": (queued - start - loader - sync) * explained,
        "loader": loader * explained,
        "sync": sync * explained,
        "kernel": (end - queued) * explained,
        "other": (end - start) * ~explained,
    }
    return Gaps(start, end, split, call, thread, np.where(explained, wait, UNKNOWN))


def launching_thread(timeline: Timeline) -> int:
    """Return the thread that queues most of the device's work; UNKNOWN if no launch is known."""
    launch = timeline.device.launch[timeline.device.launch != UNKNOWN]
    return int(np.argmax(np.bincount(timeline.host.thread[launch]))) if len(launch) else UNKNOWN


def working_thread(timeline: Timeline) -> int:
    """Return the thread that runs the program's steps; UNKNOWN if the trace does not show this thread.

    The working thread is the thread with the profiler's steps if that thread does any work; else the thread
    that queues most work; else the thread with most operators. Autograd's threads are left out: autograd
    queues more than half of a training step's work, and the caller of `backward` waits for autograd.
    """
    host = timeline.host
    operators = np.bincount(host.thread[host.kind == HostKind.OPERATOR], minlength=len(timeline.threads))
    launch = timeline.device.launch[timeline.device.launch != UNKNOWN]
    queued = np.bincount(host.thread[launch], minlength=len(timeline.threads))
    work = queued if queued.any() else operators
    marked = np.bincount(host.thread[named(timeline, STEP, HostKind.ANNOTATION, HostKind.OPERATOR)])
    if marked.any() and work[np.argmax(marked)]:
        return int(np.argmax(marked))
    backward = np.bincount(host.thread[named(timeline, BACKWARD, HostKind.OPERATOR)], minlength=len(work))
    forward = np.where(backward > 0, 0, work)
    of_any = forward if forward.any() else work
    return int(np.argmax(of_any)) if of_any.any() else UNKNOWN


def loader_spans(timeline: Timeline) -> Ints:
    """Return the outermost spans inside the DataLoader's `__next__`."""
    return outermost(timeline.host, named(timeline, LOADER, HostKind.ANNOTATION, HostKind.OPERATOR))


def _taken(values: Ints, rows: Ints, *, missing: Ints) -> Ints:
    """Return `values[rows]`, with `missing` wherever the row number is UNKNOWN."""
    found = missing.copy()
    known = rows != UNKNOWN
    found[known] = values[rows[known]]
    return found


def _ran(timeline: Timeline, device: int) -> Ints:
    """Return the device spans longer than 0 ns by start; of spans that start together, the first queued comes
    first."""
    spans = timeline.device
    rows = np.flatnonzero((spans.device == device) & (spans.end_ns > spans.start_ns))
    if (np.diff(spans.start_ns[rows]) == 0).any():
        never = np.full(len(rows), np.iinfo(np.int64).max)
        returned = _taken(timeline.host.end_ns, spans.launch[rows], missing=never)
        rows = rows[np.lexsort((returned, spans.start_ns[rows]))]
    return rows


def _ending_call(timeline: Timeline, ran: Ints, end_ns: Ints) -> Ints:
    """Return the row of the call that queued the device work starting at each time; UNKNOWN without such a
    call."""
    start_ns = timeline.device.start_ns[ran]
    call = np.full(len(end_ns), UNKNOWN, dtype=np.int64)
    at = np.searchsorted(start_ns, end_ns)
    starts = np.flatnonzero(at < len(ran))
    starts = starts[start_ns[at[starts]] == end_ns[starts]]
    call[starts] = timeline.device.launch[ran[at[starts]]]
    return call


def in_loader(timeline: Timeline, start_ns: Ints, end_ns: Ints, thread: Ints) -> Ints:
    """Return how many nanoseconds of each interval [start, end) the thread spent inside the loader's
    `__next__`.

    Another thread inside `__next__` counts while this thread did none of torch's work: a loader that fills a
    queue in the background does not delay a busy thread.
    """
    host = timeline.host
    rows = loader_spans(timeline)
    total = np.zeros(len(start_ns), dtype=np.int64)
    if not len(rows):
        return total
    for one in np.unique(thread):
        inside = intervals.union_of(host, rows[host.thread[rows] == one])
        if (host.thread[rows] != one).any():
            work = (host.thread == one) & ((host.kind == HostKind.OPERATOR) | (host.kind == HostKind.CALL))
            elsewhere = intervals.union_of(host, rows[host.thread[rows] != one])
            elsewhere = intervals.difference(elsewhere, intervals.union_of(host, np.flatnonzero(work)))
            inside = np.concatenate((inside, elsewhere))
            inside = intervals.union(inside[:, 0], inside[:, 1])
        of_thread = thread == one
        total[of_thread] = intervals.covered(inside, start_ns[of_thread], end_ns[of_thread])
    return total


def _waits(timeline: Timeline, start: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return the call that waited for the device when each gap began, and for how many nanoseconds the call
    waited.

    A waiting call must have returned by `until`, when the work after the gap was queued; a call that returned
    later delayed nothing. Of several waiting calls, the longest counts.
    """
    host = timeline.host
    row = np.full(len(start), UNKNOWN, dtype=np.int64)
    waited = np.zeros(len(start), dtype=np.int64)
    waiting = outermost(host, np.flatnonzero(cuda_calls.waits(timeline)))
    wait_ns = host.end_ns[waiting] - host.start_ns[waiting] + _copied_before(timeline, waiting)
    for thread in np.unique(host.thread[waiting]):
        own = np.flatnonzero(host.thread[waiting] == thread)
        at = own[np.maximum(np.searchsorted(host.start_ns[waiting[own]], start, side="right") - 1, 0)]
        in_it = (host.start_ns[waiting[at]] <= start) & (host.end_ns[waiting[at]] > start)
        in_it &= (host.end_ns[waiting[at]] <= until) & (wait_ns[at] > waited)
        row[in_it], waited[in_it] = waiting[at[in_it]], wait_ns[at[in_it]]
    return row, waited


def _copied_before(timeline: Timeline, waiting: Ints) -> Ints:
    """Return the ns of the call before each wait if the call copies pageable memory and so belongs to the
    wait.

    The host copies pageable memory piece by piece into a buffer, and waits for each piece.
    """
    host, device = timeline.host, timeline.device
    pageable = np.array(["Pageable" in name for name in timeline.names], dtype=bool)
    queueing = np.zeros(len(host), dtype=bool)
    queueing[device.launch[device.launch != UNKNOWN]] = True
    copies = np.zeros(len(host), dtype=bool)
    copied = np.flatnonzero((device.kind == DeviceKind.COPY) & (device.launch != UNKNOWN))
    copies[device.launch[copied[pageable[device.name[copied]]]]] = True
    before = np.zeros(len(waiting), dtype=np.int64)
    for thread in np.unique(host.thread[waiting]):
        own = np.flatnonzero((host.thread[waiting] == thread) & ~queueing[waiting])
        queued = np.flatnonzero(queueing & (host.thread == thread))
        if not len(queued):
            continue
        last = np.searchsorted(queued, waiting[own]) - 1
        row = queued[np.maximum(last, 0)]
        before[own] = np.where((last >= 0) & copies[row], host.end_ns[row] - host.start_ns[row], 0)
    return before


# A gap at the start of a recording: the recorder waited for the device, but the program itself may not wait
# there.


def first_gap(
    timeline: Timeline, gaps: Gaps, steps: Steps, window: tuple[int, int]
) -> tuple[Idle, Idle] | None:
    """Return the ns of the window's first gap, and the mean gap before the first device work of later steps.

    None if the time window does not begin with a gap, or has too few steps.
    """
    if not len(gaps) or gaps.start_ns[0] != window[0] or len(steps) < 3:
        return None
    launches = timeline.device.launch[timeline.device.launch != UNKNOWN]
    queued_ns = np.sort(timeline.host.start_ns[launches])
    ends_with = np.where(gaps.call == UNKNOWN, UNKNOWN, timeline.host.start_ns[gaps.call])
    later: list[int] = []
    for start, end in zip(steps.start_ns[1:].tolist(), steps.end_ns[1:].tolist(), strict=True):
        at = int(np.searchsorted(queued_ns, start))
        if at < len(queued_ns) and queued_ns[at] < end:
            # A step without a gap before its first work counts 0: the device was busy.
            later += np.flatnonzero(ends_with == queued_ns[at])[:1].tolist()
    num = len(steps) - 1
    first = {f"{cause}_s": int(part[0]) / 1e9 for cause, part in gaps.split_ns.items()}
    usual = {f"{cause}_s": int(part[later].sum()) / 1e9 / num for cause, part in gaps.split_ns.items()}
    return Idle(**first), Idle(**usual)
