"""Choose where the plain window begins and how many steps it holds."""

import math
import statistics
from collections.abc import Sequence

from dynotune.launch.records import ALLOCATED, COMPILED, EPOCH, Record
from dynotune.measure.live import pilot, placement
from dynotune.schema.run import RunSpec
from dynotune.schema.task import TimeWindow
from dynotune.text import words

# In this many seconds, events of every few steps occur in their true proportion. A hundred steps are the fewest that
# have a slowest hundredth. Nobody waits half a minute for a diagnosis of slow steps.
SHORTEST_S, LONGEST_S = 2.0, 10.0
ENOUGH_STEPS, ENOUGH_S = 100, 5.0
USUAL_STEPS, FEWEST_STEPS = 30, 3
RECENT_STEPS, TURN_STEPS = 100, 20


def window_from_now(records: Sequence[Record], request: RunSpec) -> TimeWindow:
    """Place the window a few steps ahead, at the same step in all ranks.

    The window spans whole epochs if these are short; otherwise it avoids the begin of an epoch if possible.
    """
    record = records[0]
    num_steps = request.window_steps or window_steps(record)
    step = placement.earliest(records)
    return TimeWindow(at_step=placement.past_epoch_begin(record, step, num_steps), num_steps=num_steps)


def window_within(record: Record, request: RunSpec) -> TimeWindow:
    """Place the window of a command that makes no more steps than `record` has.

    Raises TooFewSteps: the command makes too few steps for the window.
    """
    num, first = len(record.steps), pilot.num_steps_to_find(record) + pilot.ROOM_STEPS
    # One step is left over, since the number of steps of two runs may differ by one.
    room = num - first - 1
    wanted = max(first, request.warmup_steps or pilot.steady_steps(record) or num // 2)
    num_steps = request.window_steps or max(FEWEST_STEPS, min(window_steps(record), num - wanted - 1))
    if room < num_steps:
        raise pilot.too_few_steps(num, num_steps, first + 1, fewer="--steps" * (num_steps > FEWEST_STEPS))
    return TimeWindow(at_step=min(wanted, num - num_steps - 1), num_steps=num_steps)


def window_steps(record: Record) -> int:
    """Choose the number of steps in the window, from the steps made so far."""
    length = pilot.epoch_steps([record])
    step_s = _mean_step_s(record, length)
    num = max(USUAL_STEPS, math.ceil(SHORTEST_S / step_s))
    if num < ENOUGH_STEPS and ENOUGH_STEPS * step_s <= ENOUGH_S:
        num = ENOUGH_STEPS
    most = max(FEWEST_STEPS, math.floor(LONGEST_S / step_s))
    num = min(num, most)
    if length is None or length > most:
        return num
    # Events that occur once an epoch then count in their true proportion.
    return min(math.ceil(num / length), max(most // length, math.ceil(FEWEST_STEPS / length))) * length


def _mean_step_s(record: Record, length: int | None) -> float:
    """Return the mean of recent steps without the warm-up, whose compilations and first batches shorten the window.

    If the epoch length is known, whole epochs are averaged, which include the cost of an epoch's begin. Otherwise the
    middle one of several groups of steps is taken: other programs may have slowed a group down.
    """
    made = record.step_s
    if length is not None and len(made) >= length:
        recent = made[-max(RECENT_STEPS, length) :]
        return max(statistics.fmean(recent[-(len(recent) // length * length) :]), 1e-6)
    recent = made[pilot.steady_steps(record) or 0 :][-RECENT_STEPS:]
    turns = [recent[max(0, end - TURN_STEPS) : end] for end in range(len(recent), 0, -TURN_STEPS)]
    whole = [turn for turn in turns if len(turn) == TURN_STEPS] or turns
    return max(statistics.median(map(statistics.fmean, whole)), 1e-6)


def restlessness(record: Record, step: int) -> str:
    recent = record.step_s[max(0, step - RECENT_STEPS) : step]
    flags = [row.flags for row in record.steps[max(0, step - RECENT_STEPS) : step]]
    seen = [
        f"in {num} {what}"
        for num, what in (
            (sum(bool(flag & COMPILED) for flag in flags), "something was compiled"),
            (sum(bool(flag & ALLOCATED) for flag in flags), "device memory was allocated"),
            (sum(bool(flag & EPOCH) for flag in flags), "an epoch began"),
        )
        if num
    ]
    low, high = min(recent), max(recent)
    return (
        f"The steps had not become steady when they were timed: the last {len(recent)} before took "
        f"{words.duration(low)} to {words.duration(high)}" + (f"; {', '.join(seen)}." if seen else ".")
    )
