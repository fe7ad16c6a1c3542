"""The profiled run: where time goes, never how much of it. Without it, the plain run's findings still come."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dynotune.diagnose.request import DiagnoseRequest
from dynotune.measure.recording import OVERSTATED, Recording, record
from dynotune.measure.request import Watcher
from dynotune.schema.errors import CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import TraceSummary
from dynotune.trace import reading
from dynotune.trace.summarise import summarise
from dynotune.trace.timeline import Timeline

OWN_PROFILER = "torch's profiler itself"


class Profiled(NamedTuple):
    """What was recorded: a timeline of each rank, and what they say."""

    timelines: list[Timeline]
    summary: TraceSummary


def profiled(request: DiagnoseRequest, watcher: Watcher) -> Profiled | Unknown:
    """Record a few steps with stacks, else without; Unknown where neither can be had.

    The summary's notes begin with what to be wary of in the recorded run.
    """
    failed = ""
    for stacks in (True, False):
        try:
            return _summary(record(request.recording(stacks=stacks), watcher), failed)
        except DynotuneError as error:
            reason = in_words(error)
        except MemoryError:
            reason = "the trace is too large for the memory of this machine"
        if failed or OWN_PROFILER in reason:
            break
        failed = reason
        watcher.warn(f"Recording with stacks failed: {reason} Recorded once more without.")
    return Unknown(reason)


def _summary(recording: Recording, failed: str) -> Profiled:
    """The trace in words and figures; it raises UsageError where the file cannot be read."""
    timelines = reading.read(recording.traces)
    summary = summarise(timelines)
    notes = [*(f"Profiled run: {note}" for note in recording.notes if OVERSTATED not in note), *summary.notes]
    if failed:
        notes.insert(0, f"Recorded without stacks, as recording with them failed: {failed}")
    return Profiled(timelines, msgspec.structs.replace(summary, notes=notes))


def in_words(error: DynotuneError) -> str:
    """What happened, with the last line that the command printed where it failed."""
    if isinstance(error, CommandFailed) and error.last_lines:
        return f"{error.message} It printed last: {error.last_lines[-1]}"
    return error.message
