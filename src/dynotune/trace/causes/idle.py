"""Attribute a device's idle time to causes.

Each idle nanosecond belongs to exactly one cause.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import MANY_SMALL_COPIES, SHORT_KERNEL_S, SMALL_COPY_BYTES, Place
from dynotune.trace.causes.figures import duration, of_step, per_step, percent, time_per_step
from dynotune.trace.causes.lost_time import (
    LostTime,
    by_place,
    heaviest,
    in_window,
    largest_places,
    launched_at,
)
from dynotune.trace.facts import call_order, copies, intervals
from dynotune.trace.facts.host_names import named
from dynotune.trace.facts.idle import Gaps, loader_spans
from dynotune.trace.facts.kernels import launches_graph
from dynotune.trace.facts.nesting import begins_inside, outermost
from dynotune.trace.facts.optimizer_updates import updates
from dynotune.trace.facts.rank_facts import OnDevice, RankFacts
from dynotune.trace.facts.source_locations import PlaceRows
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Ints, told_by_name

LOW_BUSY_SHARE = 0.7
"""A device with short kernels is launch-bound if it is busy for less than this share of the time window."""
LAUNCH_GAP_NS = 200_000
"""Eager torch launches a kernel every 5 to 50 µs, more slowly under a profiler. In a longer pause between two
launches, the host does work other than launching."""
MANY_LAUNCH_GAPS = 50
"""Number of gaps between short kernels per step from which launches delay the step, whatever other kernels
run."""
LATENCY_GAP_NS = 100_000
"""A queued kernel starts within a few microseconds. A kernel that stays in the queue for longer waits for
something."""
MANY_OPTIMIZER_KERNELS = 300
"""Number of kernels in one `Optimizer.step`: an optimizer that updates many parameters at once launches far
fewer."""

_DEVICE_MEMORY = re.compile(
    r"(cuda|hip)(Malloc|Free)(?!Host)|(cu|hip)Mem(Alloc|Free|Create|Release|Map|Unmap)(?!Host)"
)
_FREES = re.compile(r"(cuda|hip)Free(?!Host)|(cu|hip)Mem(Free|Release|Unmap)(?!Host)")
_HOST_MEMORY = re.compile(
    r"(cuda|hip)(MallocHost|FreeHost|Host(Alloc|Malloc|Free|Register|Unregister))|cuMem\w*Host"
)
_PINS = re.compile(r"aten::(_pin_memory|pin_memory)$")
_EMPTIES_CACHE = re.compile(r"torch/cuda/memory\.py\(\d+\): empty_cache$|<built-in .*_cuda_emptyCache")


def losses(facts: RankFacts) -> list[LostTime]:
    if facts.busiest is None:
        return []
    gaps = facts.busiest.gaps
    host_left = gaps.split_ns["host"].copy()
    found = [*_loader(facts, gaps), *_syncs(facts, gaps)]
    # From specific to general causes: each cause takes its share of the idle time and leaves the remainder to
    # later causes.
    for narrow in (_pinning, _host_memory, _device_memory, _made_on_host, _small_copies, _optimizer):
        found += narrow(facts, gaps, host_left)
    return [*found, *_host(facts, facts.busiest, host_left), *_queued(facts, gaps)]


def _loader(facts: RankFacts, gaps: Gaps) -> Iterator[LostTime]:
    lost = int(gaps.split_ns["loader"].sum())
    if lost:
        where, evidence = draws(facts)
        yield LostTime("loader-bound", lost, where, evidence)


def draws(facts: RankFacts) -> tuple[Place, tuple[str, ...]]:
    """Return where the program draws batches from the loader, and how long the drawing took."""
    host, rows = facts.timeline.host, _touching(facts, loader_spans(facts.timeline))
    took = host.end_ns[rows] - host.start_ns[rows]
    thread = host.thread[rows].astype(np.int64)
    where = heaviest(facts, facts.places.of_spans(rows), took)
    times = f"{duration(took.mean())} each, {duration(took.max())} at most"
    evidence = [f"batches drawn: {per_step(facts, len(rows))}, {times}"]
    # Without workers the user's data set runs inside the wait for the loader, and is the code to speed up.
    inside = heaviest(facts, facts.places.mostly(thread, host.start_ns[rows], host.end_ns[rows]), took)
    if inside.function not in ("", where.function):
        evidence.append(f"longest inside {inside.function}")
    return Place(where.function, where.operator), tuple(evidence)


def _uploads(facts: RankFacts) -> NDArray[np.bool_]:
    """Return for each device span whether the span is a copy from the host to the rank's busiest device."""
    found: NDArray[np.bool_] = copies.uploads(facts.timeline) & (facts.timeline.device.device == facts.device)
    return found


