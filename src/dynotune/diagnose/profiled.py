"""The profiled run: where time goes, never how much of it. Without it, the plain run's findings still come."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dynotune.measure.live.recording import OVERSTATED, Recording, record
from dynotune.measure.live.request import RecordRequest, Watcher
from dynotune.schema.errors import CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import EnvironmentChange, RunSpec
from dynotune.schema.trace_summary import TraceSummary
from dynotune.trace.readers import reading
from dynotune.trace.summarise import summarise
from dynotune.trace.timeline import Timeline

OWN_PROFILER = "torch's profiler itself"


MOST_SLOWED = 2.0
"""Without a device, a trace whose steps are longer than this many plain ones tells little: its operators are slower
too, as they find the processor's caches full of what the recorder wrote."""


class Profiled(NamedTuple):
    """What was recorded: a timeline of each rank, what they say, and what the program set in its environment."""

    timelines: list[Timeline]
    summary: TraceSummary
    environment_changes: list[EnvironmentChange]

    def noting(self, note: str) -> Profiled:
        """The same, with a note before the others."""
        notes = [note, *self.summary.notes]
        return self._replace(summary=msgspec.structs.replace(self.summary, notes=notes))


def profiled(request: RunSpec, watcher: Watcher) -> Profiled | Unknown:
    """Record a few steps with stacks, else without; Unknown where neither can be had.

    Where stacks alone slow a program on the CPU down, it is recorded once more without, and only its places are taken
    from the first. The summary's notes begin with what to be wary of in the recorded run.
    """
    failed = ""
    for stacks in (True, False):
        try:
            recording = record(RecordRequest(run=request, stacks=stacks), watcher)
            found = _summary(recording, failed)
            return _less_slowed(found, recording.slowed, request, watcher) if stacks else found
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
    changes = [change for process in recording.run.processes for change in process.environment_changes]
    found = Profiled(timelines, msgspec.structs.replace(summary, notes=notes), changes)
    return found.noting(f"Recorded without stacks, as recording with them failed: {failed}") if failed else found


def _less_slowed(found: Profiled, slowed: float | None, request: RunSpec, watcher: Watcher) -> Profiled:
    """What is told without stacks, where they made steps on the CPU far longer, and could be done without."""
    if found.summary.devices or slowed is None or slowed < MOST_SLOWED:
        return found
    watcher.say(f"Recording stacks made steps {slowed:.1f} times as long. They are recorded once more without.")
    try:
        again = _summary(record(RecordRequest(run=request), watcher), "")
    except (DynotuneError, MemoryError) as error:
        reason = in_words(error) if isinstance(error, DynotuneError) else "the trace was too large"
        return found.noting(f"Steps were {slowed:.1f} times as long while stacks were recorded; without them: {reason}")
    # The largest of a kind comes first, and stays.
    places = {cause.id: cause.where for cause in reversed(found.summary.causes)}
    causes = [
        cause if cause.where.function else msgspec.structs.replace(cause, where=places.get(cause.id, cause.where))
        for cause in again.summary.causes
    ]
    placed = again._replace(summary=msgspec.structs.replace(again.summary, causes=causes))
    return placed.noting(
        f"Recorded without stacks, which made steps {slowed:.1f} times as long; places are of the run with them."
    )


def in_words(error: DynotuneError) -> str:
    """What happened, with the last line that the command printed where it failed."""
    if isinstance(error, CommandFailed) and error.last_lines:
        return f"{error.message} It printed last: {error.last_lines[-1]}"
    return error.message
