"""What a run took longer as it found caches empty, and how that counts for later runs."""

from __future__ import annotations

import math
import statistics

from msgspec.structs import replace

from dynotune.launch.record import COMPILED, Record
from dynotune.measure.one_run import Outcome
from dynotune.measure.request import Request

# Of what a first run took longer, as it found caches empty, later ones are planned to take so much: a compiled net
# started in 28 s and then in 12, most of them imports.
COLD_KEPT = 0.5


def num_steps_to_find(record: Record) -> int:
    """Steps that had passed when the cycle was fixed."""
    cycle = record.last("cycle") or {}
    return int(cycle.get("num_steps", 0))


def kept_when_warm(request: Request) -> float:
    """Of what a pilot took to compile, what a later run takes."""
    return 1.0 if request.caches == "cold" else COLD_KEPT


def from_warm_disk(first: Outcome, second: Outcome) -> Outcome:
    """The first pilot of all, as if the files that it read had lain in memory: it makes its first step no later.

    One that compiles is left as it is: what it took before that step may have been its own.
    """
    return first if _compiling(first.records[0]) else _begun_sooner(first, second)


def found_warm(pilot: Outcome, other: Outcome) -> Outcome | None:
    """At best what the pilot would have been with all that it compiled in caches; None where it compiled nothing.

    What it compiled before its first step is not seen. It is no more than it came to that later than the `other` arm.
    """
    compiling = _compiling(pilot.records[0])
    if not compiling:
        return None
    return _begun_sooner(pilot, other) if 0 in compiling else pilot


def _begun_sooner(pilot: Outcome, other: Outcome) -> Outcome:
    """As soon after its launch as the other, if that was sooner."""
    later_s = max(0.0, _before_steps_s(pilot) - _before_steps_s(other))
    return replace(pilot, launched_s=pilot.launched_s + later_s)


def _before_steps_s(pilot: Outcome) -> float:
    record = pilot.records[0]
    return record.steps[0].end_s - record.step_s[0] - pilot.launched_s


def compiled_s(pilot: Outcome, num_steps: int | None = None) -> float:
    """What its first steps took longer than usual as they compiled; of all of its steps for None."""
    record = pilot.records[0]
    compiling = [record.step_s[index] for index in _compiling(record) if num_steps is None or index < num_steps]
    usual_s = statistics.median(record.step_s) if compiling else 0.0
    return math.fsum(max(0.0, step_s - usual_s) for step_s in compiling)


def _compiling(record: Record) -> list[int]:
    """Steps in which something was compiled. Until the step is found nobody asks: then it may be any of the first."""
    flagged = [index for index, step in enumerate(record.steps) if step.flags & COMPILED]
    first = flagged[0] if flagged else 0
    return [*(range(first) if first <= num_steps_to_find(record) else ()), *flagged]
