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

from dynotune.schema.study import Candidate
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.model import Model
from dynotune.search.racing import added, look, taking_part
from dynotune.search.running import Search

# Fewer and drift within a block is small, more and fewer runs go to baselines.
ARMS_A_BLOCK = 5
LEAST_ARMS = 2
# Every arm that holds a setting that warms something costs a pilot of its own; so often none is put in.
COLD_SHARE = 0.5
MOST_BLOCKS = 20
# Two settings that were in so many failing arms, and in none that ran, are not put together again.
MOST_FAILURES = 2
# This sure of each setting, whether it belongs in or not, nothing more is to be learned.
SETTLED_ERROR = 0.025
_TRIES = 20


def join(search: Search, reserve_s: float, more_pays: Callable[[Search, Model, int], bool]) -> None:
    """Run arms of many settings until it is clear which belong in, or the time but `reserve_s` is used up.

    Args:
        more_pays: whether another block is worth its time, given what the so many blocks so far have shown.

    Raises:
        OutOfTime: before the time set aside was reached; what was run is kept.
    """
    if search.study.joint_arms is None:
        search.update(joint_arms=[])
    block = max([0, *(trial.block for trial in search.trials("join"))])
    while block < MOST_BLOCKS:
        model = look(search)
        candidates = taking_part(search)
        if not candidates:
            return
        if model.num_runs and (_settled(search, model, candidates) or not more_pays(search, model, block)):
            return
        block += 1
        drawn = _drawn(search, model, candidates, block)
        arms = _affordable(search, drawn, reserve_s, min(LEAST_ARMS, len(candidates)))
        if not arms:
            return
        known = list(search.study.joint_arms or [])
        search.update(joint_arms=[*known, *(list(one.settings) for one in arms if list(one.settings) not in known)])
        for one in arms:
            if warms(search, one):
                search.pilot(one)
        search.run_block([BASELINE, *(one for one in arms if search.failure(one.key) is None)], "join", block)


def _affordable(search: Search, arms: Sequence[Arm], reserve_s: float, least: int) -> list[Arm]:
    """Those at the front that leave the time set aside, with their pilots and the baseline; none, or so many."""
    left_s = search.bench.left_s() - reserve_s - search.bench.run_s(BASELINE)
    found: list[Arm] = []
    for one in arms:
        left_s -= search.bench.run_s(one) * (2 if warms(search, one) and not search.piloted(one.key) else 1)
        if left_s < 0:
            break
        found.append(one)
    return found if len(found) >= least else []


def _drawn(search: Search, model: Model, candidates: Sequence[Candidate], block: int) -> list[Arm]:
    rng = np.random.default_rng([search.study.run.seed or 0, block])
    avoided = _avoided(search)
    arms: dict[str, Arm] = {}
    for _ in range(_TRIES):
        among = candidates
        if rng.random() < COLD_SHARE:
            among = [candidate for candidate in candidates if not candidate.needs_warm_cache] or candidates
        one = arm(candidate.setting for candidate in model.best(among, model.draw(rng)))
        ids = {str(setting) for setting in one.settings}
        if one != BASELINE and not any(pair <= ids for pair in avoided) and search.failure(one.key) is None:
            arms.setdefault(one.key, one)
        if len(arms) == ARMS_A_BLOCK:
            break
    # Where most draws are of the baseline and not all is settled, what ran least runs by itself.
    for candidate in sorted(candidates, key=lambda one: _num_runs(search, one)):
        if len(arms) >= LEAST_ARMS:
            break
        beside = [one.setting for one in candidates if one.id in candidate.needs][:1]
        one = arm([candidate.setting, *beside])
        if search.failure(one.key) is None:
            arms.setdefault(one.key, one)
    return list(arms.values())


def _num_runs(search: Search, one: Candidate) -> int:
    return sum(trial.arm == one.id for trial in search.trials("race", "join"))


def _avoided(search: Search) -> list[set[str]]:
    """Pairs that were in failing arms only."""
    failed: dict[frozenset[str], int] = {}
    ran: set[frozenset[str]] = set()
    for joint in search.study.joint_arms or []:
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
    return any(candidate.needs_warm_cache for candidate in search.study.candidates if candidate.id in ids)


def _settled(search: Search, model: Model, candidates: Sequence[Candidate]) -> bool:
    """Of each setting it is clear whether it belongs in."""
    best = model.best(candidates, model.mean)
    for one in candidates:
        gain = added(model, one, best)
        surely_in = one in best and gain.lower(SETTLED_ERROR) > 0
        if not surely_in and (one in best or gain.upper(SETTLED_ERROR) > search.margin):
            return False
    return True