def _touching(facts: RankFacts, rows: Ints) -> Ints:
    """Return the given host spans (row numbers) that overlap the time window."""
    host = facts.timeline.host
    return rows[(host.end_ns[rows] > facts.window[0]) & (host.start_ns[rows] < facts.window[1])]


def _syncs(facts: RankFacts, gaps: Gaps) -> Iterator[LostTime]:
    rows = np.flatnonzero(gaps.split_ns["sync"])
    if not len(rows):
        return
    host, device = facts.timeline.host, facts.timeline.device
    lost, wait = gaps.split_ns["sync"][rows], gaps.wait[rows]
    behind_copy = np.isin(gaps.start_ns[rows], device.end_ns[_uploads(facts)])
    for cause, chosen in (("h2d-blocking", behind_copy), ("sync-per-step", ~behind_copy)):
        found = facts.places.of_calls(wait[chosen])
        for where, group in by_place(facts, found, lost[chosen]):
            calls = np.unique(wait[chosen][group])
            took = int((host.end_ns[calls] - host.start_ns[calls]).sum())
            times = f"{per_step(facts, len(calls))}, {of_step(facts, took)} of the host's time"
            evidence = f"waits that emptied the queue: {times}"
            part = lost[chosen][group]
            places = largest_places(facts, found.of(group), part, where)
            yield LostTime(cause, int(part.sum()), where, (evidence, *places))


def _pinning(facts: RankFacts, gaps: Gaps, host_left: Ints) -> Iterator[LostTime]:
    """Yield the time of page-locking memory and of copying into page-locked memory (most, once memory is
    cached)."""
    rows = outermost(facts.timeline.host, _touching(facts, named(facts.timeline, _PINS, HostKind.OPERATOR)))
    yield from _inside_spans(facts, gaps, host_left, rows, "pin-in-hot-loop", "pin_memory")


def _made_on_host(facts: RankFacts, gaps: Gaps, host_left: Ints) -> Iterator[LostTime]:
    threads = np.unique(facts.timeline.host.thread[gaps.call[gaps.call != UNKNOWN]])
    rows = _touching(facts, call_order.made_then_copied(facts.timeline, threads)[0])
    rows = np.setdiff1d(rows, named(facts.timeline, _PINS, HostKind.OPERATOR))
    told = "operators on the host before a copy"
    yield from _inside_spans(facts, gaps, host_left, rows, "create-on-cpu-then-move", told)


def _host_memory(facts: RankFacts, gaps: Gaps, host_left: Ints) -> Iterator[LostTime]:
    rows = _touching(facts, named(facts.timeline, _HOST_MEMORY, HostKind.CALL))
    rows = rows[~begins_inside(facts.timeline.host, rows, named(facts.timeline, _PINS, HostKind.OPERATOR))]
    yield from _inside_spans(facts, gaps, host_left, rows, "pinned-alloc-slow")


