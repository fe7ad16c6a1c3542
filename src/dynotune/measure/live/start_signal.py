"""Where in a run the recording, or a window, begins: once its steps are steady, with the same step in all ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from dynotune.launch.records.record import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure.live.cache_effects import num_steps_to_find
from dynotune.measure.live.pilot import ROOM_STEPS, epoch_steps, steady_steps
from dynotune.measure.live.request import RecordRequest
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import RecordFrom, RunSpec

TOLD_FILE = "record-from.json"

# Steady as a pilot is, but for a shorter while: nothing is measured of these steps, they only must not be a start.
STEADY_STEPS = 10
STEADY_S = 0.5
# Of slow steps it would take minutes to tell. So few without a compilation or a new allocation will do after a while.
SLOW_S = 20.0
SLOW_STEPS = 5
RESTLESS_S = 120.0

# As many steps as show what varies between them, in a file that opens at once: about this long, but with stacks, which
# make ten times the events.
MOST_STEPS, FEWEST_STEPS = 10, 3
RECORDED_S = 6.0
RECORDED_WITH_STACKS_S = 1.5
# The processes look every 0.05 s, and what was read of them is up to 0.2 s old: all ranks must hear of it in time.
TELL_S = 0.5


def is_over(record: Record) -> bool:
    """Whether its trace is written, or it has said that there will be none. A program at its end needs no ending."""
    trace = record.last("trace")
    return trace is not None and not trace.get("at_exit")


class Director:
    """Tells the processes of a run where to begin recording, once their steps are steady.

    Called with the records of those whose steps count; says whether all of them have been recorded.

    Args:
        told: where it begins, when that is known from the start.
        where: says where, of steady records.
        is_over: whether a process has given what it was launched for.
    """

    def __init__(
        self,
        request: RunSpec,
        folder: Path,
        where: Callable[[Sequence[Record], RunSpec], RecordFrom],
        *,
        told: RecordFrom | None = None,
        is_over: Callable[[Record], bool] = is_over,
    ) -> None:
        self._request, self._folder = request, folder
        self._where, self._is_over = where, is_over
        self.told = told
        self.steady = True
        self._next_look = 1

    def __call__(self, records: Sequence[Record]) -> bool:
        if not records:
            return False
        if self.told is None:
            self._tell_if_steady(records)
        return not self._request.run_to_end and all(map(self._is_over, records))

    def _tell_if_steady(self, records: Sequence[Record]) -> None:
        record = records[0]
        num = len(record.steps)
        if num < self._next_look or record.begin_s is None:
            return
        # Looking takes as long as there are steps to look at.
        self._next_look = num + 1 + num // 8
        steady = is_steady(record, self._request.warmup_steps)
        if steady is None:
            return
        self.steady = steady
        self.told = self._where(records, self._request)
        document.write(self._folder / TOLD_FILE, self.told)


def is_steady(record: Record, warmup_steps: int | None) -> bool | None:
    """Whether its steps are steady; None while there is hope that they will be."""
    step_s = record.step_s
    if warmup_steps is not None:
        return True if len(step_s) >= warmup_steps else None
    first = steady_steps(record)
    if first is not None and len(step_s) - first >= STEADY_STEPS and sum(step_s[first:]) >= STEADY_S:
        return True
    events = [index for index, step in enumerate(record.steps) if step.flags & (COMPILED | ALLOCATED)]
    quiet = len(step_s) - 1 - max(events, default=0)
    if sum(step_s) >= SLOW_S and quiet >= SLOW_STEPS:
        return True
    return False if sum(step_s) >= RESTLESS_S and len(step_s) >= FEWEST_STEPS else None


def calm_steps(record: Record) -> int | None:
    """After so many steps another run of the same command, of which nothing is measured, is steady, too.

    None where this one was not, or something was compiled in it: another run may do that later, or not at all.
    """
    steady = steady_steps(record)
    if steady is None or any(step.flags & COMPILED for step in record.steps):
        return None
    return steady + max(STEADY_STEPS, math.ceil(STEADY_S / recent_step_s(record)))


def soon(records: Sequence[Record], request: RecordRequest) -> RecordFrom:
    """Soon, the same for all ranks, and where an epoch's length is known not across its end."""
    step_s = recent_step_s(records[0])
    num_steps = _num_steps(request, step_s)
    # The first recorded step is the one after the profiler got ready.
    step = past_epoch_begin(records[0], earliest(records) + 1, num_steps) - 1
    return RecordFrom(step=step, num_steps=num_steps)


def earliest(records: Sequence[Record]) -> int:
    """The step that all ranks can hear of in time."""
    return max(len(record.steps) for record in records) + max(ROOM_STEPS, math.ceil(TELL_S / recent_step_s(records[0])))


def past_epoch_begin(record: Record, step: int, num_steps: int) -> int:
    """`step`, or the next one after which `num_steps` hold no begin of an epoch, where an epoch's length is known."""
    length = epoch_steps([record])
    if length is None or num_steps + 1 >= length:
        return step
    begun = next(index for index, step in enumerate(record.steps) if step.flags & EPOCH)
    offset = (step - begun) % length
    return step + (1 - offset) % length if offset == 0 or offset + num_steps > length else step


def within(record: Record, request: RecordRequest) -> RecordFrom:
    """Where to record a command that makes no more steps than are in `record`.

    Raises:
        CannotRunHere: there is no room for it.
    """
    num, first = len(record.steps), num_steps_to_find(record) + ROOM_STEPS
    # One step is the profiler's to get ready in, and one is left over: two runs may differ by one.
    room = num - first - 2
    num_steps = _num_steps(request, recent_step_s(record))
    if request.num_steps is None:
        num_steps = min(num_steps, max(room, FEWEST_STEPS))
    if room < num_steps:
        raise CannotRunHere(
            f"The command makes {num} steps and ends: too few to record {num_steps} after {first + 1} of warm-up.",
            hint="Let it run longer (more epochs, more data), or ask for fewer steps with --steps.",
        )
    wanted = request.run.warmup_steps or steady_steps(record) or num // 2
    return RecordFrom(step=min(max(first, wanted), num - num_steps - 2), num_steps=num_steps)


def _num_steps(request: RecordRequest, step_s: float) -> int:
    longest_s = RECORDED_WITH_STACKS_S if request.stacks else RECORDED_S
    return request.num_steps or min(MOST_STEPS, max(FEWEST_STEPS, int(longest_s / step_s)))


def recent_step_s(record: Record) -> float:
    """Median of the last few, never zero."""
    return max(statistics.median(record.step_s[-STEADY_STEPS:]), 1e-6)
