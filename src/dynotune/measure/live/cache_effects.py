"""What a run took longer as it found caches empty, and how that counts for later runs."""

from __future__ import annotations

import math
import statistics

from msgspec.structs import replace

from dynotune.launch.records import COMPILED, Record
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.run import RunSpec

# Of what a first run took longer, as it found caches empty, later ones are planned to take so much: a compiled net
# started in 28 s and then in 12, most of them imports.
COLD_KEPT = 0.5


def num_steps_to_find(record: Record) -> int:
    """Steps that had passed when the cycle was fixed."""
    cycle = record.last("cycle") or {}
    return int(cycle.get("num_steps", 0))


def kept_when_warm(run: RunSpec) -> float:
    """Of what a pilot took to compile, what a later run takes."""
    return 1.0 if run.caches == "cold" else COLD_KEPT


def found_warm(pilot: Outcome, other: Outcome, *, is_first: bool) -> Outcome | None:
    """At best what a later run is, that finds in caches what the pilot compiled and read; None where that is the same.

    What it compiled before its first step is not seen, nor what the first run of all read from a cold disk. It is no
    more than it came to that step later than the `other` arm.
    """
    compiling, later_s = _compiling(pilot.records[0]), 0.0
    if is_first or 0 in compiling:
        later_s = max(0.0, _before_steps_s(pilot) - _before_steps_s(other))
    return replace(pilot, launched_s=pilot.launched_s + later_s) if compiling or later_s > 0 else None


def _before_steps_s(pilot: Outcome) -> float:
    record = pilot.records[0]
    return record.steps[0].end_s - record.step_s[0] - pilot.launched_s


def compiled_s(pilot: Outcome, num_steps: int | None = None) -> float:
    """What its first steps took longer than usual as they compiled; of all of its steps for None."""
    record = pilot.records[0]
    compiling = [record.step_s[index] for index in _compiling(record) if num_steps is None or index < num_steps]
    usual_s = statistics.median(record.step_s) if compiling else 0.0
    return math.fsum(max(0.0, step_s - usual_s) for step_s in compiling)


def compiles(pilot: Outcome) -> bool:
    """Whether anything was compiled in it, as far as torch tells."""
    return bool(_compiling(pilot.records[0]))


def _compiling(record: Record) -> list[int]:
    """Steps in which something was compiled. Until the step is found nobody asks: then it may be any of the first."""
    flagged = [index for index, step in enumerate(record.steps) if step.flags & COMPILED]
    asked_from = min((int(cycle.get("num_steps", 0)) for cycle in record.events.get("cycle", ())), default=0)
    return [*(range(flagged[0]) if flagged and flagged[0] <= asked_from else ()), *flagged]
