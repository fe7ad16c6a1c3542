"""Summarise a process from its record for the document of a run, and tell whether settings were applied."""

import statistics
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from dynotune import knobs
from dynotune.launch.records.oom import why_memory_ran_out
from dynotune.launch.records.record import Record
from dynotune.schema.errors import CONTRADICTIONS, RecordError
from dynotune.schema.events import (
    KINDS,
    AgentError,
    CycleFound,
    EnvironmentChanged,
    GivenUp,
    MemoryPeaks,
    OutOfMemory,
    ProcessBegun,
    SettingsReadBack,
    TaskResult,
    TorchImported,
    TraceRecorded,
    Window,
)
from dynotune.schema.run import (
    EnvironmentChange,
    Process,
    Readback,
    RecordedTrace,
    TimedWindow,
    TraceRecording,
)
from dynotune.schema.setting import Setting
from dynotune.text import reasons

T = TypeVar("T", bound=msgspec.Struct)

_NEEDED = (
    AgentError,
    CycleFound,
    EnvironmentChanged,
    GivenUp,
    MemoryPeaks,
    OutOfMemory,
    ProcessBegun,
    SettingsReadBack,
    TorchImported,
    TraceRecorded,
    Window,
)
"""Kinds of events that a summary needs."""
NUM_STEPS_BEFORE = 30
"""Number of steps before a recording with which the recorded steps are compared."""


def summarise(record: Record, launched_s: float) -> Process:
    """Summarise a process for `run.json`; `launched_s` is the time of launch on CLOCK_MONOTONIC.

    Raises RecordError: an event that the summary needs is damaged.
    """
    record.refuse_dropped(*_NEEDED)
    try:
        return _summary(record, launched_s)
    except CONTRADICTIONS as error:
        raise RecordError(f"{record.path} is damaged: its events contradict each other.") from error


def _summary(record: Record, launched_s: float) -> Process:
    process = record.last(ProcessBegun) or ProcessBegun()
    torch, cycle = record.last(TorchImported), record.last(CycleFound)
    peaks = record.last(MemoryPeaks) or MemoryPeaks()
    failed = record.last(OutOfMemory)
    window = record.last(Window)
    readback = record.last(SettingsReadBack) or SettingsReadBack()
    samples = [step.num_samples for step in record.steps]
    counted = [num for num in samples if num is not None]
    return Process(
        pid=record.pid,
        argv=process.argv,
        executable=process.executable,
        python=process.python,
        torch=torch.version if torch else None,
        rank=record.rank,
        world_size=window.world_size if window else record.world_size or 1,
        step=record.step,
        draws=None if cycle is None or cycle.kinds is None else "draw" in cycle.kinds,
        num_steps=len(record.steps),
        num_samples=sum(counted) if counted and len(counted) == len(samples) else None,
        time_to_first_step_s=record.steps[0].end_s - launched_s
        if record.steps and not process.late
        else None,
        median_step_s=statistics.median(record.step_s) if record.step_s else None,
        windows=[as_stored(event, TimedWindow) for event in record.all(Window)],
        # A trace, or the reason why there is none.
        traces=[
            trace
            for result in record.results.values()
            if (trace := _trace(result, record.step_s)) is not None
        ],
        peak_rss_bytes=peaks.peak_rss_bytes,
        peak_device_bytes=peaks.peak_device_bytes,
        num_devices=peaks.num_devices,
        readback=readback.settings,
        already=readback.already,
        call_samples=cycle.call_samples if cycle else None,
        environment_changes=[as_stored(event, EnvironmentChange) for event in record.all(EnvironmentChanged)],
        out_of_memory=why_memory_ran_out(
            [failed.message], batch=samples[-1] if samples else None, held=failed.held
        )
        if failed
        else "",
        errors=[f"{event.where}: {event.error}" for event in record.all(AgentError)],
    )


def read_back(processes: Sequence[Process], settings: Sequence[Setting] = ()) -> list[Readback]:
    """Return for each setting whether the processes that ran steps applied it; one "no" outweighs any "yes".

    `settings`: settings of the run. Settings of the launch count as applied if the run was started with them.
    """
    telling = [process for process in processes if process.num_steps] or [p for p in processes if p.torch]
    found: dict[str, Readback] = {}
    order = {False: 0, True: 1, None: 2}
    for process in telling:
        for readback in process.readback:
            before = found.get(readback.knob)
            if before is None or order[readback.ok] < order[before.ok]:
                found[readback.knob] = readback
    launched = [
        Readback(setting.knob, str(setting.value), str(setting.value), "the launch", True)
        for setting in knobs.of_launch(settings)
    ]
    return [*found.values(), *launched]


def as_stored(event: msgspec.Struct, type_: type[T]) -> T:
    """Return the part of an event that a document stores; `type_` is the base class of the event's struct."""
    return type_(**{field: getattr(event, field) for field in type_.__struct_fields__})


def _trace(result: TaskResult, step_s: Sequence[float]) -> RecordedTrace | None:
    """Return a recorded trace, or the reason why there is none; None for the result of another task."""
    if isinstance(result, GivenUp):
        if KINDS.get(result.kind) is not TraceRecorded:
            return None
        return RecordedTrace(reason=reasons.sentence(result.code, result.reason), notes=result.notes)
    if not isinstance(result, TraceRecorded):
        return None
    told, after, before = as_stored(result, TraceRecording), None, None
    if result.step_s and result.first_step is not None:
        # In the step before the first recorded one the profiler gets ready.
        unready = result.first_step - 1
        earlier = step_s[max(0, unready - NUM_STEPS_BEFORE) : unready]
        after = statistics.median(result.step_s)
        before = statistics.median(earlier) if earlier else None
    return RecordedTrace(**msgspec.structs.asdict(told), median_step_s=after, median_before_s=before)
