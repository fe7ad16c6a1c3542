"""Say what bounds the number of streams: as predicted from runs that hold the limits, and as a run shows that
broke one.

A part of the machine bounds the streams at the value at which the frames of all streams take all that there
is of it. Parts that only show under load, such as a lock, are not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.largest import Bound, Limit, ValueRun
from dynotune.schema.serving import Serving
from dynotune.text import words

USED_UP = 0.85
"""Share of a part from which on it holds others up: its queue is longer than its work."""
ONE_CORE = (0.85, 1.25)
"""Cores of a process whose threads take turns by Python's interpreter lock."""
AT_ONCE = 1.1
NOTABLE = 0.1
"""Cores that other programs take from which on they are told."""
LEAST_GROWTH_BYTES = 1 << 20


def predicted(
    runs: Sequence[ValueRun], limits: Sequence[Limit], fps: float | None, facts: Facts
) -> list[Bound] | Unknown:
    """Return the bounds that runs show, what a frame takes by the largest value, the tightest first."""
    known = sorted(
        ((run.value, run.serving) for run in runs if run.serving is not None), key=lambda one: one[0]
    )
    if fps is None or not known:
        return Unknown("what a further stream takes is known only from the frames of streams")
    value, serving = known[-1]
    bounds = [*_of_cores(serving, fps), *_of_device(serving, fps), *_of_thread(serving, value, fps)]
    if len(known) > 1:
        bounds += _of_memory(known, limits, facts)
    if not bounds:
        return Unknown("the samples of the machine do not show what a frame takes")
    # What ran is no bound.
    bounds = [
        bound if bound.largest is None else msgspec.structs.replace(bound, largest=max(value, bound.largest))
        for bound in bounds
    ]
    return sorted(bounds, key=lambda bound: bound.largest if bound.largest is not None else 1 << 60)


def _of_cores(serving: Serving, fps: float) -> list[Bound]:
    if not serving.cpu_s:
        return []
    parts = f"{words.duration(serving.call_cpu_s)} in calls of the model, " if serving.call_cpu_s else ""
    between = f"{words.duration(serving.between_cpu_s)} between them" if serving.call_cpu_s else ""
    of_these = f", of these {parts}{between}" if parts else ""
    # A quota bounds the program alone, and may be far below the cores that others share.
    free = min(serving.num_cores, serving.num_cores if serving.free_cores is None else serving.free_cores)
    taken = f", of which other programs leave {free:.1f}" if free <= serving.num_cores - NOTABLE else ""
    return [
        Bound(
            name="cores",
            why=f"A frame takes {words.duration(serving.cpu_s)} of a core{of_these}; there are "
            f"{serving.num_cores:g} cores{taken}.",
            largest=int(free / (fps * serving.cpu_s)),
        )
    ]


def _of_device(serving: Serving, fps: float) -> list[Bound]:
    if not serving.device_share or not serving.frames_per_s:
        return []
    frame_s = serving.device_share / serving.frames_per_s
    why = f"The GPU works {words.duration(frame_s)} for a frame."
    return [Bound(name="device", why=why, largest=int(1 / (fps * frame_s)))]


def _of_thread(serving: Serving, value: int, fps: float) -> list[Bound]:
    """Bound the streams by the one thread that serves all of them, if there are several streams by then."""
    if value < 2 or serving.num_threads != 1 or not serving.call_s:
        return []
    call_s = serving.call_s if serving.further_sample_s is None else serving.further_sample_s
    frame_s = call_s + serving.between_cpu_s
    if frame_s <= 0:
        return []
    why = (
        f"One thread calls the model for all streams. A further frame takes {words.duration(frame_s)} of it: "
        f"{words.duration(call_s)} in a call, {words.duration(serving.between_cpu_s)} between calls."
    )
    return [Bound(name="thread", why=why, largest=int(1 / (fps * frame_s)))]


def _of_memory(known: Sequence[tuple[int, Serving]], limits: Sequence[Limit], facts: Facts) -> list[Bound]:
    """Bound the streams by memory that grows with each: of the device, or of the host without one."""
    (first, before), (last, after) = known[0], known[-1]
    is_device = after.device_bytes is not None
    sizes = (before.device_bytes, after.device_bytes) if is_device else (before.host_bytes, after.host_bytes)
    limit = next((one.bound for one in limits if one.quantity == "memory"), None)
    total = after.device_total_bytes if is_device else facts.get("host.memory_bytes")
    there = limit if limit is not None else total
    if None in sizes or not isinstance(there, int | float) or last == first:
        return []
    small, large = (float(size or 0) for size in sizes)
    each = (large - small) / (last - first)
    if each < LEAST_GROWTH_BYTES:
        return []
    fixed = small - first * each
    weights = f", of which weights take {words.num_bytes(after.weights_bytes)}" if after.weights_bytes else ""
    why = (
        f"A stream takes {words.num_bytes(each)} of {'device' if is_device else 'host'} memory, all streams "
        f"together {words.num_bytes(max(fixed, 0.0))} more{weights}; there are {words.num_bytes(there)}."
    )
    return [Bound(name="memory", why=why, largest=max(0, int((there - fixed) / each)))]


