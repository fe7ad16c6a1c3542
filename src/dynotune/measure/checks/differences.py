"""How far two runs of one program lie apart in what they compute. Arithmetic only."""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dynotune.measure.checks.tolerance import Tolerance

NUM_FIRST = 3
"""Values that are compared one by one. Later ones have drifted apart, and single ones say little."""
NUM_STRETCHES = 3
# Of how far the baseline lies from itself, which so few values say to about a third. Simulated with programs whose
# losses vary from run to run, of arms that do nothing 0.2% are called wrong with independent noise, 1.3% with heavy
# tails, 1.7% where the losses wander.
OWN_MULTIPLE = 5.0
NUM_FOR_FIRST = 8

Number = float | None


class Digest(msgspec.Struct, frozen=True):
    """Of one tensor that an outermost module gave. None stands for what is not finite.

    Args:
        sum, magnitudes, root: of the elements, of their magnitudes, and the root of the sum of squares.
        sampled: elements, evenly spaced.
    """

    shape: list[int]
    sum: Number = 0.0
    magnitudes: Number = 0.0
    root: Number = 0.0
    sampled: list[Number] = []


class Apart(NamedTuple):
    """Of each value, in order, how far one run lies from another; None where nothing can be said of it.

    Args:
        signed: relative to the size of such values.
        num_not_finite: values that are none in the one, and are in the other.
    """

    signed: list[float | None]
    num_not_finite: int


class LargestDifference(NamedTuple):
    difference: float
    own: float
    allowed: float
    where: str

    @property
    def ok(self) -> bool:
        return self.difference <= self.allowed


def losses_apart(ours: Sequence[Number], others: Sequence[Number]) -> Apart:
    """`others` less `ours`, by the mean magnitude of `ours` around."""
    pairs = list(zip(ours, others, strict=False))
    known = [abs(value) for value in ours if value is not None]
    overall = statistics.fmean(known) if known else 0.0
    signed: list[float | None] = []
    for at, (our, other) in enumerate(pairs):
        if our is None or other is None:
            signed.append(None)
            continue
        around = [abs(value) for value in ours[max(0, at - 2) : at + 3] if value is not None]
        # Where losses have become small, rounding is not small beside them any more.
        scale = max(statistics.fmean(around), 0.1 * overall)
        signed.append(_share(other - our, scale))
    return Apart(signed, sum(our is not None and other is None for our, other in pairs))


def outputs_apart(ours: Sequence[Sequence[Digest]], others: Sequence[Sequence[Digest]]) -> Apart:
    """The largest difference among the tensors of each call."""
    apart: list[float | None] = []
    num_not_finite = 0
    for our_call, other_call in zip(ours, others, strict=False):
        if len(our_call) != len(other_call):
            apart.append(1.0)
            continue
        distances = [_digests_apart(our, other) for our, other in zip(our_call, other_call, strict=True)]
        num_not_finite += sum(not_finite for _, not_finite in distances)
        known = [distance for distance, _ in distances if distance is not None]
        apart.append(max(known) if known else None)
    return Apart(apart, num_not_finite)


def _digests_apart(ours: Digest, others: Digest) -> tuple[float | None, bool]:
    """How far, and whether only the other has what is not finite."""
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
        # As many boxes as were found, for instance: one more or less moves the others, and their moments remain.
        found.append(0.0 if ours.shape[1:] == others.shape[1:] else 1.0)
    elif our_sampled:
        squares = [(other - our) ** 2 for our, other in zip(our_sampled, other_sampled, strict=True)]
        found.append(_share(math.sqrt(statistics.fmean(squares)), scale))
    return max(map(abs, found)), False


def judge(
    arm: Apart, own: Apart, tolerance: Tolerance, *, what: str, redrawn: bool = False, nudged: Apart | None = None
) -> LargestDifference | None:
    """The first values one by one, then the means of stretches of the later ones; None without any.

    Args:
        own: of the baseline against itself.
        what: `losses` or `outputs`.
        redrawn: `own` is of other random numbers: then its spread is there from the first value on.
        nudged: of the baseline against itself with weights moved by a rounding error: what training makes of that.
    """
    first, later = (tolerance.first, tolerance.later) if what == "losses" else (tolerance.outputs, tolerance.outputs)
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
            found.append(LargestDifference(abs(mean), spread_later, limit, f"the mean of values {begin + 1} to {end}"))
    return max(found, key=lambda one: one.difference / one.allowed, default=None)


def _stretches(num: int) -> list[tuple[int, int]]:
    """Of the values after the first ones, in stretches of about one length."""
    left = num - NUM_FIRST
    if left <= 0:
        return []
    cuts = [NUM_FIRST + left * part // NUM_STRETCHES for part in range(NUM_STRETCHES + 1)]
    return [(begin, end) for begin, end in itertools.pairwise(cuts) if end > begin]


def _spread_of_means(signed: Sequence[float | None], stretches: Sequence[tuple[int, int]]) -> float:
    """How far means of stretches lie apart: as they do, or as those of independent values would."""
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
    """Relative, never infinite: what differs from nothing at all differs wholly."""
    if not difference:
        return 0.0
    return max(-1e6, min(1e6, difference / scale)) if scale > 0 else math.copysign(1e6, difference)


def _numbers(digest: Digest) -> list[float] | None:
    known = [digest.sum, digest.magnitudes, digest.root, *digest.sampled]
    return None if None in known else [number for number in known if number is not None]
