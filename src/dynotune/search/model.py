"""What each setting adds, from runs of many settings at once.

The logarithm of a run's value is that of its block, plus what each of its settings adds, plus what each pair of one
group adds beyond its two halves. An arm of many settings tells something of each of them, so this learns from a few
runs what runs of single settings would need many for. It only screens: runs that stalled weigh less in it, and nothing
of it enters a proof. What was switched on and off within one process tells of it, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dynotune.schema.study import Candidate, Estimate, Trial
from dynotune.search.fit import Gain, counts, value_of
from dynotune.search.needs import has_company, together

Array = npt.NDArray[np.float64]

# Before any run, as the logarithm of a ratio: most settings add less than a tenth, most pairs less than half of that.
SETTING_SD = 0.10
PAIR_SD = 0.05
# Of a run's value, before it is seen: as much as so many runs would tell.
USUAL_SD = 0.015
USUAL_RUNS = 4.0
# Student's t with so many degrees of freedom, for the runs' noise.
TAILS = 4.0
# What one process says of a setting, fresh ones say within so much: memory lies elsewhere, plans were made before.
PROCESS_SD = 0.01
# Of a user's own space of many values, more would take longer to solve than a run takes.
MOST_PAIRS = 200
PRIOR_TAILS = 4.0
_ROUNDS = 6
_LEAST_SD = 1e-3


class Feature(NamedTuple):
    """Candidates that must all be in an arm: one, or two of one group."""

    ids: tuple[str, ...]


class Model:
    """Posterior of what settings and pairs add.

    Args:
        candidates: whose settings are in the arms.
        arms: ids of the settings of each arm, by its key.
        trials: of any phases; those that gave no value, and void ones, are passed over.
        told: of arms over the baseline, from within one process; one without an interval is passed over.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        arms: Mapping[str, frozenset[str]],
        trials: Sequence[Trial],
        told: Sequence[Estimate] = (),
    ) -> None:
        self.features = features(candidates)
        told = [one for one in told if one.arm in arms and one.ci is not None]
        self._told = np.array([_row(self.features, arms[one.arm]) for one in told]).reshape(
            len(told), len(self.features)
        )
        self._told_logs = np.array([math.log(one.speedup) for one in told])
        self._told_precision = np.array([1 / (_se(one) ** 2 + PROCESS_SD**2) for one in told])
        self._told_blocks = np.array([one.num_blocks for one in told], dtype=int)
        runs = [trial for trial in trials if counts(trial) and trial.arm in arms]
        rows = np.array([_row(self.features, arms[trial.arm]) for trial in runs]).reshape(len(runs), len(self.features))
        logs = np.array([-math.log(value_of(trial)) for trial in runs])
        names = list(dict.fromkeys((trial.phase, trial.block) for trial in runs))
        at = {name: index for index, name in enumerate(names)}
        in_block = np.zeros((len(names), len(runs)))
        in_block[[at[trial.phase, trial.block] for trial in runs], np.arange(len(runs))] = 1.0
        prior = np.array([SETTING_SD if len(feature.ids) == 1 else PAIR_SD for feature in self.features]) ** -2.0
        self._rows, self._in_block = rows, in_block
        self.num_runs = len(runs) + len(told)
        self.df = max(0, len(runs) - len(names) - len(candidates))
        self._solve(rows, logs, in_block, prior)

    def _solve(self, rows: Array, logs: Array, in_block: Array, prior: Array) -> None:
        """Weighted least squares with the prior, weights and noise found in turn."""
        weights = np.ones(len(logs))
        sd, small = USUAL_SD, prior
        known = (self._told.T * self._told_precision) @ self._told
        shift = (self._told.T * self._told_precision) @ self._told_logs
        for _ in range(_ROUNDS):
            share = in_block * weights
            size = np.maximum(share.sum(axis=1, keepdims=True), 1e-12)
            x = rows - in_block.T @ (share @ rows / size)
            y = logs - in_block.T @ (share @ logs / size[:, 0])
            precision = (x.T * weights) @ x / sd**2 + known + np.diag(prior)
            covariance = np.linalg.inv(precision)
            mean = covariance @ ((x.T * weights) @ y / sd**2 + shift)
            prior = small * np.minimum(1.0, (PRIOR_TAILS + 1) / (PRIOR_TAILS + small * mean**2))
            residuals = y - x @ mean
            spent = len(in_block) + float(np.trace(covariance @ ((x.T * weights) @ x))) / sd**2
            weights = (TAILS + 1) / (TAILS + (residuals / sd) ** 2)
            squares = float(weights @ residuals**2) + USUAL_RUNS * USUAL_SD**2
            sd = max(_LEAST_SD, math.sqrt(squares / (max(0.0, len(logs) - spent) + USUAL_RUNS)))
        self.mean, self.covariance, self.sd = mean, covariance, sd

    def gain(self, ids: frozenset[str], against: frozenset[str] = frozenset()) -> Gain:
        """Of one set of settings over another; `num_blocks` counts those that hold what differs.

        What one process told counts where it told of all that differs.
        """
        contrast = _row(self.features, ids) - _row(self.features, against)
        variance = float(contrast @ self.covariance @ contrast)
        changed = np.flatnonzero(contrast)
        holding = (self._rows[:, changed] > 0).any(axis=1)
        num_blocks = int((self._in_block @ holding > 0).sum())
        num_told = int(self._told_blocks[(self._told[:, changed] > 0).any(axis=1)].sum())
        num_told *= all(map(self.is_told, ids ^ against))
        # Of what ran in one block, no other run can tell a stall from what it costs.
        df = max(1, min(self.df, num_blocks + 1), num_told - 1)
        return Gain(float(contrast @ self.mean), math.sqrt(max(0.0, variance)), df, num_blocks + num_told)

    def is_told(self, id_: str) -> bool:
        """Whether one process told of this setting."""
        feature = Feature((id_,))
        return feature in self.features and bool(self._told[:, self.features.index(feature)].any())

    def ran(self, feature: Feature) -> bool:
        """Whether a run held all of it."""
        return bool(self._rows[:, self.features.index(feature)].any())

    def draw(self, rng: np.random.Generator) -> Array:
        """One draw of what features add."""
        return rng.multivariate_normal(self.mean, self.covariance, method="eigh")

    def best(self, candidates: Sequence[Candidate], adds: Array) -> list[Candidate]:
        """The arm that gains most were `adds` the truth, at most one value a knob."""
        worth = {feature.ids: float(add) for feature, add in zip(self.features, adds, strict=True)}
        groups: dict[str, list[Candidate]] = {}
        for one in candidates:
            groups.setdefault(f"group {one.group}" if one.group else one.setting.knob, []).append(one)
        found = [one for those in groups.values() for one in _best_of_group(those, worth)]
        return together(found)


