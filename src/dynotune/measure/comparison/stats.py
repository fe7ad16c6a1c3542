"""Judge the pairs measured so far: return a verdict, or no verdict yet. docs/decisions/0001 explains the
method."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from dynotune.measure.comparison.looks import nominal_levels
from dynotune.measure.comparison.schedule import looks
from dynotune.measure.live.blocks import spread_of
from dynotune.schema.comparison import (
    CONFIDENCE,
    MARGIN,
    MAX_PAIRS,
    Comparison,
    Drawn,
    Pair,
    Spread,
    Verdict,
)  # fmt: skip
from dynotune.schema.errors import StatisticsError, UsageError

# Error rate of calling `same` a difference as large as the margin, at either end; separate from `faster` and
# `slower`.
SAME_ERROR = 0.05
# Share of all pairs: if more are void, the remaining pairs may not be representative.
ALLOWED_VOID = 0.2

# The fewest pairs for which a sign-flip test can reach 5%: 2 of its 64 flips.
SIGN_FLIP_FROM = 6
SIGN_FLIP_LEVEL = 0.05
MOST_FLIPPED = 16

NOTHING_SEEN = Spread(0.0, 0)

# With fewer pairs, fitting the order of runs may widen the interval but not narrow it. If runs fall into two
# modes, the few pairs of one order may agree by luck, the fit looks perfect, and up to one in ten comparisons
# of equals is called.
ORDER_MAY_NARROW_FROM = 8

OUT_OF_TIME = "The budget is used up."

POWER_Z = 0.8416
"""Normal quantile of 80% power."""
_ANSWER = ("verdict", "speedup", "ci", "num_pairs", "reason", "num_pairs_to_settle")
_MOST_TO_SETTLE = 1000
_LARGEST_LOG = 700.0  # exp(710) leaves the range of floats


class SequentialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the pairs measured so far.

    Args:
        verdict: None until `finished`.
        finished: whether no more pairs are needed.
        speedup: geometric mean of baseline time over candidate time; None without pairs.
        ci: repeated confidence interval of `speedup`, at 95% over all looks together. Between looks it is
            provisional and as wide as at the previous look. None if too few pairs allow no estimate of the
            noise.
        num_pairs: number of pairs on which `speedup` and `ci` are based.
        next_look: number of valid pairs at which the next verdict is possible; None when finished.
        num_pairs_to_settle: number of pairs with which a new comparison would be decided four times in five,
            if the present estimates are true; None unless `undecided`, and if the number is above 1000 or
            unknown.
        reason: sentence for the user; empty if the verdict needs no explanation.
    """

    verdict: Verdict | None
    finished: bool
    speedup: float | None
    ci: tuple[float, float] | None
    num_pairs: int
    next_look: int | None = None
    num_pairs_to_settle: int | None = None
    reason: str = ""

    def conclude(self, comparison: Comparison, **more: object) -> Comparison:
        """Return the comparison with this result as its answer, and with the fields in `more`."""
        said = {name: getattr(self, name) for name in _ANSWER}
        return msgspec.structs.replace(comparison, **said, **more)


