"""Whether the errors of an arm are those that rounding makes. Arithmetic only.

An error is how far a value lies from the same value of a reference in float64. What rounding explains is the error of
the baseline, or that of a baseline whose numbers are rounded as the arm promises, whichever is larger.
"""

from __future__ import annotations

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


class Judgement(NamedTuple):
    """How errors of an arm compare with those that rounding explains.

    Args:
        error, own: typical, geometric means over the values. `error_ci`: of `error`, as `ci`.
        ratio, ci: of the arm's errors over the others, value by value; `ci` None for fewer than two values.
        beyond: the index of a value that no rounding explains.
    """

    verdict: Literal["no worse", "worse", "undecided"]
    error: float
    own: float
    ratio: float
    ci: tuple[float, float] | None
    beyond: int | None = None
    error_ci: tuple[float, float] | None = None


def judge(arm: Errors, baseline: Errors, rounded: Errors | None = None) -> Judgement | None:
    """Compare the errors of an arm, value by value, with those of the baseline; None without any.

    `no worse` if the interval of the ratio ends below `NO_WORSE`, or no error is larger than the other; `worse` if it
    begins above 1 and the ratio is above that, or a single value lies beyond all noise.

    Args:
        rounded: of a baseline that rounds as the arm promises.
    """
    kept: list[tuple[int, float, float]] = []
    for at, (mine, ours) in enumerate(zip(arm, baseline, strict=False)):
        other = rounded[at] if rounded is not None and at < len(rounded) else None
        if mine is not None and ours is not None:
            kept.append((at, abs(mine) + NOTHING, max(abs(ours), abs(other or 0.0)) + NOTHING))
    if not kept:
        return None
    logs = [math.log(mine / noise) for _, mine, noise in kept]
    num_units = min(NUM_UNITS, len(logs))
    cuts = [len(logs) * unit // num_units for unit in range(num_units + 1)]
    units = [statistics.fmean(logs[begin:end]) for begin, end in itertools.pairwise(cuts)]
    mean, ci = statistics.fmean(units), None
    low = high = math.inf
    if len(units) > 1:
        _, _, reach = mean_of(units)
        low, high = mean - reach, mean + reach
        ci = (math.exp(low), math.exp(high))
    typical, own = (math.fsum(math.log(one[side]) for one in kept) / len(kept) for side in (1, 2))
    error_ci = None
    if len(kept) > 1:
        _, _, reach = mean_of([math.log(mine) for _, mine, _ in kept])
        error_ci = (math.exp(typical - reach), math.exp(typical + reach))
    most = BEYOND * max(noise for _, _, noise in kept)
    beyond = next((at for at, mine, _ in kept if mine > most), None)
    verdict: Literal["no worse", "worse", "undecided"] = "undecided"
    if beyond is not None or (ci is not None and low > 0 and mean > math.log(NO_WORSE)):
        verdict = "worse"
    elif high <= math.log(NO_WORSE) or max(logs) <= 0:
        verdict = "no worse"
    return Judgement(verdict, math.exp(typical), math.exp(own), math.exp(mean), ci, beyond, error_ci)