def features(candidates: Sequence[Candidate]) -> list[Feature]:
    """Each candidate, and each pair of two knobs of one group."""
    pairs = [
        Feature((one.id, other.id))
        for one, other in itertools.combinations(candidates, 2)
        if one.group and one.group == other.group and one.setting.knob != other.setting.knob
    ]
    return [*(Feature((one.id,)) for one in candidates), *pairs[:MOST_PAIRS]]


def _se(estimate: Estimate) -> float:
    """Standard error of the logarithm, from the interval: Student's t over its blocks."""
    from scipy.special import stdtrit

    assert estimate.ci is not None
    reach = (math.log(estimate.ci[1]) - math.log(estimate.ci[0])) / 2
    return reach / float(stdtrit(max(1, estimate.num_blocks - 1), (1 + estimate.confidence) / 2))


def _row(among: Sequence[Feature], ids: frozenset[str]) -> Array:
    return np.array([float(all(id_ in ids for id_ in feature.ids)) for feature in among])


def _best_of_group(those: Sequence[Candidate], worth: Mapping[tuple[str, ...], float]) -> list[Candidate]:
    """Knob by knob, each at its best beside the others, from three starts: the best or nearly so."""
    knobs: dict[str, list[Candidate]] = {}
    for one in those:
        knobs.setdefault(one.setting.knob, []).append(one)
    # Pairs as a start of their own: of two that help only together, neither is added first.
    pairs = sorted((ids for ids in worth if len(ids) == 2 and _inside(ids, those)), key=lambda ids: -worth[ids])[:2]
    by_id = {one.id: one for one in those}
    gains = _adds_with_dependants if any(one.needs for one in those) else _added
    best: list[Candidate] = []
    best_worth = 0.0
    for start in [(), *pairs]:
        chosen = {by_id[id_].setting.knob: by_id[id_] for id_ in start}
        for _ in range(2):
            for knob, values in knobs.items():
                rest = [one for other, one in chosen.items() if other != knob]
                adds = {one.id: gains(one, rest, worth) for one in values}
                top = max(values, key=lambda one: adds[one.id])
                chosen.pop(knob, None)
                if adds[top.id] > 0:
                    chosen[knob] = top
        found = together(list(chosen.values()))
        total = sum(_added(one, found[:at], worth) for at, one in enumerate(found))
        if total > best_worth:
            best, best_worth = found, total
    return best


def _inside(ids: tuple[str, ...], those: Sequence[Candidate]) -> bool:
    return {*ids} <= {one.id for one in those}


def _adds_with_dependants(one: Candidate, rest: Sequence[Candidate], worth: Mapping[tuple[str, ...], float]) -> float:
    """What `one` adds, with those of `rest` that mean nothing without it; nothing without what it needs itself."""
    if not has_company(one, [other.id for other in rest]):
        return -math.inf
    alone, held = together(rest), together([*rest, one])
    total = [sum(_added(other, those[:at], worth) for at, other in enumerate(those)) for those in (held, alone)]
    return total[0] - total[1]


def _added(one: Candidate, rest: Sequence[Candidate], worth: Mapping[tuple[str, ...], float]) -> float:
    pairs = (worth.get((one.id, other.id), worth.get((other.id, one.id), 0.0)) for other in rest)
    return worth[one.id,] + sum(pairs)
