"""Read from the record of an observed run how the process is set up, and how the window's time was spent."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec

from dynotune.launch.records.periodic import periodic_work, seen_inside
from dynotune.launch.records.process_summary import summarise
from dynotune.launch.records.record import ALLOCATED, COMPILED, EPOCH, GARBAGE, Record, Step
from dynotune.launch.records.stack_lines import stack_lines
from dynotune.launch.records.streams import observed_serving
from dynotune.schema.errors import CONTRADICTIONS, RecordError
from dynotune.schema.events import CycleFound, Moments, OptionsParsed, StateRead, TrainerMade
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.observation import InspectedState, MadeTrainer, ProcessState
from dynotune.schema.program_options import ProgramOption
from dynotune.schema.run import Process, TimedWindow
from dynotune.schema.timing import PeriodicWork, SlowStep, Timing, Why

SLOWEST = 0.01
MOST_SLOW_STEPS = 20
FIRST_STEPS = 3
"""Steps that are long for their own reasons: they compile, and fill caches."""
RARE, MOST_IS_RARE = 5.0, 0.5
"""Factor over the median of a step that surely does other work than the rest, and the share of the time that
it takes. A step that was disturbed is less of both."""
SAME_WORK = 0.5
"""Part of the time of a long step from which on an earlier step is taken to have done the same work."""
_WHYS: tuple[tuple[int, Why], ...] = (
    (GARBAGE, "garbage"),
    (ALLOCATED, "allocation"),
    (COMPILED, "compilation"),
    (EPOCH, "epoch"),
)


def state_of_process(
    record: Record, launched_s: float, *, steady: bool = True, others: Sequence[Record] = ()
) -> ProcessState:
    """Return the state of a process that runs steps; `launched_s` is the time of launch on CLOCK_MONOTONIC.

    Args:
        steady: whether the process's steps were steady before the window began.
        others: records of the command's other processes. A process that spawns the ranks parses the options.

    Raises RecordError: an event that the state needs is damaged.
    """
    process = summarise(record, launched_s)
    record.refuse_dropped(StateRead)
    state = record.last(StateRead) or StateRead()
    parts = _parts(state)
    if state.peak_rss_bytes is None:
        parts["peak_rss_bytes"] = process.peak_rss_bytes
    try:
        timed, periodic = _timed(process, record, state, steady)
        if state.moments is not None:
            parts["models"] = [_seen(model, state.moments) for model in state.models]
            parts["stack"] = stack_lines(state.moments)
    except CONTRADICTIONS as error:
        raise RecordError(f"{record.path} is damaged: its events contradict each other.") from error
    return ProcessState(
        pid=record.pid,
        rank=process.rank,
        world_size=process.world_size,
        step=process.step or "",
        cycle=record.cycle,
        timing=timed,
        environment_changes=process.environment_changes,
        failed=state.failed,
        periodic=periodic,
        trainers=[MadeTrainer(event.name, event.place) for event in record.all(TrainerMade)],
        options=next(filter(None, map(_options, [record, *others])), []),
        serving=observed_serving(record),
        **parts,
    )


def _options(record: Record) -> list[ProgramOption]:
    """Return the options that the program parsed; of one that was parsed several times, as it was parsed
    last."""
    rows = [(event.parser, row) for event in record.all(OptionsParsed) for row in event.options]
    return list({row.name: msgspec.structs.replace(row, parser=parser) for parser, row in rows}.values())


def _seen(model: Model, moments: Moments) -> Model:
    """Return the model with the share of stack samples inside its call, on the thread that runs the steps."""
    if model.call is None:
        return model
    share = seen_inside(moments, model.call.place.function)
    return msgspec.structs.replace(model, call=msgspec.structs.replace(model.call, seen_share=share))


def _parts(state: StateRead) -> dict[str, Any]:
    """Return fields of ProcessState; a field whose inspection failed is Unknown, if the field allows
    Unknown."""
    parts = {field: getattr(state, field) for field in InspectedState.__struct_fields__}
    for name in ("collections", "compilation"):
        if (part := getattr(state, name)) is not None:
            parts[name] = part
        elif name in state.failed:
            parts[name] = Unknown(f"looking at it failed: {state.failed[name]}")
    return parts


def failed_parts(record: Record) -> list[str]:
    """List the parts of the process's state that could not be inspected, with the reasons."""
    state = record.last(StateRead) or StateRead()
    return [f"{part}: {reason}" for part, reason in state.failed.items()]


