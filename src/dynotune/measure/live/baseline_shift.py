"""Compare the baseline's stretches in the blocks of a live run with the plain window, which came before all
else.

Whatever dynotune does to a process before a block may change the process: recordings, compiled arms,
samplers. Then the baseline of the blocks is not the user's program any more, and a gain over that baseline is
not the user's gain.
"""

import math
import statistics
from collections.abc import Sequence

from dynotune.launch.records import Record
from dynotune.measure.live.blocks import CONFIDENCE, spread_of
from dynotune.schema.comparison import BaselineShift, Spread
from dynotune.schema.events import Block, TraceRecorded, Window, unit_s


def baseline_shift(record: Record, blocks: Sequence[Block]) -> BaselineShift | None:
    """Return how the baseline's steps changed since the plain window; None without a plain window or a block.

    The plain window counts as one more draw from the noise of the blocks' baselines, which their stretches
    show, too: the interval is that of a prediction (Student's t). The window is longer than a block's
    stretches, which errs towards a wide interval.
    """
    window = plain_window(record)
    if window is None or not blocks:
        return None
    counts = [window.num_samples, *(stretch.num_samples for block in blocks for stretch in block.baseline)]
    by_sample = all(num is not None and num > 0 for num in counts)
    num_units = (window.num_samples if by_sample else None) or window.num_steps
    plain_s = (window.end_s - window.begin_s) / num_units
    shifts = [math.log(unit_s(block.baseline, by_sample=by_sample) / plain_s) for block in blocks]
    # Of a block, a baseline is the mean of two stretches, and has half of the variance of what both arms say.
    halves = [block.baseline_repeat(by_sample=by_sample) for block in blocks]
    repeats = [half / math.sqrt(2) for half in halves if half is not None]
    shift, half = statistics.fmean(shifts), _half_width(spread_of(shifts, repeats), len(shifts))
    return BaselineShift(
        ratio=math.exp(shift),
        ci=None if half is None else (math.exp(shift - half), math.exp(shift + half)),
        num_blocks=len(blocks),
        pace=_pace(window, blocks),
    )


def larger_shift(first: BaselineShift, second: BaselineShift) -> BaselineShift:
    """Return the shift of two live runs that speaks more against their blocks: one that is shown, or the
    larger."""
    return max(first, second, key=lambda shift: (shift.is_shown, abs(math.log(shift.ratio))))


def plain_window(record: Record) -> Window | None:
    """Return the first timed window of the record if nothing was recorded or switched before it ended; else
    None."""
    window = next(iter(record.all(Window)), None)
    if window is None:
        return None
    traces, blocks = record.all(TraceRecorded), record.all(Block)
    others = [*(trace.begin_s for trace in traces[:1]), *(block.begin_s for block in blocks[:1])]
    is_plain = all(begin_s is not None and begin_s >= window.end_s for begin_s in others)
    return window if is_plain and window.end_s > window.begin_s and window.num_steps > 0 else None


def _pace(window: Window, blocks: Sequence[Block]) -> float:
    """Return how much longer the host took for the same Python code at the blocks' baselines than at the
    window."""
    paces = [stretch.pace_s for block in blocks for stretch in block.baseline]
    known = [pace_s for pace_s in paces if pace_s]
    if not window.pace_s or len(known) < len(paces):
        return 1.0
    return statistics.geometric_mean(known) / window.pace_s


def _half_width(noise: Spread, num: int) -> float | None:
    """Return half the width of the interval of a mean of `num` over one more draw; None if the noise is
    unknown."""
    from scipy.special import stdtrit

    if not noise.df:
        return None
    return float(stdtrit(noise.df, (1 + CONFIDENCE) / 2)) * math.sqrt(noise.variance * (1 + 1 / num))


def why_not_proof(shift: BaselineShift | None, cupti_stays: str) -> str:
    """Return why blocks choose between arms but prove no speed-up, in a sentence; empty if they prove one."""
    if shift is not None and shift.is_shown:
        more = "longer" if shift.ratio > 1 else "shorter"
        return (
            f"Within the process, a step of the command as it is took {abs(shift.ratio - 1):.0%} {more} "
            "than in the "
            "plain window before, so blocks there choose a setting but do not prove its speed-up."
        )
    if cupti_stays:
        return (
            f"A profiler stayed attached to the process ({cupti_stays}), so blocks there do not prove a "
            "speed-up."
        )
    if shift is None:
        return "No plain window was timed before the blocks, so they do not prove a speed-up."
    return ""
