"""Replay a recorded timeline as it would have been if the recorder had not slowed the host.

The host's own time shrinks by one factor until a step is as long as an unrecorded step. Device work keeps its
length and its order, and starts when the host queues the work or when the work before it has ended; the
host's waits for the device follow from these starts. Defined in docs/reference/diagnosis.md.
"""

from __future__ import annotations

import dataclasses
import re
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.facts import call_order, cuda_calls, intervals, steps
from dynotune.trace.facts.copies import uploads
from dynotune.trace.facts.host_names import named
from dynotune.trace.facts.idle import launching_thread, loader_spans, working_thread
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.timeline import (
    UNKNOWN,
    DeviceKind,
    DeviceSpans,
    HostKind,
    Ints,
    Timeline,
    in_order,
    taken,
)

MOST_SLOWED = 30.0
"""Largest factor by which a recorder slows a host; an unrecorded step that is shorter by more is short for
another reason."""
NUM_HALVINGS = 12
PLATEAU = 1.01
"""With a busy device, a faster host saves no time: a step within this factor of the shortest counts as
shortest."""
READY_NS = 20_000
"""A kernel that starts this soon after its launch waited only for launch latency, not for other work."""
ENDED_NS = 5_000
"""A call that waits for device work returns at most this long before the end of the work on the device's
clock."""
ALL_LAUNCHES_WAIT = 0.9
"""If a larger share of kernels than this ended before their launch returned, CUDA_LAUNCH_BLOCKING is on."""
LATENCY_NS = 5_000
"""Latency of a launch into an idle queue, if the trace contains no such launch."""

MADE = "create-on-cpu-then-move"
WITHOUT = ("sync-per-step", "h2d-blocking", "loader-bound", "pin-in-hot-loop", MADE)
"""Causes that a replay can leave out: waits for the device, for copies to the device and for the loader;
pinning; tensors that are made on the host, with their copies."""

DEVICE, HOST = "device", "host"
"""A replay can also leave out all of the device's computing and copying, or all of the host's own time."""

