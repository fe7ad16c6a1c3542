"""From the record of an observed run: what its process is like, and where the time of its window went."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from dynotune.launch.records.periodic import periodic_work, seen_inside
from dynotune.launch.records.record import ALLOCATED, COMPILED, EPOCH, GARBAGE, Record, Step, summarise
from dynotune.schema import document
from dynotune.schema.errors import CONTRADICTIONS, RecordError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import (
    Allocator,
    Collections,
    Compilation,
    Loader,
    Model,
    Optimizer,
    PeriodicWork,
    ProcessState,
    SlowStep,
    Thread,
    Timing,
    Why,
)
from dynotune.schema.run import Process, TimedWindow

SLOWEST = 0.01
MOST_SLOW_STEPS = 20
_WHYS: tuple[tuple[int, Why], ...] = (
    (GARBAGE, "garbage"),
    (ALLOCATED, "allocation"),
    (COMPILED, "compilation"),
    (EPOCH, "epoch"),
)
# Of the event `state`: fields of ProcessState.
_PARTS: dict[str, Any] = {
    "live": Facts,
    "loaders": list[Loader],
    "models": list[Model],
    "optimizers": list[Optimizer],
    "allocators": list[Allocator],
    "collections": Collections,
    "threads": list[Thread],
    "compilation": Compilation,
    "peak_rss_bytes": int,
    "rss_growth_bytes": int,
    "rss_levels_bytes": list[int],
    "graph_nodes_growth": int | None,
    "graph_nodes": int | None,
}


def state_of_process(record: Record, launched_s: float, *, steady: bool = True) -> ProcessState:
    """Return the state of a process that makes steps; `launched_s` is the launch on CLOCK_MONOTONIC.

    `steady`: its steps had become steady before its window began.

    Raises RecordError: an event of it is not as the agent writes it.
    """
    process = summarise(record, launched_s)
    try:
        parts = _parts(record.last("state") or {})
        timed, periodic = _timed(process, record, parts.get("loaders", []), steady)
        if (moments := (record.last("state") or {}).get("moments")) is not None:
            parts["models"] = [_seen(model, moments) for model in parts.get("models", [])]
    except CONTRADICTIONS as error:
        raise RecordError(f"{record.path} is damaged: an event of it is not as dynotune's agent writes it.") from error
    parts.setdefault("peak_rss_bytes", process.peak_rss_bytes)
    return ProcessState(
        pid=record.pid,
        rank=process.rank,
        world_size=process.world_size,
        step=process.step or "",
        timing=timed,
        environment_changes=process.environment_changes,
        periodic=periodic,
        **parts,
    )


def _seen(model: Model, moments: dict[str, Any]) -> Model:
    """Return the model, with how often the thread that makes the steps was seen inside its call."""
    if model.call is None:
        return model
    share = seen_inside(moments, model.call.place.function)
    return msgspec.structs.replace(model, call=msgspec.structs.replace(model.call, seen_share=share))


def _parts(said: dict[str, Any]) -> dict[str, Any]:
    """Return fields of ProcessState; a part that failed in the process is unknown if there is a place for that."""
    parts = {name: document.convert(said[name], type_) for name, type_ in _PARTS.items() if name in said}
    for name in ("collections", "compilation"):
        if name not in parts and name in said.get("failed", {}):
            parts[name] = Unknown(f"looking at it failed: {said['failed'][name]}")
    return parts


def failed_parts(record: Record) -> list[str]:
    """List parts of the process that could not be looked at, with the reason."""
    said = record.last("state")
    return [f"{part}: {reason}" for part, reason in (said or {}).get("failed", {}).items()]


def _timed(
    process: Process, record: Record, loaders: Sequence[Loader], steady: bool
) -> tuple[Timing | Unknown, list[PeriodicWork]]:
    """Return the window's timing, and what only some of its steps do."""
    window = process.window
    if window is None:
        return Unknown("the window did not come to its end"), []
    first, last = window.first_step, window.first_step + window.num_steps
    steps, times = record.steps[first:last], record.step_s[first:last]
    if times and steps[0].end_s > window.begin_s:
        times[0] = steps[0].end_s - window.begin_s  # less what the device had queued before the window
    if len(times) != window.num_steps or window.num_steps < 1:
        raise RecordError(f"{record.path} is damaged: {len(times)} steps of a window of {window.num_steps} are in it.")
    # Whether the steps draw from a torch loader. Where they are marked, what was drawn in between counts.
    step, to_first_s = process.step or "", process.time_to_first_step_s
    drawn = "draw " in step or (step.startswith("marked") and bool(loaders))
    timed = timing(window, steps, times, drawn=drawn, steady=steady, time_to_first_step_s=to_first_s)
    moments = (record.last("state") or {}).get("moments")
    if moments is None:
        return timed, []
    periodic, at = periodic_work(moments, times, first)
    slow = [
        msgspec.structs.replace(step, causes=["work", *step.causes]) if step.index - first in at else step
        for step in timed.slow
    ]
    return msgspec.structs.replace(timed, slow=slow), periodic


