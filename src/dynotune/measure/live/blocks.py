"""Compute values of the stretches of blocks, which are the data of a comparison within one live run."""

import math
import statistics
from collections.abc import Sequence

from dynotune.schema.comparison import Spread
from dynotune.schema.events import Block, unit_s

CONFIDENCE = 0.95
# Lasting effects of a candidate show in the stretches without it: those after it differ from those before by
# this.
LEFT_BEHIND, LEFT_BEHIND_ERROR = 0.03, 0.001
DIFFERENT = 0.25
"""Level of the test of whether two estimates of a variance may be pooled: high, since pooling those that
differ costs more than not pooling (Bancroft 1964)."""


def mean_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean, its standard error, and half the width of its Student's t interval.

    Raises statistics.StatisticsError: there are fewer than two values.
    """
    from scipy.special import stdtrit

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), spread, float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * spread


def spread_of(values: Sequence[float], repeats: Sequence[float]) -> Spread:
    """Return the variance of a block's log ratio, from how blocks differ and how stretches within them do.

    An arm's two stretches in a block differ by noise alone. The log ratio of a block, a difference of two
    means of two stretches, has half of the variance of such a difference, so that each counts as a degree of
    freedom. Neighbours that resemble each other only make `repeats` larger than that. If the gain itself
    differs from block to block, blocks differ by more, and nothing but blocks tells by how much.

    Args:
        values: log ratio of each block. repeats: `Block.repeats` of all of them.
    """
    own = Spread(statistics.variance(values), len(values) - 1) if len(values) > 1 else Spread(0.0, 0)
    return pooled(own, within(repeats))


def within(repeats: Sequence[float]) -> Spread:
    """Return the variance of what a block says, from the differences of stretches of one kind in it."""
    return Spread(math.fsum(value**2 for value in repeats) / 2 / max(1, len(repeats)), len(repeats))


def pooled(own: Spread, repeated: Spread) -> Spread:
    """Pool how blocks differ with what stretches within them say of it: at least the former, and the former
    alone if the latter does not explain it (F test)."""
    from scipy.special import fdtri

    if not repeated.df:
        return own
    if own.df and own.variance > float(fdtri(own.df, repeated.df, 1 - DIFFERENT)) * repeated.variance:
        return own
    df = own.df + repeated.df
    both = (own.df * own.variance + repeated.df * repeated.variance) / df
    return Spread(max(own.variance, both), df)


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
