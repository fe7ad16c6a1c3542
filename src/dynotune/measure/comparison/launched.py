"""Turn answers from blocks within one process into statements about launches, by a kept record of real runs.

An answer from blocks is about one process. How far such answers were off when the arms were launched is known
from real runs only, which `launched.toml` keeps. So the interval of an answer from blocks is widened by that
distance, and fresh pairs of an arm that blocks proved begin with the spread that pairs had in these runs.
"""

import functools
import math

import msgspec

from dynotune.measure.live.baseline_shift import why_not_proof
from dynotune.schema.comparison import (
    CONFIDENCE,
    MIN_PAIRS,
    TELLING_PAIRS,
    BlocksAnswer,
    Comparison,
    Spread,
)
from dynotune.schema.data_file import table

FILE = "launched.toml"
MOST_DF = 4
"""Most degrees of freedom that pairs of other programs count for: this program's pairs may differ more."""
MOST_SDS = 3.0
"""A single pair agrees with the blocks if it lies within so many standard deviations of a pair."""
ENOUGH_DF = 4
"""From this many degrees of freedom of earlier runs on, pairs need not show their own spread, and fewer are
enough."""
NOISIER = 1.6
"""Factor on the variance of other programs' pairs, some of which differ more than all of them together."""


class Launched(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One arm of one program, measured both ways.

    Args:
        within: speed-up by blocks within one process.
        within_se: standard error of the logarithm of `within`.
        fresh: geometric mean of the speed-ups of the fresh pairs.
        pairs_sd: standard deviation of the logarithm of a fresh pair's speed-up.
        num_pairs: number of fresh pairs.
    """

    program: str
    arm: str
    within: float
    within_se: float
    fresh: float
    pairs_sd: float
    num_pairs: int

    @property
    def offset_log(self) -> float:
        return math.log(self.fresh / self.within)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: list[str]
    rows: list[Launched]


@functools.cache
def rows() -> tuple[Launched, ...]:
    """Return the kept comparisons, in the order of the file."""
    return tuple(table(__package__, FILE, _Table).rows)


def offset_sd() -> float:
    """Return how far off an answer from blocks was when launched: the root mean square of ln(fresh / within).

    It includes the noise of both measurements, so a short or noisy record errs towards a wide interval.
    """
    return math.sqrt(math.fsum(row.offset_log**2 for row in rows()) / len(rows()))


def spread(own: Spread | None = None) -> Spread:
    """Return the spread of a fresh pair's log ratio: that of the kept programs, pooled with `own` of this
    program."""
    df = sum(row.num_pairs - 1 for row in rows())
    variance = math.fsum((row.num_pairs - 1) * row.pairs_sd**2 for row in rows()) / df
    others = Spread(NOISIER * variance, min(df, MOST_DF))
    if own is None or own.df == 0:
        return others
    both = own.df + others.df
    return Spread((own.df * own.variance + others.df * others.variance) / both, min(both, MOST_DF))


def fewest_pairs(seen: Spread | None) -> int:
    """Return the fewest fresh pairs that allow an interval, with the spread `seen` of earlier runs."""
    return MIN_PAIRS if seen is not None and seen.df >= ENOUGH_DF else TELLING_PAIRS


def widened(comparison: Comparison) -> Comparison:
    """Return a comparison by blocks with the interval in which the launched speed-up is expected.

    A verdict that this interval does not bear becomes `undecided`, with the reason. `same` states no
    speed-up.
    """
    from scipy.special import stdtrit

    speedup, ci = comparison.speedup, comparison.ci
    if not comparison.within or comparison.verdict == "same" or speedup is None or ci is None:
        return comparison
    more = float(stdtrit(len(rows()), (1 + CONFIDENCE) / 2)) * offset_sd()
    below, above = (math.hypot(math.log(end / speedup), more) for end in ci)
    wide = (speedup * math.exp(-below), speedup * math.exp(above))
    comparison = msgspec.structs.replace(comparison, ci=wide)
    is_borne = {"faster": wide[0] > 1, "slower": wide[1] < 1}.get(str(comparison.verdict), True)
    if is_borne:
        return comparison
    reason = (
        f"Blocks within one process are {comparison.verdict}, but when launched, such answers were off by "
        f"{math.expm1(offset_sd()):.1%} in real runs."
    )
    return msgspec.structs.replace(comparison, verdict="undecided", reason=reason)


def blocks_answer(comparison: Comparison) -> BlocksAnswer:
    """Return what a comparison by blocks said, to be kept beside the fresh pairs that follow."""
    return BlocksAnswer(
        verdict=comparison.verdict,
        speedup=comparison.speedup,
        ci=comparison.ci,
        pairs=comparison.pairs,
        baseline_shift=comparison.baseline_shift,
        only_chooses=comparison.only_chooses,
    )


def proved(within: Comparison) -> Comparison:
    """Return a comparison by blocks as an answer: with the launched interval, and undecided if blocks only
    choose.

    Blocks whose baseline was never compared with a plain window only choose, too: such are those of dynotune
    0.2. An answer without a block, such as that of equal arms, rests on no time and stays as it is.
    """
    if not within.pairs:
        return within
    only_chooses = within.only_chooses or (
        "" if within.baseline_shift is not None else why_not_proof(None, "")
    )
    if only_chooses and within.verdict is not None:
        within = msgspec.structs.replace(within, verdict="undecided", reason=only_chooses)
    return widened(within)


def stated(fresh: Comparison) -> Comparison:
    """Return the answer of fresh pairs that followed blocks.

    Pairs with a verdict of their own state the speed-up. Otherwise pairs and blocks state it together, each
    weighted by its precision as a statement about launches, or the blocks alone if no interval of pairs is
    known. If the pairs contradict the blocks, the pairs' `undecided` stays.
    """
    blocks = fresh.blocks
    if blocks is None or fresh.verdict not in (None, "undecided"):
        return fresh
    answer = proved(_comparison_of(fresh, blocks))
    if answer.verdict == "undecided":
        return msgspec.structs.replace(fresh, reason=f"{fresh.reason} {answer.reason}".strip())
    if not _agree(fresh, answer):
        contradiction = (
            f"Blocks within one process gave {answer.speedup:.3g} times, and fresh pairs contradict them."
        )
        return msgspec.structs.replace(fresh, reason=f"{fresh.reason} {contradiction}".strip())
    return answer if fresh.ci is None else _pooled(fresh, answer)


def _comparison_of(fresh: Comparison, blocks: BlocksAnswer) -> Comparison:
    """Return the comparison by blocks that came before the fresh pairs."""
    return msgspec.structs.replace(
        fresh,
        within=True,
        blocks=None,
        verdict=blocks.verdict,
        speedup=blocks.speedup,
        ci=blocks.ci,
        pairs=blocks.pairs,
        num_pairs=len(blocks.pairs),
        num_pairs_to_settle=None,
        reason="",
        baseline_shift=blocks.baseline_shift,
        only_chooses=blocks.only_chooses,
    )


def _pooled(fresh: Comparison, answer: Comparison) -> Comparison:
    """Return the fresh pairs with what they and the blocks say together; `undecided` if that is no
    difference.

    Both intervals are wider than those of a normal distribution with their errors, so their widths serve as
    errors.
    """
    logs, halves = [], []
    for one in (fresh, answer):
        assert one.speedup is not None and one.ci is not None
        logs.append(math.log(one.speedup))
        halves.append(math.log(one.ci[1] / one.ci[0]) / 2)
    weights = [1 / half**2 for half in halves]
    log = math.fsum(weight * log for weight, log in zip(weights, logs, strict=True)) / math.fsum(weights)
    half = 1 / math.sqrt(math.fsum(weights))
    ci = (math.exp(log - half), math.exp(log + half))
    if not (ci[0] > 1 if answer.verdict == "faster" else ci[1] < 1):
        return fresh
    reason = (
        f"{_count(len(fresh.pairs), 'fresh pair')} alone gave {fresh.speedup:.3g} times and did not "
        "decide; with "
        f"{_count(answer.num_pairs, 'block')} within one process they do."
    )
    return msgspec.structs.replace(
        fresh, verdict=answer.verdict, speedup=math.exp(log), ci=ci, reason=reason, pooled=True
    )


def _count(num: int, what: str) -> str:
    return f"{num} {what}" if num == 1 else f"{num} {what}s"


def _agree(fresh: Comparison, answer: Comparison) -> bool:
    """Tell whether the interval of fresh pairs meets that of the blocks; a pair without one differs as others
    do."""
    if fresh.speedup is None or answer.ci is None:
        return True
    reach = math.exp(MOST_SDS * math.sqrt(spread(fresh.seen).variance))
    low, high = fresh.ci or (fresh.speedup / reach, fresh.speedup * reach)
    return low <= answer.ci[1] and answer.ci[0] <= high