_LAUNCH, _WAIT, _LOADER = 0, 1, 2
_PINS = re.compile(r"aten::(_pin_memory|pin_memory)$")


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A hypothetical change with which the timeline is replayed.

    Args:
        without: the cause to leave out: one of `WITHOUT`, `DEVICE` or `HOST`.
        lengths: for each device span the factor of its length; None for a factor of 1.
        host: disjoint intervals, and the factor by which the host's own time in these intervals is
            multiplied.
        loader: factor by which waits for the loader are multiplied.
    """

    without: str = ""
    lengths: NDArray[np.float64] | None = None
    host: tuple[tuple[intervals.Set, float], ...] = ()
    loader: float = 1.0


NOTHING = Change()


@dataclass(slots=True)
class _Anchor:
    """A point in the host's time at which the host queues work or waits; between anchors the host's own time
    passes.

    Args:
        items: items of device work that the host queues here.
        awaited: item that the host waits for here; UNKNOWN if the host waits for no item.
        after_ns: nanoseconds by which the wait ends after the awaited item; negative if the wait ends
            earlier, as in copies of pageable memory.
        cause: the cause of the wait, one of `WITHOUT`.
    """

    start_ns: int
    end_ns: int
    kind: int
    items: list[int]
    awaited: int = UNKNOWN
    after_ns: int = 0
    cause: str = ""


@dataclass(slots=True)
class _Item:
    """One piece of device work.

    Args:
        before: previous item on the same stream; `held_by`: the item whose end this item waited for; UNKNOWN
            for none.
        lag_ns: nanoseconds from the launch, or from the end of the item `held_by`, to the start of this item.
    """

    length_ns: int
    before: int
    held_by: int
    lag_ns: int
    step: int


def retimed(timeline: Timeline, step_s: float, wait_s: float | None) -> tuple[Timeline, float]:
    """Return the timeline with the host sped up so that a step takes `step_s`, and the factor of this
    speed-up.

    Args:
        wait_s: seconds that an unrecorded step waits for its loader; None to leave these waits as they are.

    Returns:
        The unchanged timeline and 1 if the timeline has no steps or no launches, or its steps are already
        that short.
    """
    if (again := replay(timeline, wait_s)) is None:
        return timeline, 1.0
    wanted_ns = max(step_s * 1e9, again.step_ns(MOST_SLOWED) * PLATEAU)
    if again.step_ns(1.0) <= wanted_ns:
        return again.timeline(1.0), 1.0
    low, high = 1.0, MOST_SLOWED
    for _ in range(NUM_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if again.step_ns(middle) > wanted_ns else (low, middle)
    return again.timeline(high), high


def savings(timeline: Timeline, wait_s: float | None, faster: float) -> dict[str, float]:
    """Return the share of a step that a replay saves without each cause of `WITHOUT`, without the device's
    work (`DEVICE`) and without the host's (`HOST`).

    The saving without a wait can exceed the idle time right after the wait, because the host's later work
    then overlaps the device's work. The saving without `DEVICE` is less than the device's time if the host or
    the loader sets the pace.

    Args:
        wait_s: as for `retimed`. faster: the factor that `retimed` returns.
    """
    if (again := replay(timeline, wait_s, faster)) is None:
        return {}
    causes = [*(cause for cause in WITHOUT if again.has(cause)), DEVICE, HOST]
    saved = {cause: again.saved(Change(without=cause)) for cause in causes}
    return {cause: share for cause, share in saved.items() if share > 0}


def replay(timeline: Timeline, wait_s: float | None, faster: float = 1.0) -> Replay | None:
    """Return the timeline, prepared for replays under changes; None if the timeline has no steps or no
    launches.

    Args:
        wait_s: as for `retimed`. faster: the factor that `retimed` returns.
    """
    found = steps.find(timeline)
    if len(found) < 2 or launching_thread(timeline) == UNKNOWN:
        return None
    return Replay(timeline, found, wait_s, faster)


class Replay:
    """The host's anchors and the device's items, to be replayed at any speed of the host.

    Args:
        faster: default speed of the host.
    """

    def __init__(self, timeline: Timeline, found: steps.Steps, wait_s: float | None, faster: float) -> None:
        self._timeline, self._steps, self._faster = timeline, found, faster
        self._step_ns: float | None = None
        self._begin_ns = int(found.start_ns.min())
        by_end = np.argsort(timeline.device.end_ns, kind="stable")
        self._by_end: list[int] = by_end.tolist()
        self._ends: list[int] = timeline.device.end_ns[by_end].tolist()
        self._synchronous, self._waits = _synchronous(timeline), cuda_calls.waits(timeline)
        self._to_device = uploads(timeline)
        self._made, copying = call_order.made_then_copied(timeline, self._queueing_threads())
        self._copying = self._spans(copying)
        self._recorded = timeline.device.start_ns, timeline.device.end_ns
        self._items = self._items_of(timeline.device)
        self._loader_ns = 0
        anchors = [anchor for anchor in self._found_anchors() if anchor.end_ns > self._begin_ns]
        self._anchors = sorted(anchors, key=lambda anchor: (anchor.start_ns, anchor.kind))
        pinning = named(timeline, _PINS, HostKind.OPERATOR)
        pinning = pinning[np.isin(timeline.host.thread[pinning], self._queueing_threads())]
        self._own_work = {"pin-in-hot-loop": self._spans(pinning), MADE: self._spans(self._made)}
        recorded_s = self._loader_ns / 1e9 / len(found)
        self._loader_scale = wait_s / recorded_s if wait_s is not None and recorded_s else 1.0
        self._gaps = self._gaps_before_anchors()

    def has(self, cause: str) -> bool:
        return len(self._own_work.get(cause, ())) > 0 or any(
            anchor.cause == cause for anchor in self._anchors
        )

    def saved(self, change: Change, faster: float | None = None) -> float:
        """Return the share of a step that a change saves; below 0 if the step takes longer with the change.

        Args:
            faster: speed of the host under the change; None for the default.
        """
        if self._step_ns is None:
            self._step_ns = self.step_ns(self._faster)
        return 1 - self.step_ns(faster or self._faster, change) / self._step_ns

    def is_paced_by_device(self, faster: float) -> bool:
        """Return whether the device sets the pace at this host speed, so that a faster host shortens no
        step."""
        return self.saved(NOTHING, max(faster, self._faster)) < PLATEAU - 1

    def step_ns(self, faster: float, change: Change = NOTHING) -> float:
        """Return the nanoseconds of a step at a host speed, after host and device have reached a steady
        state."""
        old, new, _, end = self._run(faster, change)
        host = np.interp(self._steps.end_ns, old, new)
        num = len(host) - 1
        last: dict[int, float] = {}
        for item, ended in zip(self._items, end, strict=True):
            last[item.step] = max(last.get(item.step, 0.0), ended)
        inside = [last[step] for step in sorted(last) if 0 <= step <= num]
        of_device = (inside[-1] - inside[0]) / (len(inside) - 1) if len(inside) > 1 else 0.0
        return max(float(host[-1] - host[0]) / num, of_device)

    def timeline(self, faster: float) -> Timeline:
        old, new, start, end = self._run(faster, NOTHING)
        host, device = self._timeline.host, self._timeline.device
        # Times before the first step stay as recorded.
        begin, ended = (
            np.rint(np.where(times < old[0], times, np.interp(times, old, new))).astype(np.int64)
            for times in (host.start_ns, host.end_ns)
        )
        of_host = in_order(begin, ended)
        place = np.empty(len(of_host), dtype=np.int64)
        place[of_host] = np.arange(len(of_host))
        launch = np.where(device.launch == UNKNOWN, UNKNOWN, place[device.launch])
        started = np.rint(np.array(start)).astype(np.int64)
        stopped = np.maximum(started, np.rint(np.array(end)).astype(np.int64))
        of_device = in_order(started, stopped)
        return dataclasses.replace(
            self._timeline,
            host=taken(dataclasses.replace(host, start_ns=begin, end_ns=ended), of_host),
            device=taken(
                dataclasses.replace(device, start_ns=started, end_ns=stopped, launch=launch), of_device
            ),
        )

    def _gaps_before_anchors(self) -> tuple[Ints, Ints]:
        """Return the interval of the host's own time before each anchor; an empty interval before a nested
        anchor."""
        was, starts, ends = self._begin_ns, [], []
        for anchor in self._anchors:
            begin = was if anchor.end_ns < was else max(anchor.start_ns, was)
            starts.append(was)
            ends.append(begin)
            was = max(was, anchor.end_ns)
        starts.append(was)
        ends.append(int(max(self._timeline.host.end_ns.max(), was)) + 1)
        return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)

    def _own_ns(self, faster: float, change: Change) -> list[float]:
        """Return the nanoseconds of the host's own time before each anchor, and after the last anchor."""
        start, end = self._gaps
        if change.without == HOST:
            return [0.0] * len(start)
        own = (end - start).astype(np.float64)
        needless = self._own_work.get(change.without)
        for spans, factor in (*change.host, *([] if needless is None else [(needless, 0.0)])):
            own -= (1 - factor) * intervals.covered(spans, start, end)
        return (own / faster).tolist()  # type: ignore[no-any-return]

    def _lengths_ns(self, change: Change, spared: frozenset[int]) -> list[float]:
        lengths = np.array([item.length_ns for item in self._items], dtype=np.float64)
        if change.lengths is not None:
            lengths *= change.lengths
        if change.without == DEVICE:
            lengths[:] = 0.0
        lengths[list(spared)] = 0.0
        return lengths.tolist()  # type: ignore[no-any-return]

    def _run(
        self, faster: float, change: Change
    ) -> tuple[Ints, NDArray[np.float64], list[float], list[float]]:
        """Return the host's points in time in recording and replay, and each item's start and end in the
        replay."""
        without, scale = change.without, self._loader_scale * change.loader
        spared = self._copies_of_made() if without == MADE else frozenset[int]()
        lengths, own_ns = self._lengths_ns(change, spared), self._own_ns(faster, change)
        after = 0.0 if without == HOST else 1 / faster
        # Items that were queued before the first step keep their recorded times.
        start, end = (times.astype(np.float64).tolist() for times in self._recorded)
        was, now = self._begin_ns, float(self._begin_ns)
        old, new = [was], [now]
        for anchor, own in zip(self._anchors, own_ns, strict=False):
            if anchor.end_ns < was:
                self._queue(anchor.items, now, start, end, lengths)
                continue
            begin = max(anchor.start_ns, was)
            now += own
            old.append(begin)
            new.append(now)
            self._queue(anchor.items, now, start, end, lengths)
            needless = without == MADE and anchor.awaited in spared
            if anchor.kind == _WAIT and anchor.cause != without and not needless:
                free = end[anchor.awaited] if anchor.awaited != UNKNOWN else 0.0
                now = max(now, free + min(anchor.after_ns, 0)) + max(anchor.after_ns, 0) * after
            elif anchor.kind == _LOADER and anchor.cause != without:
                now += (anchor.end_ns - begin) * scale
            was = anchor.end_ns
            old.append(was)
            new.append(now)
        old.append(int(self._gaps[1][-1]))
        new.append(now + own_ns[-1])
        return np.array(old, dtype=np.int64), np.maximum.accumulate(np.array(new)), start, end

    def _queue(
        self, items: list[int], now: float, start: list[float], end: list[float], lengths: list[float]
    ) -> None:
        for index in items:
            item = self._items[index]
            ready = now + (LATENCY_NS if item.held_by != UNKNOWN else item.lag_ns)
            if item.before != UNKNOWN:
                ready = max(ready, end[item.before])
            if item.held_by != UNKNOWN:
                ready = max(ready, end[item.held_by] + item.lag_ns)
            start[index], end[index] = ready, ready + lengths[index]

    def _items_of(self, device: DeviceSpans) -> list[_Item]:
        """Return all items of device work, each with the item whose end it waited for."""
        host_end = self._timeline.host.end_ns
        last: dict[tuple[int, int], int] = {}
        found = []
        for index in range(len(device)):
            start, stop = int(device.start_ns[index]), int(device.end_ns[index])
            key = (int(device.device[index]), int(device.stream[index]))
            before = last.get(key, UNKNOWN)
            last[key] = index
            launch = int(device.launch[index])
            queued = start if launch == UNKNOWN else min(int(host_end[launch]), start)
            if launch in self._synchronous:
                queued = min(int(self._timeline.host.start_ns[launch]), start)
            held = UNKNOWN
            if start - queued > READY_NS or (before != UNKNOWN and int(device.end_ns[before]) > queued):
                at = bisect_right(self._ends, start) - 1
                # An item that ended before another item was queued did not delay the other item.
                if at >= 0 and self._ends[at] > queued and self._by_end[at] != index:
                    held = self._by_end[at]
            lag = start - (int(device.end_ns[held]) if held != UNKNOWN else queued)
            step = int(np.searchsorted(self._steps.start_ns, queued, side="right")) - 1
            found.append(_Item(stop - start, before, held, lag, step))
        return found

    def _found_anchors(self) -> list[_Anchor]:
        host, device = self._timeline.host, self._timeline.device
        queued: dict[int, list[int]] = {}
        alone = []
        for index, launch in enumerate(device.launch.tolist()):
            if launch == UNKNOWN:
                # Items before the first item with a launch were queued before the recording, and keep their
                # recorded times.
                if not queued:
                    continue
                at = int(device.start_ns[index])
                alone.append(_Anchor(at, at, _LAUNCH, [index]))
            else:
                queued.setdefault(launch, []).append(index)
        waits = set(outermost(host, np.flatnonzero(self._waits)).tolist()) | self._synchronous
        anchors = [self._wait(row, queued.get(row, [])) for row in sorted(waits)]
        for launch, items in queued.items():
            if launch not in waits:
                at = int(host.end_ns[launch])
                anchors.append(_Anchor(at, at, _LAUNCH, items))
        return [*alone, *anchors, *self._loaders()]

    def _wait(self, row: int, items: list[int]) -> _Anchor:
        host, device = self._timeline.host, self._timeline.device
        start, stop = int(host.start_ns[row]), int(host.end_ns[row])
        awaited = max(items, key=lambda index: int(device.end_ns[index]), default=UNKNOWN)
        if awaited == UNKNOWN:
            awaited = self._last_before(start, stop)
        ended = start if awaited == UNKNOWN else max(start, int(device.end_ns[awaited]))
        cause = "h2d-blocking" if awaited != UNKNOWN and self._to_device[awaited] else "sync-per-step"
        return _Anchor(start, stop, _WAIT, items, awaited, stop - ended, cause)

    def _last_before(self, start: int, stop: int) -> int:
        """Return, among the items queued by `start`, the item that ended last by `stop`."""
        host, device = self._timeline.host, self._timeline.device
        at = bisect_right(self._ends, stop + ENDED_NS) - 1
        while at >= 0:
            index = self._by_end[at]
            launch = int(device.launch[index])
            if launch == UNKNOWN or int(host.end_ns[launch]) <= start:
                return index
            at -= 1
        return UNKNOWN

    def _copies_of_made(self) -> frozenset[int]:
        """Return the items that copy tensors made on the host."""
        launch = self._timeline.device.launch
        at = self._timeline.host.start_ns[launch]
        inside = (launch != UNKNOWN) & (intervals.covered(self._copying, at, at + 1) > 0)
        return frozenset(np.flatnonzero(inside & self._to_device).tolist())

    def _spans(self, rows: Ints) -> intervals.Set:
        return intervals.union_of(self._timeline.host, rows)

    def _queueing_threads(self) -> Ints:
        launch = self._timeline.device.launch
        return np.unique(self._timeline.host.thread[launch[launch != UNKNOWN]])

    def _loaders(self) -> list[_Anchor]:
        """Return waits for the loader within the steps, on the thread that makes the steps."""
        host = self._timeline.host
        rows = loader_spans(self._timeline)
        rows = rows[host.thread[rows] == working_thread(self._timeline)]
        rows = rows[
            (host.start_ns[rows] >= self._begin_ns) & (host.end_ns[rows] <= int(self._steps.end_ns.max()))
        ]
        self._loader_ns = int((host.end_ns[rows] - host.start_ns[rows]).sum())
        spans = zip(host.start_ns[rows].tolist(), host.end_ns[rows].tolist(), strict=True)
        return [_Anchor(*span, _LOADER, [], cause="loader-bound") for span in spans]


def _synchronous(timeline: Timeline) -> set[int]:
    """Return calls that end after their queued work has ended or, for copies of pageable memory, has long
    begun.

    A short kernel may end before its launch returns although the host did not wait; so either all launches
    count as waits or none.
    """
    host, device = timeline.host, timeline.device
    rows = np.flatnonzero(device.launch != UNKNOWN)
    returned = host.end_ns[device.launch[rows]]
    ended, is_copy = device.end_ns[rows] <= returned, device.kind[rows] == DeviceKind.COPY
    if (~is_copy).any() and ended[~is_copy].mean() < ALL_LAUNCHES_WAIT:
        ended &= is_copy
    begun = is_copy & (device.start_ns[rows] + ENDED_NS < returned)
    some: set[int] = set(device.launch[rows[ended | begun]].tolist())
    not_all: set[int] = set(device.launch[rows[~(ended | begun)]].tolist())
    return some - not_all
