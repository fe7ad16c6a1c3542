"""Record steps: the trace gives shares of time, never durations. Without a trace, the window's findings
remain."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dynotune.measure.live import NotRecorded, Recorder, Recording, RecordRequest, TaskRunner, Watcher
from dynotune.schema.errors import CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.reasons import Reason
from dynotune.schema.run import RunSpec
from dynotune.schema.task import MOST_RECORDED_S
from dynotune.schema.trace_summary import TraceSummary
from dynotune.text import reasons
from dynotune.trace import Timeline, summarise
from dynotune.trace.readers import read_traces

# Reasons for a missing trace that recording without stacks would not change.
NEVER_RECORDED = (Reason.PROGRAM_PROFILES, Reason.NO_TORCH, Reason.OTHER_PROFILER, Reason.NO_DEVICE_WORK)

MOST_SLOWED = 2.0
"""Factor of the step time, for programs without a device: beyond this, a trace is of little use, because
operators are slow, too, when the recorder's writes fill the processor's caches."""


class RecordedSteps(NamedTuple):
    """The recorded steps: a timeline of each rank, and their summary."""

    timelines: list[Timeline]
    summary: TraceSummary

    def noting(self, note: str) -> RecordedSteps:
        """Return the recorded steps with a note added before the other notes."""
        notes = [note, *self.summary.notes]
        return self._replace(summary=msgspec.structs.replace(self.summary, notes=notes))


def profiled(
    runner: TaskRunner,
    run: RunSpec,
    watcher: Watcher,
    most_s: float = MOST_RECORDED_S,
    *,
    brief: bool = False,
) -> RecordedSteps | Unknown:
    """Record steps of the live run for `most_s`, with stacks, or without if that fails; Unknown if neither
    works.

    If stacks slow a program on the CPU down, steps are recorded again without stacks, and only code places
    are taken from the first trace. The summary's notes begin with warnings about the recorded steps.

    `brief`: record few steps, because a job that runs waits for it.
    """
    failed = ""
    for stacks in (True, False):
        try:
            request = RecordRequest(run=run, stacks=stacks, most_s=most_s, brief=brief)
            recording = _recorded(runner, request)
            found = _summary(recording, failed)
            again = msgspec.structs.replace(request, stacks=False)
            return _less_slowed(found, recording.slowed, runner, again, watcher) if stacks else found
        except DynotuneError as error:
            reason, code = in_words(error), error.code if isinstance(error, NotRecorded) else Reason.OTHER
        except MemoryError:
            code = Reason.OTHER
            reason = "the trace is too large for the memory of this machine"
        if failed or code in NEVER_RECORDED:
            break
        failed = reason
        watcher.warn(f"Recording with stacks failed: {reason} Recorded once more without.")
    return Unknown(reason)


def _recorded(runner: TaskRunner, request: RecordRequest) -> Recording:
    """Record steps. Raises CommandFailed and CannotRunHere if there is no trace."""
    recorder = Recorder(runner)
    if recorder.record(request) is None:
        raise recorder.no_trace()
    return recorder.recording()


def _summary(recording: Recording, failed: str) -> RecordedSteps:
    """Summarise the trace.

    Raises:
        UsageError: the file cannot be read.
        NotRecorded: the GPU's work is missing, as when another profiler holds CUPTI.
    """
    timelines = read_traces(recording.traces)
    summary = summarise(timelines)
    if recording.uses_device and not summary.devices:
        code = Reason.NO_DEVICE_WORK
        why = f"The trace is of no use: {reasons.sentence(code)}. Another profiler may watch the program."
        raise NotRecorded(why, code=code)
    notes = [*(f"Recorded steps: {note}" for note in recording.notes), *summary.notes]
    found = RecordedSteps(timelines, msgspec.structs.replace(summary, notes=notes))
    return (
        found.noting(f"Recorded without stacks, as recording with them failed: {failed}") if failed else found
    )


def _less_slowed(
    found: RecordedSteps, slowed: float | None, runner: TaskRunner, request: RecordRequest, watcher: Watcher
) -> RecordedSteps:
    """Record again without stacks if stacks made steps on the CPU far longer; otherwise return `found`."""
    if found.summary.devices or slowed is None or slowed < MOST_SLOWED:
        return found
    watcher.say(
        f"Recording stacks made steps {slowed:.1f} times as long. They are recorded once more without."
    )
    try:
        again = _summary(_recorded(runner, request), "")
    except (DynotuneError, MemoryError) as error:
        reason = in_words(error) if isinstance(error, DynotuneError) else "the trace was too large"
        return found.noting(
            f"Steps were {slowed:.1f} times as long while stacks were recorded; without them: {reason}"
        )
    # Causes are sorted by size, so the largest of each kind is kept.
    places = {cause.id: cause.where for cause in reversed(found.summary.causes)}
    causes = [
        cause
        if cause.where.function
        else msgspec.structs.replace(cause, where=places.get(cause.id, cause.where))
        for cause in again.summary.causes
    ]
    by_stacks = {name: getattr(found.summary, name) for name in ("loops", "recomputed", "ungraded")}
    placed = again._replace(summary=msgspec.structs.replace(again.summary, causes=causes, **by_stacks))
    return placed.noting(
        f"Recorded without stacks, which made steps {slowed:.1f} times as long; places are of the run with "
        "them."
    )


def in_words(error: DynotuneError) -> str:
    """Return the error's message, with the last line that a failed command printed."""
    if isinstance(error, CommandFailed) and error.last_lines:
        return f"{error.message} It printed last: {error.last_lines[-1]}"
    return error.message