def _device_memory(facts: RankFacts, gaps: Gaps, host_left: Ints) -> Iterator[LostTime]:
    # Every program allocates memory at its beginning; allocating is a fault only within steps.
    if facts.num_steps is None:
        return
    rows = _queueing(facts, gaps, _touching(facts, named(facts.timeline, _DEVICE_MEMORY, HostKind.CALL)))
    num_frees = int(_frees(facts, rows).sum())
    each_step = min(num_frees, len(rows) - num_frees) >= facts.num_steps
    emptied = each_step or any(_EMPTIES_CACHE.match(name) for name in facts.timeline.names)
    cause = "empty-cache-in-loop" if emptied else "alloc-retries"
    yield from _inside_spans(facts, gaps, host_left, rows, cause)


def _inside_spans(
    facts: RankFacts, gaps: Gaps, host_left: Ints, rows: Ints, cause: str, told: str = ""
) -> Iterator[LostTime]:
    """Yield the lost time inside the given host spans on threads that queue work; subtract this time from
    `host_left`.

    Args:
        told: description of the host spans; "" for CUDA calls, whose names describe them.
    """
    host = facts.timeline.host
    rows = _queueing(facts, gaps, rows)
    inside = intervals.covered(intervals.union_of(host, rows), gaps.start_ns, gaps.end_ns)
    lost = _take(host_left, np.minimum(np.maximum(inside, _waited(facts, gaps, rows)), host_left))
    if lost:
        took = in_window(facts, host.start_ns[rows], host.end_ns[rows])
        found = facts.places.of_spans(rows) if told else facts.places.of_calls(rows)
        evidence = f"{told}: {per_step(facts, len(rows))}, {of_step(facts, int(took.sum()))}"
        seen = evidence if told else _calls_in_words(facts, rows, took)
        yield LostTime(cause, lost, heaviest(facts, found, took), (seen,))


def _queueing(facts: RankFacts, gaps: Gaps, rows: Ints) -> Ints:
    """Return the given host spans on threads that queue work; the loader's pinning thread delays no other
    thread."""
    thread = facts.timeline.host.thread
    return rows[np.isin(thread[rows], thread[gaps.call[gaps.call != UNKNOWN]])]


def _frees(facts: RankFacts, rows: Ints) -> NDArray[np.bool_]:
    return told_by_name(facts.timeline.names, facts.timeline.host.name[rows], _FREES.match)


def _waited(facts: RankFacts, gaps: Gaps, rows: Ints) -> Ints:
    """Return, for each gap that began inside a call that frees device memory, the duration of that call.

    A call that frees device memory waits for the device: without the call, the next work would be queued
    earlier.
    """
    host = facts.timeline.host
    rows = rows[_frees(facts, rows) & (host.kind[rows] == HostKind.CALL)]
    if not len(rows):
        return np.zeros(len(gaps), dtype=np.int64)
    at = rows[np.maximum(np.searchsorted(host.start_ns[rows], gaps.start_ns, side="right") - 1, 0)]
    began_in = (host.start_ns[at] <= gaps.start_ns) & (gaps.start_ns < host.end_ns[at])
    waited: Ints = np.where(began_in, host.end_ns[at] - host.start_ns[at], 0)
    return waited


def _take(host_left: Ints, part: Ints) -> int:
    host_left -= part
    return int(part.sum())


def _calls_in_words(facts: RankFacts, rows: Ints, took: Ints) -> str:
    host, names = facts.timeline.host, facts.timeline.names
    parts = []
    for name in np.unique(host.name[rows]).tolist():
        own = host.name[rows] == name
        parts.append((int(took[own].sum()), f"{names[name]}: {per_step(facts, int(own.sum()))}"))
    return "; ".join(f"{words}, {of_step(facts, total)}" for total, words in sorted(parts, reverse=True))


