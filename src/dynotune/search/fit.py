"""Arms against each other, from runs in blocks: the logarithm of a value is that of its block plus that of its arm.

A block's level is estimated from all its runs, not from the baseline's alone, so arms that were in different blocks can
be compared, and one stalled run of the baseline does not lift all others. One spread is estimated for all arms: of
two or three runs of its own none can be had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dynotune.schema.study import Trial

CONFIDENCE = 0.95
_NO_RANK = 1e-9


class Gain(NamedTuple):
    """Of one arm over another, as ln(value of the other / value of the arm): above 0, the arm is better.

    Args:
        se: its standard error; infinite where nothing is left to estimate the noise from.
        df: degrees of freedom behind `se`.
        num_blocks: that hold the arm which is in fewer of them.
    """

    log: float
    se: float
    df: int
    num_blocks: int

    def upper(self, error: float) -> float:
        """What it exceeds with probability `error`, one-sided."""
        return self.log + self._quantile(error)

    def lower(self, error: float) -> float:
        return self.log - self._quantile(error)

    @property
    def p(self) -> float:
        """One-sided, of no gain."""
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
        """Two-sided, of the speed-up; None where too few runs leave no estimate of the noise."""
        half = self._quantile((1 - CONFIDENCE) / 2)
        return (math.exp(self.log - half), math.exp(self.log + half)) if half < 50 else None

    def _quantile(self, error: float) -> float:
        from scipy.special import stdtrit

        return self.se * float(stdtrit(self.df, 1 - error)) if self.df >= 1 else math.inf


class Fit:
    """Least squares over runs in blocks.

    Args:
        trials: those that gave no value, and void ones, are passed over.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        runs = [(trial.arm, (trial.phase, trial.block), math.log(value_of(trial))) for trial in trials if counts(trial)]
        self._arms = {arm: index for index, arm in enumerate(sorted({arm for arm, _, _ in runs}))}
        blocks = {block: index for index, block in enumerate(dict.fromkeys(block for _, block, _ in runs))}
        self._in_blocks = {arm: len({block for other, block, _ in runs if other == arm}) for arm in self._arms}
        arm_of = np.array([self._arms[arm] for arm, _, _ in runs], dtype=int)
        block_of = np.array([blocks[block] for _, block, _ in runs], dtype=int)
        design = np.zeros((len(runs), len(self._arms)))
        design[np.arange(len(runs)), arm_of] = 1.0
        logs = np.array([log for _, _, log in runs], dtype=float)
        in_block = np.zeros((len(blocks), len(runs)))
        in_block[block_of, np.arange(len(runs))] = 1.0
        size = in_block.sum(axis=1)
        # What the blocks explain is taken out of both sides; what is left is arms within blocks.
        design -= in_block.T @ ((in_block @ design) / size[:, None])
        logs = logs - in_block.T @ ((in_block @ logs) / size)
        normal = design.T @ design
        values, vectors = np.linalg.eigh(normal)
        kept = values > _NO_RANK
        inverse = np.where(kept, 1 / np.where(kept, values, 1.0), 0.0)
        self._covariance = (vectors * inverse) @ vectors.T
        self._estimable = vectors[:, kept] @ vectors[:, kept].T
        self._logs = self._covariance @ (design.T @ logs)
        self.df = len(runs) - len(blocks) - int(kept.sum())
        self._rss = float(((logs - design @ self._logs) ** 2).sum())

    @property
    def sd(self) -> float | None:
        """Standard deviation of the logarithm of one run's value within its block; None where there are too few."""
        return math.sqrt(self._rss / self.df) if self.df >= 1 else None

    def num_blocks(self, arm: str) -> int:
        return self._in_blocks.get(arm, 0)

    def gain(self, arm: str, against: str = "") -> Gain | None:
        """None where no chain of blocks connects the two."""
        if arm not in self._arms or against not in self._arms:
            return None
        contrast = np.zeros(len(self._arms))
        contrast[self._arms[against]] += 1.0
        contrast[self._arms[arm]] -= 1.0
        if np.abs(self._estimable @ contrast - contrast).max() > 1e-6:
            return None
        variance = float(contrast @ self._covariance @ contrast)
        se = math.sqrt(variance) * self.sd if self.sd is not None else math.inf
        return Gain(float(contrast @ self._logs), se, self.df, min(self._in_blocks[arm], self._in_blocks[against]))


def counts(trial: Trial) -> bool:
    """It was measured, and nothing from outside disturbed it."""
    return trial.ended == "measured" and not trial.void and trial.value is not None and trial.block > 0


def value_of(trial: Trial) -> float:
    assert trial.value is not None
    return trial.value


def holm(ps: list[float]) -> list[float]:
    """The one-sided p of each hypothesis, corrected for there being several. Source: Holm 1979."""
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected
