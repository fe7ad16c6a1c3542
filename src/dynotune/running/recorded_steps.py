"""Diagnose the steps that a running program recorded of itself: the usual findings, without a plain
window."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

from dynotune.diagnose import attributed, conclude
from dynotune.running import kineto_door
from dynotune.running.targets import Target
from dynotune.schema import redaction
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import TraceSummary
from dynotune.text import words
from dynotune.trace import Timeline, summarise
from dynotune.trace.readers import read_traces

MOST_ATTEMPTS = 2
"""A recording that begins before the program's first step holds no work of its main thread."""
NOTE = (
    "These are recorded steps of a running program, with stacks. The recorder makes them longer, "
    "mostly where Python runs. No steps were timed without the recorder, so this is not corrected."
)


def diagnosis_of_recording(target: Target, facts: Facts, running: Callable[[str], None]) -> Diagnosis:
    """Have the program record some steps, and conclude from them.

    Raises CannotRunHere: the program was not prepared for it, or gave no trace that holds work.
    """
    first = target.ranks[0].process
    door = kineto_door.door_of(first, facts)
    if isinstance(door, Unknown):
        raise CannotRunHere(f"Process {first.pid} cannot record: {door.reason}.", hint="Leave --record out.")
    for _ in range(MOST_ATTEMPTS):
        with kineto_door.recording([rank.process for rank in target.ranks], door, running) as traces:
            running("reading the recording")
            timelines = _read(traces)
        summary = summarise(timelines)
        if summary.window_s:
            return _concluded(target, facts, summary, timelines)
    raise CannotRunHere(
        "The program recorded no work of its main thread.", hint="Try again while it makes steps."
    )


def _read(traces: list[Path]) -> list[Timeline]:
    size = sum(path.stat().st_size for path in traces)
    if size > kineto_door.MOST_BYTES:
        raise CannotRunHere(
            f"The recording takes {words.num_bytes(size)}, which is more than dynotune reads at once.",
            hint="Leave --record out.",
        )
    try:
        return read_traces(traces)
    except UsageError as error:
        raise CannotRunHere(error.message, hint="Try again.") from error


def _concluded(target: Target, facts: Facts, summary: TraceSummary, timelines: list[Timeline]) -> Diagnosis:
    processes = [
        ProcessState(
            pid=rank.process.pid, rank=rank.number, world_size=len(target.ranks), timing=_timing(summary)
        )
        for rank in target.ranks
    ]
    observation = Observation(
        command=redaction.words(target.command),
        facts=facts,
        processes=processes,
        trace=summary,
        attribution=attributed(processes, summary, timelines),
        notes=[NOTE],
    )
    return conclude(observation)


def _timing(summary: TraceSummary) -> Timing | Unknown:
    """Return the timing of the recorded steps, in place of that of plain ones."""
    if not summary.num_steps or not summary.window_s:
        return Unknown("the recording holds no steps")
    step_s = summary.window_s / summary.num_steps
    steps_s = sorted(summary.step_s) or [step_s]
    return Timing(
        num_steps=summary.num_steps,
        window_s=summary.window_s,
        step_s=step_s,
        median_step_s=statistics.median(steps_s),
        p99_step_s=steps_s[-1],
        longest_step_s=steps_s[-1],
    )