def _small_copies(facts: RankFacts, gaps: Gaps, host_left: Ints) -> Iterator[LostTime]:
    device = facts.timeline.device
    small = (device.num_bytes != UNKNOWN) & (device.num_bytes < SMALL_COPY_BYTES) & _uploads(facts)
    rows = np.flatnonzero(small & (device.start_ns >= facts.window[0]) & (device.start_ns < facts.window[1]))
    if facts.num_steps is None or len(rows) <= MANY_SMALL_COPIES * facts.num_steps:
        return
    work = int(in_window(facts, device.start_ns[rows], device.end_ns[rows]).sum())
    lost = _take(host_left, host_left * _ended_by(gaps, device.launch[rows])) + work
    size = f"{int(np.median(device.num_bytes[rows])):,} bytes (median)"
    evidence = f"copies of less than 64 KiB to the device: {per_step(facts, len(rows))}, {size}"
    where = launched_at(facts, rows, np.ones(len(rows), dtype=np.int64))
    yield LostTime("many-small-copies", lost, where, (evidence,), work)


def _ended_by(gaps: Gaps, calls: Ints) -> Ints:
    """Return 1 for each gap that ended with work queued by one of the given calls, else 0."""
    return np.isin(gaps.call, calls[calls != UNKNOWN]).astype(np.int64)


def _optimizer(facts: RankFacts, gaps: Gaps, host_left: Ints) -> Iterator[LostTime]:
    host, device = facts.timeline.host, facts.timeline.device
    spans, begin_ns = updates(facts.timeline, facts.window)
    rows = _kernels_launched_inside(facts, spans, begin_ns)
    if not len(spans) or len(rows) <= MANY_OPTIMIZER_KERNELS * len(spans):
        return
    took = in_window(facts, device.start_ns[rows], device.end_ns[rows])
    if np.median(took) >= SHORT_KERNEL_S * 1e9:
        return
    work = int(took.sum())
    lost = _take(host_left, host_left * _ended_by(gaps, device.launch[rows])) + work
    evidence = (
        f"{len(rows) / len(spans):,.0f} kernels in each call of the optimizer, "
        f"{duration(np.median(took))} each"
    )
    where = heaviest(facts, facts.places.of_spans(spans), host.end_ns[spans] - host.start_ns[spans])
    yield LostTime("optimizer-forloop", lost, Place(where.function, where.operator), (evidence,), work)


def _kernels_launched_inside(facts: RankFacts, spans: Ints, begin_ns: Ints) -> Ints:
    """Return the kernels of the rank's busiest device that were queued inside the given host spans."""
    device = facts.timeline.device
    kernels = (device.kind == DeviceKind.KERNEL) & (device.device == facts.device)
    rows = np.flatnonzero(kernels & (device.launch != UNKNOWN))
    return rows[begins_inside(facts.timeline.host, device.launch[rows], spans, begin_ns)]


def _host(facts: RankFacts, on_device: OnDevice, host_left: Ints) -> Iterator[LostTime]:
    gaps, places = on_device.gaps, _places_of_work(facts, on_device)
    length = gaps.end_ns - gaps.start_ns
    beside_loader = length - gaps.split_ns["loader"]
    busy_share = on_device.busy.total_ns / facts.window_ns
    mean_s = None if facts.kernels is None else facts.kernels.mean_s
    short = (length < LAUNCH_GAP_NS) & _between_short_work(facts, gaps)
    if mean_s is not None and mean_s < SHORT_KERNEL_S:
        short |= length < LAUNCH_GAP_NS
    many = np.count_nonzero(short & (host_left > 0)) >= MANY_LAUNCH_GAPS * max(1, len(facts.steps))
    if mean_s is not None and busy_share < LOW_BUSY_SHARE and (mean_s < SHORT_KERNEL_S or many):
        between = np.where(short, host_left, 0)
        host_left = host_left - between
        where = _largest_place(facts, places, between)
        evidence = (
            f"gaps: {per_step(facts, int(np.count_nonzero(between)))}, between kernels shorter than "
            f"{duration(SHORT_KERNEL_S * 1e9)}"
            if many and mean_s >= SHORT_KERNEL_S
            else f"kernels take {duration(mean_s * 1e9)} on average; the device is busy "
            f"{percent(busy_share)} of the "
            "time",
            *largest_places(facts, places, between, where),
        )
        yield LostTime("launch-bound", int(between.sum()), where, evidence)
    for where, rows in by_place(facts, places, host_left):
        longest = int(rows[np.argmax(host_left[rows])])
        evidence = (
            f"gaps: {per_step(facts, len(rows))}, {duration(beside_loader[longest])} at most",
            *largest_places(facts, places.of(rows), host_left[rows], where),
            *_inside(facts, gaps, longest, where),
        )
        yield LostTime("host-bound", int(host_left[rows].sum()), where, evidence)


