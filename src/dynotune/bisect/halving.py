"""Say which point of a line is measured next, and what error its comparison may have."""

import math
from collections.abc import Collection, Sequence

from dynotune.schema.bisection import BisectionStep
from dynotune.schema.comparison import Spread

ERROR = 0.05
"""Rate of searches that end at a wrong step, if one step made the difference."""
_RESERVE = 0.1
"""Share of the error for comparisons beyond the planned ones, which skipped points may cost."""
_MOST_DF = 16
"""Most degrees of freedom of earlier comparisons, so that a change of the machine's noise is seen."""


def num_planned(num_points: int) -> int:
    """Return the number of comparisons that halve a line of points, whose ends are known, to two
    neighbours."""
    return math.ceil(math.log2(num_points - 1)) if num_points > 2 else 0


def error_of(number: int, planned: int, error: float = ERROR) -> float:
    """Return the error of the comparison `number`, from 0: equal shares, and less and less beyond the plan.

    The shares of any number of comparisons add up to less than `error`.
    """
    if number < planned:
        return (1 - _RESERVE) * error / planned
    return _RESERVE * error * 0.5 ** (number - planned + 1)


def known_ends(num_points: int, steps: Sequence[BisectionStep]) -> tuple[int, int]:
    """Return the numbers of the last good and the first bad point so far."""
    low = max([0, *(step.candidate for step in steps if step.side == "good")])
    high = min([num_points - 1, *(step.candidate for step in steps if step.side == "bad")])
    return low, high


def next_point(low: int, high: int, skipped: Collection[int]) -> int | None:
    """Return the point nearest to the middle between two points; None if all of those between are skipped."""
    between = [point for point in range(low + 1, high) if point not in skipped]
    return min(between, key=lambda point: (abs(2 * point - low - high), point), default=None)


def against(speedup: float) -> float:
    """Return the speed-up below which a point is bad: half of the difference, as a logarithm."""
    return math.sqrt(speedup)


def pooled(spreads: Sequence[Spread]) -> Spread | None:
    """Return the spread of the pairs of earlier comparisons of the same command; None without any."""
    df = sum(spread.df for spread in spreads)
    if df == 0:
        return None
    variance = math.fsum(spread.variance * spread.df for spread in spreads) / df
    return Spread(variance, min(df, _MOST_DF))
