"""How to spend what is left on proofs: so many settings, so many blocks of ablation, so many pairs.

Of all ways that the time affords, the one that promises the largest proved gain, were the estimates of the races
true. It is chosen before the first run of the ablation and kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from dynotune.measure.comparison import CONFIDENCE, looks, nominal_levels
from dynotune.recipes import ERROR
from dynotune.schema.comparison import LOOKS, MAX_PAIRS, MIN_PAIRS
from dynotune.search.fit import Gain

# Of an ablation, in planned blocks: those, and about as many more or a second round.
_LOOKS = (1, 2)
LEAST_BLOCKS = 2
MOST_BLOCKS = 10
# Degrees of freedom below which a t of an ablation is hardly ever passed.
LEAST_DF = 3
# Runs stall and have tails: the spread seen is taken for so much larger.
CAUTION = 1.2
# Of a spread that earlier runs showed: with more, runs that spread otherwise later would hardly count.
MOST_SEEN_DF = 4
# From so many on, pairs need not tell their own spread, and fewer are enough.
ENOUGH_SEEN_DF = 4
# Estimates of what was picked are too high. That costs most where all is lost if two settings go.
ALL_OR_NOTHING = 0.85
# Beyond what must be passed: then a proof fails in one of forty.
SURE_SE = 2.0


class Layout(NamedTuple):
    """Args:
    num_settings: of the strongest; `num_blocks`: of ablation, 0 where there is one setting; `num_pairs`: to confirm,
        0 where the blocks of the ablation do that, too.
    """

    num_settings: int
    num_blocks: int
    num_pairs: int


class Round(NamedTuple):
    """What an ablation takes: arms a block, the whole and the baseline among them, and pilots before it."""

    num_arms: int
    num_pilots: int = 0

    def num_runs(self, num_blocks: int) -> int:
        return num_blocks * self.num_arms + self.num_pilots if num_blocks else 0

    def df(self, num_blocks: int) -> int:
        """Degrees of freedom behind its noise."""
        return (num_blocks - 1) * (self.num_arms - 1)


class Whole(NamedTuple):
    """Settings that may be proved together.

    Args:
        gain: of all of them over the baseline. Of two that do the same it is hardly more than that of each alone, where
            each adds next to nothing to the other.
        adds: what each adds to the rest of them.
        a_round: what an ablation of them takes.
    """

    gain: Gain
    adds: Sequence[Gain]
    a_round: Round


def num_pairs(affordable: int, seen_df: int) -> int:
    """Of a confirmation, of so many that the time affords; 0 where these are too few.

    Args:
        seen_df: degrees of freedom with which earlier runs tell how pairs spread.
    """
    fewest = MIN_PAIRS if seen_df >= ENOUGH_SEEN_DF else LOOKS[0]
    return min(affordable, MAX_PAIRS) if affordable >= fewest else 0


def best(wholes: Sequence[Whole], sd: float, num_runs: int, seen_df: int = 0) -> tuple[float, Layout] | None:
    """The most promising layout, and what it promises: the expected proved gain, as the logarithm of a ratio.

    Args:
        wholes: one setting alone, the first two, the first three, and so on.
        sd: of the logarithm of one run's value.
        num_runs: that the time left affords.
        seen_df: degrees of freedom behind the spread, before the ablation.
    """
    found: tuple[float, Layout] | None = None
    for num_settings, whole in enumerate(wholes, start=1):
        for num_blocks in _blocks(whole.a_round) if num_settings > 1 else (0,):
            ablation = whole.a_round.num_runs(num_blocks)
            df = whole.a_round.df(num_blocks) if num_blocks else 0
            seen = min(MOST_SEEN_DF, seen_df + df)
            pairs = num_pairs((num_runs - ablation) // 2, seen)
            if ablation > num_runs or not (num_blocks or pairs):
                continue
            layout = Layout(num_settings, num_blocks, pairs)
            promise = _promise(whole, CAUTION * sd, layout, df, seen)
            # Of two that promise about the same, the cheaper one came first.
            if found is None or promise > found[0] * 1.02:
                found = promise, layout
    return found


def is_sure(log: float, sd: float, num_pairs: int, seen_df: int) -> bool:
    """Whether so few pairs as good as surely prove a gain that is as large as it looks."""
    se = CAUTION * sd * math.sqrt(2 / num_pairs)
    return log > (_confirm_t(num_pairs, min(MOST_SEEN_DF, seen_df)) + SURE_SE) * se


def _blocks(a_round: Round) -> Sequence[int]:
    return [num for num in range(LEAST_BLOCKS, MOST_BLOCKS + 1) if a_round.df(num) >= LEAST_DF]


def _promise(whole: Whole, sd: float, layout: Layout, df: int, seen_df: int) -> float:
    """Expected gain that is proved; `df`: degrees of freedom of the ablation, `seen_df`: of all runs before pairs.

    That two go which do the same is left out: one of them has a second round then.
    """
    adds, total = whole.adds, whole.gain.log
    stay, kept = [1.0] * len(adds), total
    if layout.num_blocks:
        se = sd * math.sqrt(2 / layout.num_blocks)
        critical = _t(level(0) / layout.num_settings, df)
        stay = [_passes(gain.log, critical * se, math.hypot(se, gain.se)) for gain in adds]
        kept += math.fsum(_kept(gain, critical * se, se) - gain.log for gain in adds)
    if layout.num_pairs:
        critical, se = _confirm_t(layout.num_pairs, seen_df), sd * math.sqrt(2 / layout.num_pairs)
    else:
        kept = of_arms_that_ran(total, [gain.log for gain in adds], stay)
        critical = _t(of_one_arm(layout.num_settings + 1), df)
    return max(0.0, kept) * _passes(total, critical * se, math.hypot(se, whole.gain.se))


def level(look: int) -> float:
    """One-sided level at which a setting may stay at a look: 0 after the planned blocks, 1 after all that follow.

    The two sum to no more than `ERROR`: together they err no more often, even if the second is on blocks of its own.
    """
    return nominal_levels(_LOOKS, 2 * ERROR)[look] / 2


def of_one_arm(num_arms: int) -> float:
    """The one-sided level at which each of so many arms may be better than the baseline by chance."""
    return (1 - CONFIDENCE) / 2 / num_arms


def of_arms_that_ran(total: float, logs: Sequence[float], stay: Sequence[float]) -> float:
    """Expected gain of what stays, if that is the whole or the whole without one setting; of other arms none ran."""
    all_stay = math.prod(stay)
    without_one = 0.0
    for at, (log, passes) in enumerate(zip(logs, stay, strict=True)):
        without_one += (1 - passes) * math.prod([*stay[:at], *stay[at + 1 :]]) * (total - log)
    return ALL_OR_NOTHING * (all_stay * total + without_one)


@functools.cache
def _confirm_t(num_pairs: int, seen_df: int) -> float:
    """|t| that a comparison of at most so many pairs must pass at its last look."""
    level = nominal_levels(looks(num_pairs), 1 - CONFIDENCE)[-1]
    return _t(level / 2, num_pairs - 2 + seen_df)


@functools.cache
def _t(error: float, df: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, 1 - error))


def _kept(gain: Gain, threshold: float, se: float) -> float:
    """Expected gain of a setting that stays if what is seen of it, with that standard error, passes the threshold.

    The more uncertain the gain, the more of it: what turns out to be small goes.
    """
    sd = max(math.hypot(se, gain.se), 1e-9)
    z = (threshold - gain.log) / sd
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return gain.log * 0.5 * math.erfc(z / math.sqrt(2)) + gain.se**2 / sd * density


def _passes(gain: float, threshold: float, sd: float) -> float:
    return 0.5 * math.erfc((threshold - gain) / (max(sd, 1e-9) * math.sqrt(2)))