def _between_short_work(facts: RankFacts, gaps: Gaps) -> NDArray[np.bool_]:
    """Return whether the device work before the gap and the device work after the gap were short."""
    device = facts.timeline.device
    rows = np.flatnonzero(device.device == facts.device)
    took = device.end_ns[rows] - device.start_ns[rows]
    by_end, by_start = (
        np.argsort(device.end_ns[rows], kind="stable"),
        np.argsort(device.start_ns[rows], kind="stable"),
    )
    before = np.searchsorted(device.end_ns[rows][by_end], gaps.start_ns, side="right") - 1
    after = np.searchsorted(device.start_ns[rows][by_start], gaps.end_ns, side="left")
    inside = (before >= 0) & (after < len(rows))
    least = np.where(
        inside, np.maximum(took[by_end[before]], took[by_start[np.minimum(after, len(rows) - 1)]]), 0
    )
    return inside & (least < SHORT_KERNEL_S * 1e9)


def _places_of_work(facts: RankFacts, on_device: OnDevice) -> PlaceRows:
    """Return each gap's code place; for a gap of mostly loader wait, the place that queued the work after the
    gap."""
    gaps, found = on_device.gaps, on_device.gap_places
    rows = np.flatnonzero((gaps.split_ns["loader"] > gaps.split_ns["host"]) & (gaps.call != UNKNOWN))
    found = found.of(np.arange(len(gaps)))
    found.put(rows, facts.places.of_calls(gaps.call[rows]))
    return found


def _inside(facts: RankFacts, gaps: Gaps, row: int, where: Place) -> tuple[str, ...]:
    """Return the function that ran on the host for most of a gap, if stacks are more precise than the gap's
    place."""
    if gaps.split_ns["loader"][row] > gaps.split_ns["host"][row]:
        return ()
    function = facts.places.deepest(int(gaps.thread[row]), int(gaps.start_ns[row]), int(gaps.end_ns[row]))
    return (f"most of the longest gap inside {function}",) if function not in ("", where.function) else ()


def _queued(facts: RankFacts, gaps: Gaps) -> Iterator[LostTime]:
    queued, length = gaps.split_ns["kernel"], gaps.end_ns - gaps.start_ns
    short = length <= LATENCY_GAP_NS
    for cause, chosen in (("launch-latency", short), ("queue-stalled", ~short)):
        rows = np.flatnonzero(chosen & (queued > 0))
        if len(rows):
            # Launch latency has no particular place in the code, but a stall has a place.
            found = facts.places.of_calls(gaps.call[rows])
            where = Place() if cause == "launch-latency" else _largest_place(facts, found, queued[rows])
            times = f"{duration(queued[rows].mean())} each, {duration(queued[rows].max())} at most"
            evidence = [f"gaps: {per_step(facts, len(rows))}, {times}"]
            in_graphs = int(queued[rows[launches_graph(facts.timeline, gaps.call[rows])]].sum())
            if cause == "queue-stalled" and in_graphs:
                evidence.append(
                    f"{time_per_step(facts, in_graphs)} before or between pieces of CUDA graphs, "
                    "of which a recording may lack some"
                )
            yield LostTime(cause, int(queued[rows].sum()), where, tuple(evidence))


def _largest_place(facts: RankFacts, found: PlaceRows, lost_ns: Ints) -> Place:
    """Return the place with the largest share of the lost time; no place if all shares are small."""
    return next((place for place, _ in by_place(facts, found, lost_ns)), Place())
