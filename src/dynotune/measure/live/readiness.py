"""Decide from the records of a run that goes on whether the run has made enough steps to be stopped.

A pilot goes on until its steps are steady (`Steadiness`), a start until its first step (`FirstStep`).
`UntilStep` tells the user how to name a step if none comes.
"""

import math
import time
from collections.abc import Callable

from dynotune.launch.records import ALLOCATED, COMPILED, Record
from dynotune.measure.live.outcome import STEP_FUNCTION, Outcome
from dynotune.measure.live.warmup import steady_from
from dynotune.schema.cycle import CyclePart
from dynotune.schema.run import RunSpec

# A pilot goes on for some time after it is steady, because these steps show its noise.
STEADY_S = 2.0
STEADY_STEPS = 30
# Most programs run steps by then.
NO_STEP_S = 20.0
# A program that never becomes steady is measured all the same, with a caution.
RESTLESS_S = 120.0


class Steadiness:
    """Test whether a pilot has run for long enough."""

    def __init__(self, run: RunSpec) -> None:
        self._asked: int | None = None
        if run.warmup_steps is not None and run.window_steps is not None:
            self._asked = run.warmup_steps + run.window_steps
        self._next_look = STEADY_STEPS

    def __call__(self, records: list[Record]) -> bool:
        if not records:
            return False
        record = records[0]
        if self._asked is not None:
            return len(record.steps) >= self._asked
        if len(record.steps) < self._next_look:
            return False
        # Each check takes time in proportion to the number of steps.
        self._next_look = len(record.steps) + 1 + len(record.steps) // 8
        steps = record.step_s
        steady = steady_steps(record)
        if steady is None:
            return sum(steps) > RESTLESS_S
        return len(steps) - steady >= STEADY_STEPS and sum(steps[steady:]) >= STEADY_S


class UntilStep:
    """Wait for `enough` steps; if no step comes for a while, explain once how to name a step.

    `compiles`: tells whether the program has begun to compile, which may take minutes before the first step.
    """

    def __init__(
        self,
        enough: Callable[[list[Record]], bool],
        say: Callable[[str], None],
        compiles: Callable[[], bool] = lambda: False,
    ) -> None:
        self._enough, self._say, self._compiles = enough, say, compiles
        self._due_s = time.monotonic() + NO_STEP_S

    def __call__(self, records: list[Record]) -> bool:
        if records:
            self._due_s = math.inf
        elif time.monotonic() > self._due_s:
            self._due_s = math.inf
            self._say(
                "The program compiles (torch.compile), which may take minutes before its first step."
                if self._compiles()
                else f"No step in the first {NO_STEP_S:.0f} s: the command may still be starting. If it is "
                "at its work "
                "by now, its batches, calls of modules and updates show no cycle: stop it, and name or "
                "check the "
                f"function whose return ends a step: {STEP_FUNCTION}."
            )
        return self._enough(records)


class FirstStep:
    """Test whether a run has ended its first step, which is the cycle found by the pilot of the same
    settings.

    Cycles before the training (inspecting data, evaluating) look like steps at first. So the run continues
    until the pilot's step is found, or as many steps as in the pilot have run.
    """

    def __init__(self, pilot: Outcome) -> None:
        self._num_steps = max((len(record.steps) for record in pilot.records), default=1)
        self._cycles = [_cycle(record) for record in pilot.records]

    def __call__(self, records: list[Record]) -> bool:
        for record in records:
            found = _cycle(record) in self._cycles
            if not record.steps or not (found or len(record.steps) >= self._num_steps):
                return False
        return bool(records)


def _cycle(record: Record) -> tuple[CyclePart, ...] | None:
    """Return the first parts of the cycle that is a step; None before a step is found."""
    return None if record.step is None else tuple(record.cycle)


def steady_steps(record: Record) -> int | None:
    """Return the number of steps before the run was steady; None while unknown."""
    flags = [step.flags for step in record.steps]
    events = [index for index, flag in enumerate(flags) if flag & COMPILED]
    allocating = [index for index, flag in enumerate(flags) if flag & ALLOCATED]
    # Repeated allocation (a cache emptied in the loop) belongs to the program's normal work, not to its
    # warm-up.
    if sum(index >= len(flags) // 2 for index in allocating) <= len(flags) // 20:
        events += allocating
    return steady_from(record.step_s, events=events)
