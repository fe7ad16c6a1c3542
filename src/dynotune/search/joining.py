"""Many settings at once: which of them to run together, block by block.

A pair may help though neither half does, two that help may hurt each other, and what helps a little drowns in noise
when it is run alone. So arms are drawn from what is known: each is the best arm of one draw from the posterior of
`model` (Thompson 1933). Uncertain settings are in about half of the arms, hopeless ones in hardly any, and the arms
move outward from the best single settings to the best combination.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from dynotune.schema.study import Candidate, Estimate
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.budget import bound_log
from dynotune.search.fit import Gain
from dynotune.search.model import Model
from dynotune.search.racing import DROP_ERROR
from dynotune.search.running import Search, alone, estimate_of

# Fewer and drift within a block is small, more and fewer runs go to baselines.
ARMS_A_BLOCK = 5
LEAST_ARMS = 2
# Every arm that holds a setting that warms something costs a pilot of its own; so often none is put in.
COLD_SHARE = 0.5
MOST_BLOCKS = 20
# Two settings that were in so many failing arms, and in none that ran, are not put together again.
MOST_FAILURES = 2
# Fates that leave a candidate in the running beside others of its group.
MAY_JOIN = ("no-effect", "slower", "unproved", "not-needed")
# This sure of each setting, whether it belongs in or not, nothing more is to be learned.
SETTLED_ERROR = 0.025
SPREAD = 1.0
_TRIES = 20


def join(search: Search, reserve_s: float, more_pays: Callable[[Search, Model, int], bool]) -> None:
    """Run arms of many settings until it is clear which belong in, or the time but `reserve_s` is used up.

    Args:
        more_pays: whether another block is worth its time, given what the so many blocks so far have shown.

    Raises:
        OutOfTime: before the time set aside was reached; what was run is kept.
    """
    if search.study.joint is None:
        search.update(joint=[])
    block = max([0, *(trial.block for trial in search.trials("join"))])
    while block < MOST_BLOCKS:
        candidates = taking_part(search)
        if len(candidates) < 2:
            return
        model = fitted(search)
        if model.num_runs and (_settled(search, model, candidates) or not more_pays(search, model, block)):
            return
        block += 1
        arms = _affordable(search, _drawn(search, model, candidates, block), reserve_s)
        if not arms:
            return
        known = list(search.study.joint or [])
        search.update(joint=[*known, *(list(one.settings) for one in arms if list(one.settings) not in known)])
        for one in arms:
            if warms(search, one):
                search.pilot(one)
        search.run_block([BASELINE, *(one for one in arms if search.failure(one.key) is None)], "join", block)
        _write_down(search)


def _affordable(search: Search, arms: Sequence[Arm], reserve_s: float) -> list[Arm]:
    """Those at the front that leave the time set aside, with their pilots and the baseline; none where it is one."""
    left_s = search.bench.left_s() - reserve_s - search.bench.run_s(BASELINE)
    found: list[Arm] = []
    for one in arms:
        left_s -= search.bench.run_s(one) * (2 if warms(search, one) and not search.piloted(one.key) else 1)
        if left_s < 0:
            break
        found.append(one)
    return found if len(found) >= LEAST_ARMS else []


def taking_part(search: Search) -> list[Candidate]:
    """Candidates that may be in the whole; those without effect alone too, where another of their group is there."""
    ran = [one for one in search.study.candidates if search.piloted(one.id) and search.failure(one.id) is None]
    fates = search.study.fates
    knobs: dict[str, set[str]] = {}
    for one in ran:
        if one.group and (one.id not in fates or fates[one.id].kind in MAY_JOIN):
            knobs.setdefault(one.group, set()).add(one.setting.knob)
    return [
        one
        for one in ran
        if one.id not in fates or (fates[one.id].kind in MAY_JOIN and len(knobs.get(one.group, ())) > 1)
    ]


def fitted(search: Search) -> Model:
    """Of all runs so far that only screened."""
    ran = [one for one in search.study.candidates if search.piloted(one.id) and search.failure(one.id) is None]
    arms = {one.id: frozenset([one.id]) for one in ran} | {"": frozenset()}
    arms |= {arm(joint).key: frozenset(map(str, joint)) for joint in search.study.joint or []}
    return Model(ran, arms, search.trials("race", "join"))


def _drawn(search: Search, model: Model, candidates: Sequence[Candidate], block: int) -> list[Arm]:
    rng = np.random.default_rng([search.study.seed, block])
    avoided = _avoided(search)
    arms: dict[str, Arm] = {}
    for _ in range(_TRIES):
        among = candidates
        if rng.random() < COLD_SHARE:
            among = [candidate for candidate in candidates if not candidate.warms] or candidates
        one = arm(candidate.setting for candidate in model.best(among, model.draw(rng, SPREAD)))
        ids = {str(setting) for setting in one.settings}
        if one != BASELINE and not any(pair <= ids for pair in avoided) and search.failure(one.key) is None:
            arms.setdefault(one.key, one)
        if len(arms) == ARMS_A_BLOCK:
            break
    return list(arms.values())


def _avoided(search: Search) -> list[set[str]]:
    """Pairs that were in failing arms only."""
    failed: dict[frozenset[str], int] = {}
    ran: set[frozenset[str]] = set()
    for joint in search.study.joint or []:
        pairs = [frozenset(pair) for pair in itertools.combinations(map(str, joint), 2)]
        key = arm(joint).key
        if search.failure(key):
            for pair in pairs:
                failed[pair] = failed.get(pair, 0) + 1
        elif search.piloted(key):
            ran.update(pairs)
    return [set(pair) for pair, num in failed.items() if num >= MOST_FAILURES and pair not in ran]


def warms(search: Search, one: Arm) -> bool:
    ids = {str(setting) for setting in one.settings}
    return any(candidate.warms for candidate in search.study.candidates if candidate.id in ids)


def _settled(search: Search, model: Model, candidates: Sequence[Candidate]) -> bool:
    best = [one.id for one in model.best(candidates, model.mean)]
    for one in candidates:
        gain = added(model, one, best)
        surely_in = one.id in best and gain.lower(SETTLED_ERROR) > 0
        if not surely_in and (one.id in best or gain.upper(SETTLED_ERROR) > search.margin):
            return False
    return True


def added(model: Model, candidate: Candidate, best: Sequence[str]) -> Gain:
    """What a setting adds beside the others of the best arm, in the place of another value of its knob."""
    prefix = f"{candidate.setting.knob}="
    rest = frozenset(id_ for id_ in best if id_ != candidate.id and not id_.startswith(prefix))
    held = frozenset(id_ for id_ in best if id_ != candidate.id)
    if candidate.id in best:
        return model.gain(rest | {candidate.id}, rest)
    return _bounded(candidate, model.gain(rest | {candidate.id}, held))


def _bounded(candidate: Candidate, gain: Gain) -> Gain:
    return gain._replace(log=min(gain.log, bound_log(candidate)))


def _write_down(search: Search) -> None:
    """Each setting, and each pair of a group that ran together, against the baseline."""
    model = fitted(search)
    found: list[Estimate] = []
    by_id = {one.id: one for one in search.study.candidates}
    for feature in model.features:
        one = arm(by_id[id_].setting for id_ in feature.ids)
        gain = model.gain(frozenset(feature.ids))
        if gain.num_blocks:
            found.append(estimate_of(one.key, "", "join", gain))
    search.estimate(found)


def surely_idle(search: Search, candidate: Candidate, gain: Gain) -> bool:
    return _bounded(candidate, gain).upper(DROP_ERROR) <= search.margin


__all__ = ["added", "alone", "fitted", "join", "surely_idle", "taking_part"]