def timing(
    window: TimedWindow,
    steps: Sequence[Step],
    step_s: Sequence[float],
    *,
    drawn: bool,
    steady: bool = True,
    time_to_first_step_s: float | None = None,
) -> Timing:
    """Return the window's timing from its steps and how long each took.

    The device is synchronised after the window's last step has ended: their sum may differ from its length by that.
    """
    window_s = window.end_s - window.begin_s
    begins = [took_s for step, took_s in zip(steps, step_s, strict=True) if step.flags & EPOCH]
    slow = _slow(steps, step_s)
    return Timing(
        num_steps=window.num_steps,
        window_s=window_s,
        step_s=window_s / window.num_steps,
        median_step_s=statistics.median(step_s),
        p99_step_s=_percentile(step_s, 0.99),
        longest_step_s=max(step_s),
        wait_s=window.wait_s / window.num_steps if drawn and window.wait_s is not None else None,
        samples_per_s=window.num_samples / window_s if window.num_samples and window_s > 0 else None,
        num_epochs=len(begins),
        epoch_begin_s=statistics.median(begins) if begins else None,
        time_to_first_step_s=time_to_first_step_s,
        num_compilations=window.num_compilations,
        num_device_allocations=window.num_device_allocations,
        typical_step_s=_usual_s(steps, step_s, slow),
        slow=[msgspec.structs.replace(row, index=row.index + window.first_step) for row in slow],
        steady=steady,
    )


def _slow(steps: Sequence[Step], step_s: Sequence[float]) -> list[SlowStep]:
    """Return the slowest hundredth, the slowest first; indices within the window."""
    num = min(MOST_SLOW_STEPS, max(1, math.floor(SLOWEST * len(steps))))
    usual = statistics.median(step_s), statistics.median(step.wait_s for step in steps)
    order = sorted(range(len(steps)), key=lambda index: -step_s[index])[:num]
    return [
        SlowStep(index=i, step_s=step_s[i], wait_s=steps[i].wait_s, causes=_had(steps[i], step_s[i], *usual))
        for i in order
    ]


def _had(step: Step, took_s: float, median_s: float, median_wait_s: float) -> list[Why]:
    had = [why for flag, why in _WHYS if step.flags & flag]
    # What every step waits makes none of them slow.
    if took_s > median_s and step.wait_s - median_wait_s > (took_s - median_s) / 2:
        had.append("loader")
    return had


def _usual_s(steps: Sequence[Step], step_s: Sequence[float], slow: Sequence[SlowStep]) -> float | None:
    """Return the median of the other steps, without those that had what the slow ones had; None if none is left."""
    events = {why for row in slow for why in row.causes}
    flags = sum(flag for flag, why in _WHYS if why in events)
    among = {row.index for row in slow}
    rest = [took_s for i, took_s in enumerate(step_s) if i not in among and not steps[i].flags & flags]
    return statistics.median(rest) if rest else None


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