def judge(
    pairs: Sequence[Pair],
    *,
    seen: Spread | None = None,
    margin: float = MARGIN,
    max_pairs: int = MAX_PAIRS,
    num_voided: int = 0,
    precision: float = math.inf,
    error: float = 1 - CONFIDENCE,
    ended: bool = False,
    unit: Drawn = "pair",
    fits_order: bool = True,
) -> SequentialResult:
    """Judge the valid `pairs`, in order of time, as a group-sequential comparison of at most `max_pairs`
    pairs.

    The first look that decides the comparison gives the verdict, whatever followed. So judging an interrupted
    comparison again gives the same verdict. A verdict is possible only at a look, the last look at the
    latest. Later pairs may only narrow the interval, which holds at all looks together.

    Args:
        seen: spread of earlier pairs of the same command, which improves the estimate from few pairs. `seen`
            never makes the spread of `pairs` smaller, since an earlier quiet machine says nothing about a
            noisy machine now.
        margin: the verdict is `same` if the ratio lies between 1/(1 + margin) and 1 + margin.
        num_voided: number of pairs that are void. While void pairs are more than a fifth of all pairs, no
            look decides.
        error: rate of calling a setting without effect `faster` or `slower`, over all looks together.
        precision: continue until the interval is as narrow as this share of a shown difference, while pairs
            are left.
        unit: what `pairs` are, for the reason's words.
        fits_order: whether an effect of the order is fitted. A block within one run holds both orders, ABBA
            or BAAB, and needs none.
        ended: the time is up, and no more pairs will come. The pairs since the last look are judged at the
            level of the next look. These pairs are more correlated with earlier looks than the next look is,
            so chance passes no more often.

    Raises:
        UsageError: `margin` or `max_pairs` is out of range.
        StatisticsError: a time is not a positive number, a ratio is implausible, there are more pairs than
            `max_pairs`, or baseline or candidate ran first more often than the schedule allows.
    """
    schedule, seen = looks(max_pairs), seen or NOTHING_SEEN
    if not 0 <= margin < 1:
        raise UsageError(f"The margin is a share from 0 to below 1, not {margin}.")
    _refuse_unusable(pairs, max_pairs)
    levels = nominal_levels(schedule, error)
    equivalence_levels = nominal_levels(schedule, 2 * SAME_ERROR)
    num_passed = sum(look <= len(pairs) for look in schedule)
    level = levels[max(0, num_passed - 1)]
    last = (max_pairs, len(pairs)) if ended else (max_pairs,)
    void = _Void(num_voided)
    if void.is_too_many(max_pairs):
        reason = void.as_reason(len(pairs), unit)
        return _state(_fit(pairs, seen, fits_order), level, verdict="undecided", reason=reason)

    settled: SequentialResult | None = None
    for k in range(num_passed):
        fit = _fit(pairs[: schedule[k]], seen, fits_order)
        if settled is not None:
            settled = _narrower(settled, _state(fit, levels[k], verdict=settled.verdict, reason=""))
        else:
            verdict, reason = _verdict(fit, levels[k], equivalence_levels[k], margin, void, unit)
            if verdict is None and fit.has_one_left and len(pairs) == schedule[k] in last:
                fit = _fit(pairs, order_is_noise=True)
                verdict, reason = _verdict(fit, levels[k], equivalence_levels[k], margin, void, unit)
            if verdict is not None:
                settled = _state(fit, levels[k], verdict=verdict, reason=reason)
        if settled is not None:
            if _is_precise(settled, precision) or fit.num_pairs == max_pairs:
                return settled
        elif fit.num_pairs == max_pairs:
            to_settle = _pairs_to_settle(fit, level, equivalence_levels[k], margin)
            return _state(fit, level, verdict="undecided", reason=reason, num_pairs_to_settle=to_settle)

    if settled is not None and ended:
        return settled
    if ended:
        # Before the first look, require at least what a look has: enough pairs, or a known spread.
        unseen_until = 1 if seen.df else schedule[0] - 1
        last_look = schedule[num_passed - 1] if num_passed else unseen_until
        fit, verdict, reason = _fit(pairs, seen, fits_order), None, ""
        if fit.has_one_left:
            fit = _fit(pairs, order_is_noise=True)
        if len(pairs) > last_look or void.is_too_many(len(pairs)):
            level, equivalence_level = levels[num_passed], equivalence_levels[num_passed]
            verdict, reason = _verdict(fit, level, equivalence_level, margin, void, unit)
        told = f"{OUT_OF_TIME} {reason}".strip() if verdict is None else reason
        return _state(fit, levels[num_passed], verdict=verdict or "undecided", reason=told)
    next_look = schedule[num_passed]
    reason = f"The next look is at {next_look} {unit}s."
    return _state(_fit(pairs, seen, fits_order), level, verdict=None, reason=reason, next_look=next_look)


