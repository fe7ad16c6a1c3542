"""One unmeasured run of each arm: warms its caches, and says where the window begins and how long it is."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

from dynotune.launch.record import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure.one_run import Outcome
from dynotune.measure.request import Request
from dynotune.measure.warmup import MAX_WINDOW_S, MIN_WINDOW_STEPS, steady_from, window_length
from dynotune.schema.errors import CannotRunHere

# A pilot goes on for a while once it is steady: that is what its noise is known from.
STEADY_S = 2.0
STEADY_STEPS = 30
# A program that never calms down is measured all the same, and the user is told.
RESTLESS_S = 120.0
# The step is found some events into the run, and the window begins after that in every run.
ROOM_STEPS = 2
MIN_STEPS = 8
# A hiccup of a busy machine takes some milliseconds, and the CPU is counted in ticks of ten: below the first length
# nothing can be told, below the second not much.
SHORTEST_S = 0.1
SHORT_S = 0.5


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The window of every run of a comparison.

    Args:
        start_s: from launch to its begin, of the slower arm; `step_s`: a step of the slower arm.
        steady: false when a pilot had not become steady.
        whole_epochs: it holds this many epochs of the loader; 0 when it is shorter than one, or they are unknown.
    """

    warmup_steps: int
    num_steps: int
    start_s: float
    step_s: float
    steady: bool = True
    whole_epochs: int = 0

    @property
    def is_short(self) -> bool:
        """Whether a stall of the machine weighs heavily in it."""
        return self.num_steps * self.step_s < SHORT_S

    @property
    def run_s(self) -> float:
        return self.start_s + self.num_steps * self.step_s


class Steadiness:
    """Tells when a pilot has run for long enough."""

    def __init__(self, request: Request) -> None:
        self._asked = (
            request.warmup_steps + request.window_steps
            if request.warmup_steps is not None and request.window_steps is not None
            else None
        )
        self._next_look = STEADY_STEPS

    def __call__(self, records: list[Record]) -> bool:
        if not records:
            return False
        record = records[0]
        if self._asked is not None:
            return len(record.steps) >= self._asked
        if len(record.steps) < self._next_look:
            return False
        # Looking takes as long as there are steps to look at.
        self._next_look = len(record.steps) + 1 + len(record.steps) // 8
        steps = record.step_s
        steady = steady_steps(record)
        if steady is None:
            return sum(steps) > RESTLESS_S
        return len(steps) - steady >= STEADY_STEPS and sum(steps[steady:]) >= STEADY_S


def steady_steps(record: Record) -> int | None:
    """Steps before it was steady; None while that cannot be told."""
    flags = [step.flags for step in record.steps]
    events = [index for index, flag in enumerate(flags) if flag & COMPILED]
    allocating = [index for index, flag in enumerate(flags) if flag & ALLOCATED]
    # Memory that is allocated ever again (a cache emptied in the loop) is how the program works, not its warm-up.
    if sum(index >= len(flags) // 2 for index in allocating) <= len(flags) // 20:
        events += allocating
    return steady_from(record.step_s, events=events)


def plan_window(request: Request, pilots: Sequence[Outcome], *, num_runs: int, budget_s: float | None) -> Window:
    """The window for all runs, from the pilot of each arm.

    Raises:
        CannotRunHere: the program ends before there is anything to time.
        UsageError: the budget affords no window.
    """
    records = [pilot.records[0] for pilot in pilots]
    found = [steady_steps(record) for record in records]
    fixed = max(_num_steps_to_find(record) for record in records)
    warmup = request.warmup_steps
    if warmup is None:
        settled = [index if index is not None else len(r.steps) // 2 for index, r in zip(found, records, strict=True)]
        warmup = max(*settled, fixed + ROOM_STEPS, 1)
    ended = [len(r.steps) for r, pilot in zip(records, pilots, strict=True) if pilot.run.ended_by == "command"]
    most = min(ended, default=None)
    if most is not None and request.warmup_steps is None and most - warmup < MIN_WINDOW_STEPS:
        warmup = min(warmup, max(fixed + ROOM_STEPS, most // 3))
    if most is not None and (most < MIN_STEPS or most - warmup < min(MIN_STEPS, request.window_steps or MIN_STEPS)):
        raise CannotRunHere(
            f"The command makes {most} steps and ends: too few to time {MIN_STEPS} after {warmup} of warm-up.",
            hint="Let it run longer (more epochs, more data), or set --warmup and --steps yourself.",
        )
    start_s = max(_start_s(pilot, warmup) for pilot in pilots)
    steady = [r.step_s[min(warmup, len(r.steps) - MIN_WINDOW_STEPS) :] for r in records]
    step_s = max(statistics.fmean(times) for times in steady)
    num_steps = request.window_steps
    whole_epochs = 0
    if num_steps is None:
        usable = [[times] for times in steady if len(times) >= MIN_WINDOW_STEPS]
        num_steps = (
            window_length(usable, start_s=start_s, budget_s=budget_s, num_runs=num_runs) if usable else MIN_WINDOW_STEPS
        )
        epoch = _epoch_steps(records)
        if epoch is not None and epoch * step_s <= MAX_WINDOW_S and (most is None or epoch + warmup <= most):
            # What happens once an epoch (workers started anew, a short last batch) counts as often in every window.
            whole_epochs = max(1, round(num_steps / epoch))
            if most is not None:
                whole_epochs = min(whole_epochs, (most - warmup) // epoch)
            num_steps = whole_epochs * epoch
        if most is not None:
            num_steps = min(num_steps, most - warmup)
    if num_steps * step_s < SHORTEST_S and request.window_steps is None:
        raise CannotRunHere(
            f"The window would be {num_steps} steps, {num_steps * step_s * 1e3:.0f} ms in all: too short to tell.",
            hint="Let the command run longer (more epochs, more data), or ask for more with --steps.",
        )
    return Window(
        warmup_steps=warmup,
        num_steps=num_steps,
        start_s=start_s,
        step_s=step_s,
        steady=None not in found or request.warmup_steps is not None,
        whole_epochs=whole_epochs,
    )


def _num_steps_to_find(record: Record) -> int:
    """Steps that had passed when the cycle was fixed."""
    cycle = record.last("cycle") or {}
    return int(cycle.get("num_steps", 0))


def _start_s(pilot: Outcome, warmup: int) -> float:
    steps = pilot.records[0].steps
    return steps[min(warmup, len(steps)) - 1].end_s - pilot.launched_s


def _epoch_steps(records: Sequence[Record]) -> int | None:
    """Steps of an epoch, where the pilots saw whole ones, all of one length."""
    lengths = set()
    for record in records:
        begins = [index for index, step in enumerate(record.steps) if step.flags & EPOCH]
        lengths |= {after - before for before, after in itertools.pairwise(begins)}
    # Evaluation on the same data begins the loader too; then the lengths differ and nothing is known.
    return lengths.pop() if len(lengths) == 1 else None


def affordable_pairs(window: Window, max_pairs: int, left_s: float | None) -> int:
    """The pairs that the time left affords; `max_pairs` without a limit."""
    if left_s is None:
        return max_pairs
    return min(max_pairs, math.floor(left_s / (2 * window.run_s)))