def binding(runs: Sequence[ValueRun], limits: list[Limit]) -> Bound | None:
    """Return what was used up in runs that broke a limit; None if they show nothing of that."""
    failed = next((run.failed for run in runs if run.failed), "")
    if failed:
        is_memory = "out of memory" in failed.lower()
        return Bound(name="memory" if is_memory else "failure", why=f"The command failed there: {failed}")
    if any(limit.quantity == "memory" for run in runs for limit in run.broken(limits)):
        return Bound(name="memory", why="The command's memory is larger than the limit.")
    serving = next((run.serving for run in runs if run.serving is not None), None)
    if serving is None:
        return None
    for bound in (_busy_device(serving), _busy_cores(serving), _busy_thread(serving), _taking_turns(serving)):
        if bound is not None:
            return bound
    why = (
        f"No part of the machine was used up: {_shares(serving)}. The sources of frames may be slower "
        "than they should be."
    )
    return Bound(name="unknown", why=why)


def _busy_device(serving: Serving) -> Bound | None:
    share = serving.device_share
    if share is None or share < USED_UP:
        return None
    return Bound(name="device", why=f"The GPU worked {words.share(share)} of the time.", share=share)


def _busy_cores(serving: Serving) -> Bound | None:
    share = (serving.cores or 0.0) / serving.num_cores
    if share < USED_UP:
        return None
    most = _largest_part(serving)
    why = f"{serving.cores:.1f} of {serving.num_cores:g} cores were busy{most}."
    return Bound(name="cores", why=why, share=min(1.0, share))


def _busy_thread(serving: Serving) -> Bound | None:
    """Return the bound of a thread that alone calls the model, and has no time left."""
    if serving.num_threads != 1:
        return None
    share = max(serving.busiest_thread, serving.call_share)
    between = serving.between_cpu_s * serving.frames_per_s
    share = max(share, min(1.0, serving.call_share + between))
    if share < USED_UP:
        return None
    busy = f"The one thread that calls the model was busy {words.share(share)} of the time"
    why = f"{busy}{_largest_part(serving)}."
    return Bound(name="thread", why=why, share=share)


def _taking_turns(serving: Serving) -> Bound | None:
    """Return the bound of threads that wait for each other while cores and device have time left."""
    if serving.num_threads < 2:
        return None
    cores = serving.process_cores
    if cores is not None and ONE_CORE[0] <= cores <= ONE_CORE[1] and serving.num_cores > ONE_CORE[1]:
        why = (
            f"The threads of one process together kept {cores:.2f} of {serving.num_cores:g} cores busy: "
            "they take turns, because of Python's interpreter lock."
        )
        return Bound(name="interpreter lock", why=why, share=min(1.0, cores))
    if serving.call_share >= USED_UP and serving.calls_at_once < AT_ONCE:
        why = (
            f"Calls of the model took {words.share(serving.call_share)} of the time, one after another, "
            f"although {serving.num_threads} threads make them: a lock lets one call at a time."
        )
        return Bound(name="lock", why=why, share=serving.call_share)
    return None


def _largest_part(serving: Serving) -> str:
    if not serving.call_s:
        return ""
    if serving.between_cpu_s > serving.call_cpu_s:
        return (
            f", most of it outside the model: {words.duration(serving.between_cpu_s)} of a frame between "
            f"calls (decoding, resizing, boxes), {words.duration(serving.call_cpu_s)} in calls"
        )
    return (
        f", most of it in the model: {words.duration(serving.call_s)} of a frame in calls, "
        f"{words.duration(serving.between_cpu_s)} between them"
    )


def _shares(serving: Serving) -> str:
    parts = [f"{serving.cores:.1f} of {serving.num_cores:g} cores"] if serving.cores is not None else []
    if serving.device_share is not None:
        parts.append(f"the GPU {words.share(serving.device_share)} of the time")
    if serving.call_s:
        parts.append(f"calls of the model {words.share(serving.call_share)} of the time")
    return ", ".join(parts) or "nothing of that could be seen"