def judge_comparison(
    comparison: Comparison,
    pairs: Sequence[Pair] | None = None,
    *,
    precision: float = math.inf,
    error: float | None = None,
    **more: Any,
) -> SequentialResult:
    """Judge `pairs` (None: the comparison's pairs) by the comparison's request; `precision` is the default.

    `error`: None for that of the comparison's confidence.
    """
    against = comparison.against
    judgement = judge(
        [_shifted(pair, against) for pair in (comparison.pairs if pairs is None else pairs)],
        seen=comparison.seen,
        margin=comparison.margin,
        max_pairs=comparison.max_pairs,
        num_voided=len(comparison.voided),
        precision=precision if comparison.precision is None else comparison.precision,
        unit="block" if comparison.within else "pair",
        fits_order=not comparison.within,
        error=1 - comparison.confidence if error is None else error,
        **more,
    )
    speedup, ci = judgement.speedup, judgement.ci
    return msgspec.structs.replace(
        judgement,
        speedup=None if speedup is None else speedup * against,
        ci=None if ci is None else (ci[0] * against, ci[1] * against),
    )


def _shifted(pair: Pair, against: float) -> Pair:
    """Return a pair whose ratio is 1 where that of `pair` is `against`."""
    if against == 1:
        return pair
    return msgspec.structs.replace(pair, baseline_s=pair.baseline_s / against)


def _is_precise(settled: SequentialResult, precision: float) -> bool:
    """Tell whether the requested precision is reached, so that no more pairs are needed."""
    if settled.verdict == "same" or math.isinf(precision):
        return True
    if settled.ci is None or settled.speedup is None:
        return False
    return math.log(settled.ci[1] / settled.ci[0]) <= precision * abs(math.log(settled.speedup))


def _narrower(settled: SequentialResult, later: SequentialResult) -> SequentialResult:
    """Return the later result unless its interval is wider than the earlier one: both intervals are valid."""
    if later.ci is None or settled.ci is None:
        return settled if later.ci is None else later
    is_narrower = later.ci[1] / later.ci[0] <= settled.ci[1] / settled.ci[0]
    same_side = later.ci[0] > 1 if settled.verdict == "faster" else later.ci[1] < 1
    return later if is_narrower and same_side else settled


class _Void(NamedTuple):
    num: int

    def is_too_many(self, num_valid: int) -> bool:
        return self.num > 1 and self.num > ALLOWED_VOID * (num_valid + self.num)

    def as_reason(self, num_valid: int, unit: Drawn) -> str:
        what = f"{self.num} of {num_valid + self.num} {unit}s were void, more than {ALLOWED_VOID:.0%}"
        return f"{what}: the GPU was another program's. Measure again when it is free."


class _Error(NamedTuple):
    """Standard error of a mean and its degrees of freedom."""

    se: float
    df: int

    def half_width(self, level: float) -> float:
        return math.inf if self.df < 1 else _t_quantile(level, self.df) * self.se


class _Fit(NamedTuple):
    """Log ratios fitted by a mean, and pairs also by a mean and the order within the pair.

    Args:
        effect: mean log ratio; of pairs with equal weight for both orders.
        adjusted: log ratios, of pairs without the effect of the order.
        plain: standard error of `effect` without the order, and its degrees of freedom.
        with_order: the same with the order, whose effect takes one degree of freedom; None for blocks, each
            of which holds both orders.
    """

    num_pairs: int
    effect: float
    adjusted: tuple[float, ...]
    plain: _Error
    with_order: _Error | None = None

    @property
    def has_one_left(self) -> bool:
        """Tell whether the order leaves one degree of freedom, as with three pairs, where only huge
        differences are found: where no pair follows, the order is better left in the noise."""
        return self.num_pairs == 3 and self.with_order is not None and self.with_order.df == 1

    def half_width(self, level: float) -> float:
        """Return half the width of the two-sided interval at `level`; infinite if the noise cannot be
        estimated."""
        if self.with_order is None:
            return self.plain.half_width(level)
        width = self.with_order.half_width(level)
        return max(width, self.plain.half_width(level)) if self.num_pairs < ORDER_MAY_NARROW_FROM else width


