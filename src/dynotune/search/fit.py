"""Fit arms to runs in blocks: the logarithm of a value is the block's level plus the arm's.

A block's level is estimated from all runs of the block, not only from the baseline's, so one stalled run of
the baseline does not make all other arms look fast. All arms share one estimate of the spread, since two or
three runs give no estimate; for an arm whose own runs spread more, the estimate is widened. Runs far from the
fit weigh less, as under Student's t: with stalls and heavy tails, the mean of a few runs finds only half as
many gains. A comparison weighs all runs equally.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynotune.schema.comparison import Spread
from dynotune.schema.study import Trial

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
# Degrees of freedom of Student's t for the runs' noise.
TAILS = 4.0
# For normally distributed runs, weighting makes the spread look smaller than the true spread, by this factor.
WIDENED = 1.18
# The spread of all arms counts as this many runs in the estimate of an arm's own spread.
PRIOR_RUNS = 3
_ROUNDS = 8
_NO_RANK = 1e-9
_LEAST_VARIANCE = 1e-12


class Gain(NamedTuple):
    """Gain of one arm over another, as ln(value of the other / value of the arm): above 0, the arm is better.

    Args:
        se: standard error of the gain; infinite if there are too few runs to estimate the noise.
        df: degrees of freedom of `se`.
        num_blocks: number of blocks that contain the arm, for the arm in fewer blocks.
    """

    log: float
    se: float
    df: int
    num_blocks: int

    def upper(self, error: float) -> float:
        """Return the value that the gain exceeds with probability `error`, one-sided."""
        return self.log + self._quantile(error)

    @property
    def p(self) -> float:
        """Return the one-sided p of no gain."""
        from scipy.special import stdtr

        if self.df < 1 or not math.isfinite(self.se):
            return 1.0
        if self.se == 0:
            return 0.0 if self.log > 0 else 1.0
        return float(stdtr(self.df, -self.log / self.se))

    @property
    def speedup(self) -> float:
        return math.exp(self.log)

    @property
    def ci(self) -> tuple[float, float] | None:
        """Return the two-sided interval of the speed-up; None if too few runs leave no estimate of the
        noise."""
        half = self._quantile((1 - CONFIDENCE) / 2)
        return (math.exp(self.log - half), math.exp(self.log + half)) if half < 50 else None

    def _quantile(self, error: float) -> float:
        from scipy.special import stdtrit

        return self.se * float(stdtrit(self.df, 1 - error)) if self.df >= 1 else math.inf


class Fit:
    """Weighted least squares over runs in blocks; trials without a value and void trials are ignored."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        runs = [
            (trial.arm, (trial.phase, trial.block), math.log(value_of(trial)))
            for trial in trials
            if counts(trial)
        ]
        self._arms = {arm: index for index, arm in enumerate(sorted({arm for arm, _, _ in runs}))}
        blocks = {block: index for index, block in enumerate(dict.fromkeys(block for _, block, _ in runs))}
        self._in_blocks = {
            arm: len({block for other, block, _ in runs if other == arm}) for arm in self._arms
        }
        design = _indicators([self._arms[arm] for arm, _, _ in runs], len(self._arms))
        in_block = _indicators([blocks[block] for _, block, _ in runs], len(blocks))
        logs = np.array([log for _, _, log in runs], dtype=float)
        self._solve(design, in_block, logs)

    def _solve(self, design: Array, in_block: Array, logs: Array) -> None:
        """Alternate between estimating the weights and estimating the spread."""
        weights = np.ones(len(logs))
        variance = math.nan
        for _ in range(_ROUNDS):
            share = in_block * weights[:, None]
            size = np.maximum(share.sum(axis=0), _NO_RANK)[:, None]
            # Subtract the blocks' levels from indicators and values; what remains are the arms' levels within
            # blocks.
            x = design - in_block @ (share.T @ design / size)
            y = logs - (in_block @ (share.T @ logs[:, None] / size))[:, 0]
            values, vectors = np.linalg.eigh((x.T * weights) @ x)
            kept = values > _NO_RANK
            covariance = (vectors * np.where(kept, 1 / np.where(kept, values, 1.0), 0.0)) @ vectors.T
            effects = covariance @ ((x.T * weights) @ y)
            squares = (y - x @ effects) ** 2
            self.df = len(logs) - in_block.shape[1] - int(kept.sum())
            if self.df < 1:
                break
            variance = max(float(weights @ squares) / self.df, _LEAST_VARIANCE)
            self._own = (design.T @ (weights * squares)) * len(logs) / self.df
            weights = (TAILS + 1) / (TAILS + squares / variance)
        self._variance, self._covariance, self._logs = variance, covariance, effects
        self._estimable = vectors[:, kept] @ vectors[:, kept].T
        self._num_runs = design.sum(axis=0)

    def of_a_pair(self, *keys: str) -> Spread | None:
        """Return the spread of the log ratio of two runs in a block, at least the arms' own; None with too
        few runs."""
        if self.df < 1:
            return None
        spread = self._spread(*(self._arms[key] for key in keys))
        return Spread(2 * spread**2, self.df)

    def num_blocks(self, arm: str) -> int:
        return self._in_blocks.get(arm, 0)

    def gain(self, arm: str, against: str = "") -> Gain | None:
        """Return the gain of one arm over another; None if no chain of blocks connects the two arms."""
        if arm not in self._arms or against not in self._arms:
            return None
        contrast = np.zeros(len(self._arms))
        contrast[self._arms[against]] += 1.0
        contrast[self._arms[arm]] -= 1.0
        if np.abs(self._estimable @ contrast - contrast).max() > 1e-6:
            return None
        spread = self._spread(self._arms[arm], self._arms[against]) if self.df >= 1 else math.inf
        se = spread * math.sqrt(max(0.0, float(contrast @ self._covariance @ contrast)))
        return Gain(
            float(contrast @ self._logs), se, self.df, min(self._in_blocks[arm], self._in_blocks[against])
        )

    def _spread(self, *arms: int) -> float:
        """Return the spread of a run: the spread of all arms, or more if runs of the given arms spread
        more."""
        if not arms:
            return WIDENED * math.sqrt(self._variance)
        own = [
            (PRIOR_RUNS * self._variance + self._own[arm]) / (PRIOR_RUNS + self._num_runs[arm])
            for arm in arms
        ]
        return WIDENED * math.sqrt(max(self._variance, math.fsum(own) / len(own)))


def _indicators(at: list[int], num: int) -> Array:
    """Return a matrix of zeros with one row per run, and a one in the column of the run's arm or block."""
    found = np.zeros((len(at), num))
    found[np.arange(len(at)), at] = 1.0
    return found


def counts(trial: Trial) -> bool:
    """Return whether the trial is a run in a block, has a value, and was not disturbed from outside."""
    return trial.ended == "measured" and not trial.void and trial.value is not None and trial.block > 0


def value_of(trial: Trial) -> float:
    assert trial.value is not None
    return trial.value


def holm(ps: list[float]) -> list[float]:
    """Return the one-sided p of each hypothesis after Holm's correction for several hypotheses. Source: Holm
    1979."""
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected
