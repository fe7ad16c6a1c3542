"""Summarise a process from its record for the document of a run, and tell whether settings were applied."""

import statistics
from collections.abc import Sequence
from typing import Any

from dynotune import knobs
from dynotune.launch.records.oom import why_memory_ran_out
from dynotune.launch.records.record import Record
from dynotune.schema import document
from dynotune.schema.errors import CONTRADICTIONS, RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, Process, Readback, RecordedTrace, TimedWindow
from dynotune.schema.setting import Setting

NUM_STEPS_BEFORE = 30
"""Number of steps before a recording with which the recorded steps are compared."""


def summarise(record: Record, launched_s: float) -> Process:
    """Summarise a process for `run.json`; `launched_s` is the time of launch on CLOCK_MONOTONIC.

    Raises RecordError: an event is incomplete.
    """
    damaged = RecordError(f"{record.path} is damaged: an event is not as dynotune's agent writes events.")
    if record.is_damaged:
        raise damaged
    try:
        return _summary(record, launched_s)
    except CONTRADICTIONS as error:
        raise damaged from error


def _summary(record: Record, launched_s: float) -> Process:
    process = record.last("process") or {}
    torch = record.last("torch")
    peaks = record.last("memory") or {}
    failed = record.last("out_of_memory") or {}
    window = record.last("window")
    changes = record.events.get("environment", [])
    samples = [step.num_samples for step in record.steps]
    counted = [num for num in samples if num is not None]
    return Process(
        pid=record.pid,
        argv=process.get("argv", []),
        executable=process.get("executable", ""),
        python=process.get("python", ""),
        torch=torch["version"] if torch else None,
        rank=record.among_ranks("rank"),
        world_size=window.get("world_size", 1) if window else record.among_ranks("world_size") or 1,
        step=(record.last("cycle") or {}).get("step"),
        num_steps=len(record.steps),
        num_samples=sum(counted) if counted and len(counted) == len(samples) else None,
        time_to_first_step_s=record.steps[0].end_s - launched_s if record.steps else None,
        median_step_s=statistics.median(record.step_s) if record.step_s else None,
        windows=[document.convert(event, TimedWindow) for event in record.events.get("window", [])],
        # A trace, or the reason why there is none.
        traces=[
            _trace(event, record.step_s)
            for event in record.results.values()
            if "trace" in (event["event"], event.get("kind"))
        ],
        peak_rss_bytes=peaks.get("peak_rss_bytes"),
        peak_device_bytes=peaks.get("peak_device_bytes"),
        num_devices=peaks.get("num_devices"),
        readback=[_readback(entry) for entry in (record.last("readback") or {}).get("settings", [])],
        environment_changes=[document.convert(event, EnvironmentChange) for event in changes],
        out_of_memory=why_memory_ran_out(
            [failed["message"]], batch=samples[-1] if samples else None, held=failed["held"]
        )
        if failed
        else "",
        errors=[f"{event['where']}: {event['error']}" for event in record.events.get("error", [])],
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


def _trace(event: dict[str, Any], step_s: Sequence[float]) -> RecordedTrace:
    fields: dict[str, Any] = {"file": None, **event}
    if event.get("step_s"):
        # In the step before the first recorded one the profiler gets ready.
        unready = event["first_step"] - 1
        before = step_s[max(0, unready - NUM_STEPS_BEFORE) : unready]
        fields["median_step_s"] = statistics.median(event["step_s"])
        fields["median_before_s"] = statistics.median(before) if before else None
    return document.convert(fields, RecordedTrace)


def _readback(entry: dict[str, Any]) -> Readback:
    found = entry.get("found")
    if isinstance(found, dict):  # the agent writes this for an unknown value
        found = None
    return Readback(
        knob=entry["knob"],
        asked=str(entry["asked"]),
        found=Unknown(entry.get("detail") or "nothing can witness it") if found is None else str(found),
        witness=entry.get("witness", ""),
        ok=entry.get("ok"),
        detail=entry.get("detail", ""),
    )
