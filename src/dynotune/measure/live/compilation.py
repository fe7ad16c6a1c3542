"""Estimate from pilots how much time a run saves when a pilot has filled the caches of compilers.

A pilot compiles with empty caches. Later runs find them filled, so a plan takes only a part of that time for
them.
"""

import math
import statistics

from msgspec.structs import replace

from dynotune.launch.records import COMPILED, Record
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.events import CycleFound

# Share of a first run's extra time (with empty caches) that is planned for later runs: a compiled net started
# in 28 s and then in 12 s, most of it imports.
COLD_KEPT = 0.5


def found_warm(pilot: Outcome, other: Outcome, *, is_first: bool) -> Outcome | None:
    """Return the best case of a later run with caches filled by the pilot; None if nothing changes.

    Compile time before the first step is not visible, nor is the very first run's reading from a cold disk.
    The sum of compile time and reading is at most the time by which the pilot reached that step later than
    the `other` pilot.
    """
    compiling, later_s = _compiling(pilot.records[0]), 0.0
    if is_first or 0 in compiling:
        later_s = max(0.0, _before_steps_s(pilot) - _before_steps_s(other))
    return replace(pilot, launched_s=pilot.launched_s + later_s) if compiling or later_s > 0 else None


def _before_steps_s(pilot: Outcome) -> float:
    record = pilot.records[0]
    return record.steps[0].end_s - record.step_s[0] - pilot.launched_s


def compiled_s(pilot: Outcome, num_steps: int | None = None) -> float:
    """Return by how many seconds compiling lengthened the pilot's first `num_steps` steps (None: all
    steps)."""
    record = pilot.records[0]
    compiling = [
        record.step_s[index] for index in _compiling(record) if num_steps is None or index < num_steps
    ]
    usual_s = statistics.median(record.step_s) if compiling else 0.0
    return math.fsum(max(0.0, step_s - usual_s) for step_s in compiling)


def compiles(pilot: Outcome) -> bool:
    """Tell whether the pilot compiled anything, as far as torch reports it."""
    return bool(_compiling(pilot.records[0]))


def _compiling(record: Record) -> list[int]:
    """List the steps that compiled something, and any early steps that were not checked for compiling."""
    flagged = [index for index, step in enumerate(record.steps) if step.flags & COMPILED]
    asked_from = min((cycle.num_steps for cycle in record.all(CycleFound)), default=0)
    return [*(range(flagged[0]) if flagged and flagged[0] <= asked_from else ()), *flagged]
