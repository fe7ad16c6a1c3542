"""Decide at which step of a live run a task begins: after steps are steady, and at the same step in all
ranks."""

import math
import statistics
from collections.abc import Sequence

from dynotune.launch.records import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure.live.readiness import RESTLESS_S, steady_steps
from dynotune.measure.live.request import RecordRequest
from dynotune.measure.live.window_plan import ROOM_STEPS, epoch_steps, num_steps_to_find
from dynotune.schema.errors import TooFewSteps
from dynotune.schema.task import RecordTrace

# As steady as a pilot, but for a shorter time: these steps are not measured, they only must not belong to the
# start.
STEADY_STEPS = 10
STEADY_S = 0.5
RECENT_STEPS = 64
# With slow steps, steadiness takes minutes to show. Then this many steps without compiling or allocating are
# enough.
SLOW_S = 20.0
SLOW_STEPS = 5

# Enough steps to show their variation, in a file that opens at once: about this long, unless stacks make ten
# times the events.
MOST_STEPS, FEWEST_STEPS = 10, 3
RECORDED_S = 6.0
# Ranks are compared step by step. Nine steps have eight intervals between exchanges, of which one may be
# unusual.
RANKS_STEPS = 9
RECORDED_WITH_STACKS_S = 1.5
# To write a trace takes a joined program about as long as the recorded steps took.
RECORDED_BRIEFLY_S = 0.05
# Processes check for tasks every 0.02 s, and their records are read up to 0.1 s late. All must learn of it in
# time.
TELL_S, TELL_RANKS_S = 0.15, 0.5


def is_steady(record: Record, warmup_steps: int | None, restless_s: float = RESTLESS_S) -> bool | None:
    """Tell whether the steps are steady; None while they may still become steady, at most `restless_s`.

    The longest step does not count: a program that compiles is waited for once.
    """
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
    waited_s = sum(step_s) - max(step_s, default=0.0)
    return False if waited_s >= restless_s and len(step_s) >= FEWEST_STEPS else None


def recording_from_now(records: Sequence[Record], request: RecordRequest) -> RecordTrace:
    """Place the recording a few steps ahead, at the same step in all ranks, within an epoch of known
    length."""
    step_s = recent_step_s(records[0])
    num_steps = _num_steps(request, step_s, FEWEST_STEPS if len(records) == 1 else RANKS_STEPS)
    # The first recorded step follows the step in which the profiler gets ready.
    step = past_epoch_begin(records[0], earliest(records) + 1, num_steps) - 1
    return _trace(request, step, num_steps)


def earliest(records: Sequence[Record]) -> int:
    """Return the first step at which all ranks can have received the order to record."""
    tell_s = TELL_S if len(records) == 1 else TELL_RANKS_S
    step_s = max(statistics.median(records[0].step_s[-STEADY_STEPS:]), 1e-6)
    return max(len(record.steps) for record in records) + max(ROOM_STEPS, math.ceil(tell_s / step_s))


def past_epoch_begin(record: Record, step: int, num_steps: int) -> int:
    """Return `step`, or the next step whose `num_steps` contain no begin of an epoch, if epochs have known
    length."""
    length = epoch_steps([record])
    if length is None or num_steps + 1 >= length:
        return step
    begun = next(index for index, step in enumerate(record.steps) if step.flags & EPOCH)
    offset = (step - begun) % length
    return step + (1 - offset) % length if offset == 0 or offset + num_steps > length else step


def recording_within(record: Record, request: RecordRequest) -> RecordTrace:
    """Place the recording of a command that runs no more steps than `record` has.

    Raises TooFewSteps: the command has too few steps for a recording.
    """
    num, first = len(record.steps), num_steps_to_find(record) + ROOM_STEPS
    # The profiler needs one step to get ready, and one step is spare, since two runs may differ by one.
    room = num - first - 2
    num_steps = _num_steps(request, recent_step_s(record))
    if request.num_steps is None:
        num_steps = min(num_steps, max(room, FEWEST_STEPS))
    if room < num_steps:
        raise TooFewSteps(num, num_steps, first + 2, what="record")
    wanted = request.run.warmup_steps or steady_steps(record) or num // 2
    return _trace(request, min(max(first, wanted), num - num_steps - 2), num_steps)


def _trace(request: RecordRequest, at_step: int, num_steps: int) -> RecordTrace:
    return RecordTrace(
        at_step=at_step,
        num_steps=num_steps,
        most_s=request.most_s,
        stacks=request.stacks,
        shapes=request.shapes,
        memory=request.memory,
    )


def _num_steps(request: RecordRequest, step_s: float, wanted: int = FEWEST_STEPS) -> int:
    """Return how many steps fit, and at least `wanted` if recording takes no longer than usual without
    stacks."""
    usual_s = RECORDED_WITH_STACKS_S if request.stacks else RECORDED_S
    fits = int((RECORDED_BRIEFLY_S if request.brief else usual_s) / step_s)
    return request.num_steps or min(
        MOST_STEPS, max(FEWEST_STEPS, fits, min(wanted, int(RECORDED_S / step_s)))
    )


def recent_step_s(record: Record) -> float:
    """Return the time (s) of a recent step, never zero: the median of its work, and the mean of its wait for
    a batch.

    Batches come in bursts, one of each worker, so most steps wait for none. The begin of an epoch is left
    out.
    """
    usual = _recent(record)
    return max(statistics.median(a - b for a, b in usual) + statistics.fmean(b for _, b in usual), 1e-6)


def recent_wait_share(record: Record) -> float:
    """Return the share of recent steps for which the program waited for a batch."""
    usual = _recent(record)
    return sum(wait_s for _, wait_s in usual) / max(sum(step_s for step_s, _ in usual), 1e-6)


def _recent(record: Record) -> list[tuple[float, float]]:
    """Return duration and wait of recent steps, without those that begin an epoch if there are others."""
    steps = [*zip(record.step_s[-RECENT_STEPS:], record.steps[-RECENT_STEPS:], strict=True)]
    usual = [(step_s, step.wait_s) for step_s, step in steps if not step.flags & EPOCH]
    return usual or [(step_s, step.wait_s) for step_s, step in steps]
