"""Where in a live run a task begins: once its steps are steady, with the same step in all ranks."""

import math
import statistics
from collections.abc import Sequence

from dynotune.launch.records import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure.live.pilot import ROOM_STEPS, epoch_steps, num_steps_to_find, steady_steps
from dynotune.measure.live.request import RecordRequest
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.task import RecordTrace

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
# Ranks are compared step by step. Nine steps show eight stretches between exchanges, of which one may be out of line.
RANKS_STEPS = 9
RECORDED_WITH_STACKS_S = 1.5
# Processes look every 0.02 s, and what was read of them is up to 0.1 s old. Several ranks must all hear of it in time.
TELL_S, TELL_RANKS_S = 0.15, 0.5


def is_steady(record: Record, warmup_steps: int | None) -> bool | None:
    """Tell whether its steps are steady; None while there is hope that they will be."""
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


def recording_from_now(records: Sequence[Record], request: RecordRequest) -> RecordTrace:
    """Place the recording a few steps ahead, at the same step in all ranks, within an epoch if its length is known."""
    step_s = recent_step_s(records[0])
    num_steps = _num_steps(request, step_s, FEWEST_STEPS if len(records) == 1 else RANKS_STEPS)
    # The first recorded step is the one after the profiler got ready.
    step = past_epoch_begin(records[0], earliest(records) + 1, num_steps) - 1
    return _trace(request, step, num_steps)


def earliest(records: Sequence[Record]) -> int:
    """Return the first step that all ranks can be told of in time."""
    tell_s = TELL_S if len(records) == 1 else TELL_RANKS_S
    return max(len(record.steps) for record in records) + max(ROOM_STEPS, math.ceil(tell_s / recent_step_s(records[0])))


def past_epoch_begin(record: Record, step: int, num_steps: int) -> int:
    """Return `step`, or the next one after which `num_steps` hold no begin of an epoch, if its length is known."""
    length = epoch_steps([record])
    if length is None or num_steps + 1 >= length:
        return step
    begun = next(index for index, step in enumerate(record.steps) if step.flags & EPOCH)
    offset = (step - begun) % length
    return step + (1 - offset) % length if offset == 0 or offset + num_steps > length else step


def recording_within(record: Record, request: RecordRequest) -> RecordTrace:
    """Place the recording of a command that makes no more steps than are in `record`.

    Raises CannotRunHere: there is no room for it.
    """
    num, first = len(record.steps), num_steps_to_find(record) + ROOM_STEPS
    # One step is the profiler's to get ready in, and one is left over: two runs may differ by one.
    room = num - first - 2
    num_steps = _num_steps(request, recent_step_s(record))
    if request.num_steps is None:
        num_steps = min(num_steps, max(room, FEWEST_STEPS))
    if room < num_steps:
        raise CannotRunHere(
            f"The command ends after {num} steps: too few to record {num_steps} after {first + 1} of warm-up.",
            hint="Let it run longer (more epochs, more data), or ask for fewer steps with --steps.",
        )
    wanted = request.run.warmup_steps or steady_steps(record) or num // 2
    return _trace(request, min(max(first, wanted), num - num_steps - 2), num_steps)


def _trace(request: RecordRequest, at_step: int, num_steps: int) -> RecordTrace:
    return RecordTrace(
        at_step=at_step, num_steps=num_steps, stacks=request.stacks, shapes=request.shapes, memory=request.memory
    )


def _num_steps(request: RecordRequest, step_s: float, wanted: int = FEWEST_STEPS) -> int:
    """Return as many as fit; `wanted` at least, where recording them takes no longer than it does without stacks."""
    fits = int((RECORDED_WITH_STACKS_S if request.stacks else RECORDED_S) / step_s)
    return request.num_steps or min(MOST_STEPS, max(FEWEST_STEPS, fits, min(wanted, int(RECORDED_S / step_s))))


def recent_step_s(record: Record) -> float:
    """Return the median of the last few, never zero."""
    return max(statistics.median(record.step_s[-STEADY_STEPS:]), 1e-6)