def _fit(
    pairs: Sequence[Pair], seen: Spread = NOTHING_SEEN, fits_order: bool = True, order_is_noise: bool = False
) -> _Fit:
    """Fit the log ratios; with `order_is_noise` an effect of the order is left in the noise, which it
    widens."""
    n = len(pairs)
    y = [_log_ratio(pair) for pair in pairs]
    own = spread_of(y, [value for pair in pairs for value in pair.repeats])
    if not y or (n < 2 and not own.df):
        return _Fit(n, y[0] if y else math.nan, tuple(y), _Error(math.nan, 0))
    center = math.fsum(y) / n
    plain = _Error(math.sqrt(_variance(own, seen) / n), own.df + seen.df)
    if not fits_order:
        return _Fit(n, center, tuple(y), plain)
    groups = {
        first: [value for value, pair in zip(y, pairs, strict=True) if pair.first == first]
        for first in {pair.first for pair in pairs}
    }
    means = {first: math.fsum(group) / len(group) for first, group in groups.items()}
    effect = math.fsum(means.values()) / len(means)
    adjusted = tuple(value - means[pair.first] + effect for value, pair in zip(y, pairs, strict=True))
    df, se = n - 2 + seen.df, math.nan
    if order_is_noise:
        se, df = math.sqrt(own.variance * sum(1 / len(group) for group in groups.values())) / 2, own.df
    elif df > 0:
        squares = math.fsum((value - effect) ** 2 for value in adjusted)
        variance = _variance(Spread(squares / max(1, n - 2), n - 2), seen)
        se = math.sqrt(variance * sum(1 / len(group) for group in groups.values())) / 2
    return _Fit(n, effect, adjusted, plain, _Error(se, df))


def _variance(own: Spread, seen: Spread) -> float:
    """Return the variance of a log ratio, pooled from `seen` and the pairs' own spread, at least the
    latter."""
    pooled = (own.df * own.variance + seen.df * seen.variance) / (own.df + seen.df)
    return max(pooled, own.variance if own.df else 0.0)


def _log_ratio(pair: Pair) -> float:
    # Take logs of the two times, not of their quotient, which can leave the range of floats.
    return math.log(pair.baseline_s) - math.log(pair.candidate_s)


def _verdict(
    fit: _Fit,
    level: float,
    equivalence_level: float,
    margin: float,
    void: _Void | None = None,
    unit: Drawn = "pair",
) -> tuple[Verdict | None, str]:
    if void is not None and void.is_too_many(fit.num_pairs):
        return None, void.as_reason(fit.num_pairs, unit)
    differs = abs(fit.effect) > fit.half_width(level)
    if abs(fit.effect) + fit.half_width(equivalence_level) <= math.log1p(margin):
        size = f"A difference of {abs(math.expm1(fit.effect)):.2%} is there, but it" if differs else "It"
        return "same", f"{size} lies within ±{100 * margin:g}%, shown by two one-sided tests."
    if differs:
        p = sign_flip_p(fit.adjusted) if fit.num_pairs >= SIGN_FLIP_FROM else 0.0
        if p <= SIGN_FLIP_LEVEL:
            return ("faster" if fit.effect > 0 else "slower"), ""
        return None, f"A few {unit}s carry the difference: the sign-flip test does not see it (p = {p:.2g})."
    if math.isinf(fit.half_width(level)):
        return None, f"{fit.num_pairs} {unit}s leave nothing to estimate the noise from."
    return None, f"Neither a difference nor equality within ±{100 * margin:g}% could be shown."


def sign_flip_p(values: Sequence[float]) -> float:
    """Return the share of all 2^n sign choices with |sum| at least as large as observed: an exact two-sided
    p.

    `values`: log ratios without drift. For more than 16 values, 2^16 random flips stand for all flips.
    """
    if not values:
        raise StatisticsError("A sign-flip test needs at least one value.")
    if len(values) > MOST_FLIPPED:
        return _drawn_sign_flip_p(values)
    # One sign may stay fixed, since flipping all signs does not change |sum|.
    sums = [values[0]]
    for value in values[1:]:
        sums = [total + value for total in sums] + [total - value for total in sums]
    # Flips that tie with the observed sum must count, whatever the order of summation.
    observed = abs(math.fsum(values)) - 1e-9 * math.fsum(map(abs, values))
    return sum(abs(total) >= observed for total in sums) / len(sums)