def _timed(
    process: Process, record: Record, state: StateRead, steady: bool
) -> tuple[Timing | Unknown, list[PeriodicWork]]:
    """Return the window's timing, and the work that only some of the window's steps do."""
    window = process.window
    if window is None:
        return Unknown("the timed window did not end"), []
    first, last = window.first_step, window.first_step + window.num_steps
    steps, times = record.steps[first:last], record.step_s[first:last]
    if times and steps[0].end_s > window.begin_s:
        times[0] = (
            steps[0].end_s - window.begin_s
        )  # minus the work that the device had queued before the window
    if len(times) != window.num_steps or window.num_steps < 1:
        raise RecordError(
            f"{record.path} is damaged: {len(times)} steps are in a window of {window.num_steps} are in it."
        )
    # Whether the steps draw from a torch loader. If the program marks its steps, all draws between two marks
    # count.
    cycle = record.last(CycleFound)
    is_marked = cycle is not None and cycle.kinds == []
    drawn = bool(process.draws) or (is_marked and bool(state.loaders))
    to_first_s = process.time_to_first_step_s
    timed = timing(window, steps, times, drawn=drawn, steady=steady, time_to_first_step_s=to_first_s)
    if state.moments is None:
        return timed, []
    periodic, at = periodic_work(state.moments, times, first)
    periodic = [_with_earlier(work, at, first, record.step_s) for work in periodic]
    slow = [
        msgspec.structs.replace(step, causes=["work", *step.causes]) if step.index - first in at else step
        for step in timed.slow
    ]
    return msgspec.structs.replace(timed, slow=slow), periodic


def _with_earlier(work: PeriodicWork, at: set[int], first: int, step_s: Sequence[float]) -> PeriodicWork:
    """Return the work; if one step of the window did it, with its distance from the last such long step
    before.

    Args:
        at: steps of the window, which begins at step `first`, that do such work.
        step_s: seconds of all steps of the program.
    """
    if work.num_steps > 1 or len(at) != 1 or work.share < MOST_IS_RARE:
        return work
    now = first + next(iter(at))
    if step_s[now] < RARE * statistics.median(step_s[first:]):
        return work
    alike = [step for step in range(FIRST_STEPS, first) if step_s[step] > SAME_WORK * step_s[now]]
    return msgspec.structs.replace(work, every=now - alike[-1]) if alike else work


def timing(
    window: TimedWindow,
    steps: Sequence[Step],
    step_s: Sequence[float],
    *,
    drawn: bool,
    steady: bool = True,
    time_to_first_step_s: float | None = None,
) -> Timing:
    """Return the window's timing, from the window's steps and the time of each step.

    The device is synchronised after the last step of the window has ended. So the sum of the steps' times may
    be shorter than the window by the time of that synchronisation.
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
    """Return the slowest hundredth of steps, the slowest first, as indices within the window."""
    num = min(MOST_SLOW_STEPS, max(1, math.floor(SLOWEST * len(steps))))
    usual = statistics.median(step_s), statistics.median(step.wait_s for step in steps)
    order = sorted(range(len(steps)), key=lambda index: -step_s[index])[:num]
    return [
        SlowStep(index=i, step_s=step_s[i], wait_s=steps[i].wait_s, causes=_had(steps[i], step_s[i], *usual))
        for i in order
    ]


def _had(step: Step, took_s: float, median_s: float, median_wait_s: float) -> list[Why]:
    had = [why for flag, why in _WHYS if step.flags & flag]
    # A wait that every step has is not why a step is slow.
    if took_s > median_s and step.wait_s - median_wait_s > (took_s - median_s) / 2:
        had.append("loader")
    return had


def _usual_s(steps: Sequence[Step], step_s: Sequence[float], slow: Sequence[SlowStep]) -> float | None:
    """Return the median time of steps without any cause that slow steps have; None without such a step."""
    events = {why for row in slow for why in row.causes}
    flags = sum(flag for flag, why in _WHYS if why in events)
    among = {row.index for row in slow}
    rest = [took_s for i, took_s in enumerate(step_s) if i not in among and not steps[i].flags & flags]
    return statistics.median(rest) if rest else None


def _percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below this share of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
