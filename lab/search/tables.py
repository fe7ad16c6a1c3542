"""What is true of a command: what each arm takes, how runs of it end, and how noisy they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dynotune.schema.arm import BASELINE, Arm
from dynotune.schema.study import Ended


class Noise(NamedTuple):
    """Of the logarithm of a run's value, in units of `sd`.

    Args:
        tails: degrees of freedom of Student's t, scaled to variance 1 where it has one; 0 for normal.
        drift: that every run is slower than the one before; `walk`: standard deviation of a random walk's
            step.
        stalls: share of runs that stall, by 4 to 10 sd.
    """

    sd: float = 0.02
    tails: int = 3
    drift: float = 0.02
    walk: float = 0.2
    stalls: float = 0.02

    def draw(self, rng: np.random.Generator, num: int) -> np.ndarray:
        core = rng.standard_t(self.tails, num) / math.sqrt(3) if self.tails else rng.standard_normal(num)
        stalled = (rng.random(num) < self.stalls) * rng.uniform(4, 10, num)
        drift = self.drift * np.arange(num) + self.walk * np.cumsum(rng.standard_normal(num))
        return self.sd * (core + stalled + drift)


QUIET = Noise(sd=0.0)
TAILS_AND_DRIFT = Noise()


class Table(NamedTuple):
    """What is true of a command.

    Args:
        gains: of each setting, by its id: ln(baseline / with it); one that is absent does nothing.
        together: what settings gain beyond the sum, where all of them are there.
        ends: settings that, all there, end a run otherwise than in a measurement.
        base: the baseline's value; `start_s`: what a run costs besides its window; `window_s`: the baseline's
            window.
    """

    gains: Mapping[str, float] = {}
    together: Mapping[frozenset[str], float] = {}
    ends: Mapping[frozenset[str], Ended] = {}
    base: float = 0.1
    start_s: float = 5.0
    window_s: float = 5.0

    def gain(self, arm: Arm) -> float:
        ids = {str(setting) for setting in arm.settings}
        alone = math.fsum(self.gains.get(id_, 0.0) for id_ in ids)
        return alone + math.fsum(more for those, more in self.together.items() if those <= ids)

    def end(self, arm: Arm) -> Ended:
        ids = {str(setting) for setting in arm.settings}
        return next((end for those, end in self.ends.items() if those <= ids), "measured")

    def value(self, arm: Arm, rng: np.random.Generator) -> float:
        return self.base * math.exp(-self.gain(arm))


class Recorded(NamedTuple):
    """Values of every arm of a full factorial table; a run draws one of them."""

    values: Mapping[str, Sequence[float]]
    run_s: float
    start_share: float = 0.5

    @property
    def base(self) -> float:
        return float(np.mean(self._of(BASELINE)))

    @property
    def start_s(self) -> float:
        return self.start_share * self.run_s

    @property
    def window_s(self) -> float:
        return (1 - self.start_share) * self.run_s

    def gain(self, arm: Arm) -> float:
        return float(np.mean(np.log(self._of(BASELINE))) - np.mean(np.log(self._of(arm))))

    def end(self, arm: Arm) -> Ended:
        return "measured" if self._of(arm) else "failed"

    def value(self, arm: Arm, rng: np.random.Generator) -> float:
        return float(rng.choice(np.asarray(self._of(arm))))

    def _of(self, arm: Arm) -> Sequence[float]:
        return self.values[arm.key]
