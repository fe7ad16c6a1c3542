"""Compute how far the results of two runs of a program differ. This module is arithmetic only."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dynotune.measure.checks.tolerance import Tolerance
from dynotune.schema.events import Digest

NUM_FIRST = 3
"""Number of first values that are compared one by one. Later values have drifted apart, so single ones say
little."""
NUM_STRETCHES = 3
# Factor over the baseline's difference from itself, which so few values estimate to within about a third. In
# simulations of programs whose losses vary between runs, candidates without effect are called wrong in 0.2%
# of cases with independent noise, 1.3% with heavy tails, and 1.7% with wandering losses.
OWN_MULTIPLE = 5.0
NUM_FOR_FIRST = 8

Number = float | None


class Apart(NamedTuple):
    """Difference between two runs for each compared value, in order; None if a value cannot be compared.

    Args:
        signed: signed differences, relative to the typical size of the compared values.
        num_not_finite: number of values that are finite in the first run and not in the other.
        first_not_finite: the first of these values, counted from 1; None if there is none.
    """

    signed: list[float | None]
    num_not_finite: int
    first_not_finite: int | None = None


class LargestDifference(NamedTuple):
    difference: float
    own: float
    allowed: float
    where: str

    @property
    def ok(self) -> bool:
        return self.difference <= self.allowed


def losses_apart(ours: Sequence[Number], others: Sequence[Number]) -> Apart:
    """Return `others` minus `ours`, relative to the mean magnitude of neighbouring values of `ours`."""
    pairs = list(zip(ours, others, strict=False))
    known = [abs(value) for value in ours if value is not None]
    overall = statistics.fmean(known) if known else 0.0
    signed: list[float | None] = []
    for at, (our, other) in enumerate(pairs):
        if our is None or other is None:
            signed.append(None)
            continue
        around = [abs(value) for value in ours[max(0, at - 2) : at + 3] if value is not None]
        # Once losses have become small, rounding errors are no longer small beside them.
        scale = max(statistics.fmean(around), 0.1 * overall)
        signed.append(_share(other - our, scale))
    broken = [at for at, (our, other) in enumerate(pairs, 1) if our is not None and other is None]
    return Apart(signed, len(broken), next(iter(broken), None))


def outputs_apart(ours: Sequence[Sequence[Digest]], others: Sequence[Sequence[Digest]]) -> Apart:
    """Return the largest difference among the tensors of each call."""
    apart: list[float | None] = []
    num_not_finite, first_not_finite = 0, None
    for at, (our_call, other_call) in enumerate(zip(ours, others, strict=False), 1):
        if len(our_call) != len(other_call):
            apart.append(1.0)
            continue
        distances = [_digests_apart(our, other) for our, other in zip(our_call, other_call, strict=True)]
        num_not_finite += sum(not_finite for _, not_finite in distances)
        first_not_finite = first_not_finite or (at if num_not_finite else None)
        known = [distance for distance, _ in distances if distance is not None]
        apart.append(max(known) if known else None)
    return Apart(apart, num_not_finite, first_not_finite)


def _digests_apart(ours: Digest, others: Digest) -> tuple[float | None, bool]:
    """Return the difference of two digests, and whether only `others` has values that are not finite."""
    ours_all, others_all = _numbers(ours), _numbers(others)
    if ours_all is None or others_all is None:
        return None, ours_all is not None
    (our_sum, our_magnitudes, our_root, *our_sampled) = ours_all
    (other_sum, other_magnitudes, other_root, *other_sampled) = others_all
    num, other_num = math.prod(ours.shape), math.prod(others.shape)
    if not num or not other_num:
        return (0.0 if num == other_num else 1.0), False
    scale = our_root / math.sqrt(num)
    found = [
        _share(other_sum / other_num - our_sum / num, scale),
        _share(other_magnitudes / other_num - our_magnitudes / num, scale),
        _share(other_root / math.sqrt(other_num) - scale, scale),
    ]
    if ours.shape != others.shape:
        # For example the number of boxes found: one more or less shifts the others, but hardly changes their
        # moments.
        found.append(0.0 if ours.shape[1:] == others.shape[1:] else 1.0)
    elif our_sampled:
        squares = [(other - our) ** 2 for our, other in zip(our_sampled, other_sampled, strict=True)]
        found.append(_share(math.sqrt(statistics.fmean(squares)), scale))
    return max(map(abs, found)), False


def judge(
    arm: Apart,
    own: Apart,
    tolerance: Tolerance,
    *,
    what: str,
    redrawn: bool = False,
    nudged: Apart | None = None,
) -> LargestDifference | None:
    """Judge the first values singly, then the means over stretches of later values; return None without
    values.

    Args:
        own: differences of the baseline from itself.
        what: `losses` or `outputs`.
        redrawn: whether `own` comes from other random numbers, so that its spread is present from the first
            value on.
        nudged: differences of the baseline from a run whose weights were moved by a rounding error; these
            show how training amplifies rounding errors.
    """
    first, later = (
        (tolerance.first, tolerance.later) if what == "losses" else (tolerance.outputs, tolerance.outputs)
    )
    spread = _rms(own.signed if redrawn else own.signed[:NUM_FOR_FIRST])
    found = [
        LargestDifference(abs(value), spread, max(first, OWN_MULTIPLE * spread), f"value {at + 1}")
        for at, value in enumerate(arm.signed[:NUM_FIRST])
        if value is not None
    ]
    stretches = _stretches(len(arm.signed))
    spread_later = max(_spread_of_means(one.signed, stretches) for one in (own, nudged) if one is not None)
    for begin, end in stretches:
        mean = _mean(arm.signed[begin:end])
        if mean is not None:
            limit = max(later, OWN_MULTIPLE * spread_later)
            found.append(
                LargestDifference(abs(mean), spread_later, limit, f"the mean of values {begin + 1} to {end}")
            )
    return max(found, key=lambda one: one.difference / one.allowed, default=None)


def _stretches(num: int) -> list[tuple[int, int]]:
    """Split the values after the first ones into stretches of about equal length."""
    left = num - NUM_FIRST
    if left <= 0:
        return []
    cuts = [NUM_FIRST + left * part // NUM_STRETCHES for part in range(NUM_STRETCHES + 1)]
    return [(begin, end) for begin, end in itertools.pairwise(cuts) if end > begin]


def _spread_of_means(signed: Sequence[float | None], stretches: Sequence[tuple[int, int]]) -> float:
    """Return the spread of the stretches' means: the observed spread, or the spread expected of independent
    values."""
    means = [_mean(signed[begin:end]) for begin, end in stretches]
    singles = _rms(signed[NUM_FIRST:])
    length = max((end - begin for begin, end in stretches), default=1)
    return max(_rms(means), singles / math.sqrt(length))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _rms(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return math.sqrt(statistics.fmean([value**2 for value in known])) if known else 0.0


def _share(difference: float, scale: float) -> float:
    """Return `difference` / `scale`, limited to ±1e6, which also stands for any difference from exactly
    zero."""
    if not difference:
        return 0.0
    return max(-1e6, min(1e6, difference / scale)) if scale > 0 else math.copysign(1e6, difference)


def _numbers(digest: Digest) -> list[float] | None:
    known = [digest.sum, digest.magnitudes, digest.root, *digest.sampled]
    return None if None in known else [number for number in known if number is not None]
