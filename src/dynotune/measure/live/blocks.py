"""Compute values of the stretches of blocks, which are the data of a comparison within one live run."""

import math
import statistics
from collections.abc import Sequence

from dynotune.schema.events import Block, unit_s

CONFIDENCE = 0.95
# Lasting effects of a candidate show in the stretches without it: those after it differ from those before by
# this.
LEFT_BEHIND, LEFT_BEHIND_ERROR = 0.03, 0.001


def mean_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean, its standard error, and half the width of its Student's t interval.

    Raises statistics.StatisticsError: there are fewer than two values.
    """
    from scipy.special import stdtrit

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), spread, float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * spread


def counts_samples(blocks: Sequence[Block]) -> bool:
    """Tell whether every stretch of the blocks has its number of samples."""
    return all(stretch.num_samples for block in blocks for stretch in [*block.baseline, *block.candidate])


def why_left_behind(blocks: Sequence[Block]) -> str:
    """Return why the baseline changed after the candidate was switched off; empty if the baseline did not
    change.

    In a block ABBA, one stretch of the baseline comes before the candidate and one after it.
    """
    from scipy.special import stdtr

    by_sample = counts_samples(blocks)
    shifts = [
        math.log(
            unit_s(block.baseline[1:], by_sample=by_sample) / unit_s(block.baseline[:1], by_sample=by_sample)
        )
        for block in blocks
        if block.order == "ABBA" and len(block.baseline) == 2
    ]
    if len(shifts) < 3:
        return ""
    mean, spread, _ = mean_of(shifts)
    p = 2 * float(stdtr(len(shifts) - 1, -abs(mean) / spread)) if spread else float(mean == 0)
    if abs(mean) <= LEFT_BEHIND or p > LEFT_BEHIND_ERROR:
        return ""
    change = f"{abs(math.expm1(mean)):.0%} {'more' if mean > 0 else 'less'} time"
    return f"once it is off again, a step takes {change} than before, so no block counts"
