"""Decide whether the errors of a candidate are explained by rounding. This module is arithmetic only.

An error is the difference between a value and the same value of a reference in float64. Rounding explains the
larger of two errors: the baseline's error, and the error of a baseline whose numbers are rounded as the
candidate promises.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from dynotune.measure.live.blocks import mean_of

NO_WORSE = 4.0
"""Errors within this factor (two bits) of those that rounding explains are no worse."""
BEYOND = 16.0
"""A single value beyond this factor over the largest error that rounding explains is wrong, whatever the
others are."""
NUM_UNITS = 8
"""Number of means of consecutive values behind the interval, since errors within one training are
correlated."""
NOTHING = 2.0**-24
"""Half the relative spacing of float32: smaller errors do not count."""

Errors = Sequence[float | None]
Interval = tuple[float, float]
Verdict = Literal["no worse", "worse", "undecided"]


class JudgedErrors(NamedTuple):
    """Comparison of a candidate's errors with the errors that rounding explains.

    Args:
        error, own: typical errors of candidate and rounding, as geometric means over the values.
        ratio: the candidate's errors divided by the errors of rounding, value by value.
        error_ci, ci: 95% intervals of `error` and `ratio`; None for fewer than two values.
        beyond: index of a value that rounding does not explain.
    """

    verdict: Verdict
    error: float
    error_ci: Interval | None
    own: float
    ratio: float
    ci: Interval | None
    beyond: int | None


def judge(arm: Errors, baseline: Errors, *rounded: Errors, least: float = NOTHING) -> JudgedErrors | None:
    """Compare the candidate's errors with the baseline's, value by value; return None without values.

    The verdict is `no worse` if the interval of the ratio ends below `NO_WORSE`, or no error exceeds
    rounding's error. The verdict is `worse` if the interval begins above 1 and the ratio is above `NO_WORSE`,
    or if a value is beyond all noise.

    Args:
        rounded: errors of each baseline that rounds as the candidate promises.
        least: errors up to this size are always explained by rounding.
    """
    kept = [
        (at, max(abs(mine), NOTHING), max(least, *(abs(other or 0.0) for other in (ours, *others))))
        for at, (mine, ours, *others) in enumerate(itertools.zip_longest(arm, baseline, *rounded))
        if mine is not None and ours is not None
    ]
    if not kept:
        return None
    ratio, ci = _typical([mine / noise for _, mine, noise in kept])
    error, error_ci = _typical([mine for _, mine, _ in kept])
    own, _ = _typical([noise for _, _, noise in kept])
    most = BEYOND * max(noise for _, _, noise in kept)
    beyond = next((at for at, mine, _ in kept if mine > most), None)
    verdict: Verdict = "undecided"
    if beyond is not None or (ci is not None and ci[0] > 1 and ratio > NO_WORSE):
        verdict = "worse"
    elif (ci is not None and ci[1] <= NO_WORSE) or all(mine <= noise for _, mine, noise in kept):
        verdict = "no worse"
    return JudgedErrors(verdict, error, error_ci, own, ratio, ci, beyond)


def _typical(values: Sequence[float]) -> tuple[float, Interval | None]:
    """Return the geometric mean of the errors and its interval, from means of consecutive values."""
    logs = [math.log(value) for value in values]
    num_units = min(NUM_UNITS, len(logs))
    cuts = [len(logs) * unit // num_units for unit in range(num_units + 1)]
    units = [statistics.fmean(logs[begin:end]) for begin, end in itertools.pairwise(cuts)]
    mean = statistics.fmean(units)
    if len(units) < 2:
        return math.exp(mean), None
    _, _, reach = mean_of(units)
    return math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach))
