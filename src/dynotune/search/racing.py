"""Single settings against the baseline, in shared blocks; the hopeless are dropped early.

A race only screens: what it finds is biased by having been picked, so nothing of it enters a proof. Its levels are
therefore chosen for power. Each look drops an arm whose one-sided upper bound at `DROP_ERROR` says that it cannot gain
more than the margin; docs/decisions/0007 has the simulated chance of dropping a good one over all looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynotune.schema.study import Candidate, Fate, FateKind
from dynotune.search import words
from dynotune.search.bench import BASELINE
from dynotune.search.budget import bound_log
from dynotune.search.fit import Fit, Gain
from dynotune.search.running import Search, alone, estimate_of, fate_of_failure

DROP_ERROR = 0.05
BLOCKS = 1
# One that is this surely better than the baseline, and the only value left of its knob, needs no more blocks.
CLEAR_ERROR = 0.01
# Few runs leave little of the noise to be seen: no look drops anything on fewer degrees of freedom.
LEAST_DF = 3


def race(search: Search, reserve_s: float) -> None:
    """Race the candidates that have no fate yet, until they are clear or the time but `reserve_s` is used up.

    Raises:
        OutOfTime: before the time set aside was reached; what was raced is kept.
    """
    block = max([1, *(trial.block for trial in search.trials("race"))])
    while True:
        runners = [one for one in search.alive() if not _is_clear(search, one, before=block)]
        if not runners or block > BLOCKS or not _affords_block(search, runners, block, reserve_s):
            return
        search.run_block([BASELINE, *map(alone, runners)], "race", block)
        look(search)
        block += 1


def look(search: Search) -> None:
    """Write down how the candidates stand, and drop those that failed or are hopeless."""
    fit = Fit(search.trials("race"))
    alive = search.alive()
    gains = {one.id: gain for one in alive if (gain := fit.gain(one.id)) is not None}
    search.estimate(estimate_of(id_, "", "race", gain) for id_, gain in gains.items())
    fates = {one.id: fate_of_failure(failed) for one in alive if (failed := search.failure(one.id))}
    left = [one for one in alive if one.id not in fates and one.id in gains]
    if fit.df >= LEAST_DF:
        for one in left:
            fate = _hopeless(search, one, gains[one.id]) or _outrun(search, fit, one, left, gains)
            if fate:
                fates[one.id] = fate
    search.settle(fates)


def optimistic(candidate: Candidate, gain: Gain, error: float = DROP_ERROR) -> float:
    """The most that it may gain, given its runs and what bounds it."""
    return min(gain.upper(error), bound_log(candidate))


def _hopeless(search: Search, candidate: Candidate, gain: Gain) -> Fate | None:
    if optimistic(candidate, gain) > search.margin:
        return None
    seen = words.gain(search.study, gain)
    if gain.ci is not None and gain.ci[1] < 1:
        return Fate("slower", f"It is {seen}.")
    return Fate("no-effect", f"It cannot gain more than {search.study.margin:.0%}: {seen}.")


def _outrun(
    search: Search, fit: Fit, candidate: Candidate, among: Sequence[Candidate], gains: dict[str, Gain]
) -> Fate | None:
    """Another value of the same knob is surely better."""
    rivals = [one for one in among if one.setting.knob == candidate.setting.knob and one is not candidate]
    if not rivals:
        return None
    best = max(rivals, key=lambda one: gains[one.id].log)
    gain = fit.gain(candidate.id, best.id)
    if gain is None or gain.upper(DROP_ERROR) > 0:
        return None
    compared = words.gain(search.study, gain)
    kind: FateKind = "not-needed" if gains[candidate.id].log > search.margin else "no-effect"
    return Fate(kind, f"Another value of the same knob is better: it is {compared}, against {best.setting}.")


def _is_clear(search: Search, candidate: Candidate, before: int) -> bool:
    rivals = [one for one in search.alive() if one.setting.knob == candidate.setting.knob]
    if len(rivals) > 1:
        return False
    gain = Fit(trial for trial in search.trials("race") if trial.block < before).gain(candidate.id)
    return gain is not None and gain.df >= LEAST_DF and gain.lower(CLEAR_ERROR) > search.margin


def _affords_block(search: Search, runners: Sequence[Candidate], block: int, reserve_s: float) -> bool:
    done = {trial.arm for trial in search.trials("race") if trial.block == block}
    left = [one for one in (BASELINE, *map(alone, runners)) if one.key not in done]
    return search.bench.left_s() - reserve_s >= sum(map(search.bench.run_s, left))
