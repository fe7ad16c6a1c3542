"""Whether the errors of an arm are those that rounding makes. Arithmetic only.

An error is how far a value lies from the same value of a reference in float64. What rounding explains is the error of
the baseline, or that of a baseline whose numbers are rounded as the arm promises, whichever is larger.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from dynotune.measure.live.switching import mean_of

NO_WORSE = 4.0
"""Errors within this factor of what rounding explains are no worse: two bits."""
BEYOND = 16.0
"""A single value this far beyond the largest error that rounding explains is wrong, whatever the others are."""
NUM_UNITS = 8
"""Means of consecutive values that the interval rests on: errors of one training hang together."""
NOTHING = 2.0**-24
"""Half of what float32 can tell apart: no smaller error is one."""

Errors = Sequence[float | None]
Interval = tuple[float, float]
Verdict = Literal["no worse", "worse", "undecided"]


class Judgement(NamedTuple):
    """How errors of an arm compare with those that rounding explains.

    Args:
        error, own: typical, geometric means over the values.
        ratio: of the arm's errors over the others, value by value.
        error_ci, ci: of `error` and `ratio`, at 95%; None for fewer than two values.
        beyond: the index of a value that no rounding explains.
    """

    verdict: Verdict
    error: float
    error_ci: Interval | None
    own: float
    ratio: float
    ci: Interval | None
    beyond: int | None


def judge(arm: Errors, baseline: Errors, *rounded: Errors, least: float = NOTHING) -> Judgement | None:
    """Compare the errors of an arm, value by value, with those of the baseline; None without any.

    `no worse` if the interval of the ratio ends below `NO_WORSE`, or no error is larger than the other; `worse` if it
    begins above 1 and the ratio is above that, or a single value lies beyond all noise.

    Args:
        rounded: each of a baseline that rounds as the arm promises.
        least: what rounding explains in any case.
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
    return Judgement(verdict, error, error_ci, own, ratio, ci, beyond)


def _typical(values: Sequence[float]) -> tuple[float, Interval | None]:
    """The geometric mean and its interval, from means of consecutive values."""
    logs = [math.log(value) for value in values]
    num_units = min(NUM_UNITS, len(logs))
    cuts = [len(logs) * unit // num_units for unit in range(num_units + 1)]
    units = [statistics.fmean(logs[begin:end]) for begin, end in itertools.pairwise(cuts)]
    mean = statistics.fmean(units)
    if len(units) < 2:
        return math.exp(mean), None
    _, _, reach = mean_of(units)
    return math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach))