def _drawn_sign_flip_p(values: Sequence[float]) -> float:
    """Return the p-value of `sign_flip_p` from random flips with a fixed seed, including the observed
    signs."""
    import numpy as np

    signs = np.random.default_rng(0).integers(0, 2, (2**MOST_FLIPPED - 1, len(values))) * 2 - 1
    observed = abs(math.fsum(values)) - 1e-9 * math.fsum(map(abs, values))
    num_beyond = int(np.count_nonzero(np.abs(signs @ np.asarray(values)) >= observed))
    return float((1 + num_beyond) / 2**MOST_FLIPPED)


def _pairs_to_settle(fit: _Fit, level: float, equivalence_level: float, margin: float) -> int | None:
    """Return the number of pairs that reaches the nearer verdict with 80% power, if the estimates are
    true."""
    from scipy.special import ndtri

    if math.isinf(fit.half_width(level)):
        return None
    sd = (fit.with_order or fit.plain).se * math.sqrt(fit.num_pairs)
    distances = (
        (abs(fit.effect), float(-ndtri(level / 2)) + POWER_Z),
        (math.log1p(margin) - abs(fit.effect), float(-ndtri(equivalence_level / 2)) + POWER_Z),
    )
    needed = [(sd * z / distance) ** 2 for distance, z in distances if distance > 0]
    if not needed or min(needed) > _MOST_TO_SETTLE:
        return None
    # Round up to blocks of two pairs, and above the number that was not enough.
    return max(2 * math.ceil(min(needed) / 2), fit.num_pairs + 2)


def _state(
    fit: _Fit,
    level: float,
    *,
    verdict: Verdict | None,
    reason: str,
    next_look: int | None = None,
    num_pairs_to_settle: int | None = None,
) -> SequentialResult:
    half_width = fit.half_width(level)
    bounded = half_width < _LARGEST_LOG - abs(fit.effect)
    return SequentialResult(
        verdict=verdict,
        finished=verdict is not None,
        speedup=math.exp(fit.effect) if fit.num_pairs else None,
        ci=(math.exp(fit.effect - half_width), math.exp(fit.effect + half_width)) if bounded else None,
        num_pairs=fit.num_pairs,
        next_look=next_look,
        num_pairs_to_settle=num_pairs_to_settle,
        reason=reason,
    )


def _refuse_unusable(pairs: Sequence[Pair], max_pairs: int) -> None:
    if len(pairs) > max_pairs:
        raise StatisticsError(
            f"{len(pairs)} pairs were measured, {max_pairs} were declared: no verdict comes from going on.",
            hint="Start a new comparison.",
        )
    for number, pair in enumerate(pairs, 1):
        for arm, value in (("baseline", pair.baseline_s), ("candidate", pair.candidate_s)):
            if not (math.isfinite(value) and value > 0):
                raise StatisticsError(
                    f"Pair {number}: the {arm}'s time is {value} s, which is not a duration."
                )
        if len(pair.repeats) > 2 or not all(abs(repeat) <= _LARGEST_LOG for repeat in pair.repeats):
            raise StatisticsError(f"Block {number}: its repeats are no ratios of two stretches of each arm.")
        if abs(_log_ratio(pair)) > _LARGEST_LOG:
            raise StatisticsError(
                f"Pair {number}: {pair.baseline_s} s against {pair.candidate_s} s: no two runs differ so."
            )
        ahead = sum(1 if earlier.first == "baseline" else -1 for earlier in pairs[:number])
        if abs(ahead) > number % 2:
            raise StatisticsError(
                f"By pair {number} one run was first too often, so a drift would look like a difference.",
                hint="Repeat a void pair in its own order, as `orders` says.",
            )


@functools.cache
def _t_quantile(level: float, df: int) -> float:
    """Return the |t| that is exceeded with two-sided probability `level`."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 1 - level / 2))
