"""Settings of one group are tried together, from the best single ones outward.

A pair may help though neither half does, and two that help may hurt each other; neither shows in single runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from dynotune.schema.study import Candidate, Estimate
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.fit import Fit, Gain
from dynotune.search.racing import DROP_ERROR, LEAST_DF
from dynotune.search.running import Search, alone, estimate_of

BLOCKS = 3
# Runs that one joint arm costs: its pilot, a block, and a second one for the better half.
RUNS_AN_ARM = 2.5
MOST_ARMS = 12
# Fates that leave a candidate in the running for a place in a pair.
_MAY_JOIN = ("no-effect", "slower", "unproved", "not-needed")


def join(search: Search, reserve_s: float) -> None:
    """Race what of each group can be afforded, until it is decided or the time but `reserve_s` is used up.

    Raises:
        OutOfTime: before the time set aside was reached; what was raced is kept.
    """
    if search.study.joint is None:
        search.update(joint=[list(one.settings) for one in _affordable(search, pairs(search), reserve_s)])
    for one in joint_arms(search):
        search.pilot(one)
    block = max([0, *(trial.block for trial in search.trials("join"))])
    while True:
        fit = Fit(search.trials("race", "join"))
        _write_down(search, fit)
        runners = _unsettled(search, fit)
        if not runners:
            further = _affordable(search, _outward(search, fit), reserve_s)
            if not further:
                return
            search.update(joint=[*(search.study.joint or []), *(list(one.settings) for one in further)])
            for one in further:
                search.pilot(one)
            continue
        arms = [BASELINE, *runners, *_references(search, fit, runners)]
        if search.bench.left_s() - reserve_s < sum(map(search.bench.run_s, arms)):
            return
        block += 1
        search.run_block(arms, "join", block)


def joint_arms(search: Search) -> list[Arm]:
    return [arm(settings) for settings in search.study.joint or []]


def members(search: Search) -> dict[str, list[Candidate]]:
    """Of each group with two knobs or more: its candidates that ran, the best ones first."""
    fit = Fit(search.trials("race"))
    groups: dict[str, list[Candidate]] = {}
    for one in search.study.candidates:
        fate = search.study.fates.get(one.id)
        may = fate is None or fate.kind in _MAY_JOIN
        if one.group and may and search.piloted(one.id) and search.failure(one.id) is None:
            groups.setdefault(one.group, []).append(one)
    return {
        name: sorted(those, key=lambda one: -_log(fit.gain(one.id)))
        for name, those in groups.items()
        if len({one.setting.knob for one in those}) > 1
    }


def pairs(search: Search) -> list[Arm]:
    """Of two knobs of one group each; those first whose halves did best alone."""
    fit = Fit(search.trials("race"))
    scored = [
        (_log(fit.gain(one.id)) + _log(fit.gain(other.id)), alone(one) | alone(other))
        for those in members(search).values()
        for one, other in itertools.combinations(those, 2)
        if one.setting.knob != other.setting.knob
    ]
    return [one for _, one in sorted(scored, key=lambda pair: -pair[0])]


def best_of(search: Search, fit: Fit, group: str) -> tuple[Arm, Gain] | None:
    """The arm of the group that did best, single or joint; a joint one only if it adds to each of its parts."""
    candidates = [alone(one) for one in search.study.candidates if one.group == group]
    inside = {one.key for one in candidates}
    joint = [one for one in joint_arms(search) if all(str(setting) in inside for setting in one.settings)]
    best: tuple[Arm, Gain] | None = None
    for one in sorted([*candidates, *joint], key=lambda one: len(one.settings)):
        gain = fit.gain(one.key)
        if gain is None or search.failure(one.key) is not None:
            continue
        # A larger arm must add something, lest every pair of a good one and an idle one be taken.
        add = search.margin if best is not None and len(one.settings) > len(best[0].settings) else 0.0
        if best is None or gain.log > best[1].log + add:
            best = one, gain
    return best


def _unsettled(search: Search, fit: Fit) -> list[Arm]:
    return [
        one
        for one in joint_arms(search)
        if fit.num_blocks(one.key) < BLOCKS and search.failure(one.key) is None and not _hopeless(search, fit, one)
    ]


def _hopeless(search: Search, fit: Fit, one: Arm) -> bool:
    gain = fit.gain(one.key)
    if gain is None or fit.df < LEAST_DF:
        return False
    if gain.upper(DROP_ERROR) < search.margin:
        return True
    parts = [part for part in _parts(search, one) if (against := fit.gain(part.key)) is not None and against.log > 0]
    added = [found for part in parts if (found := fit.gain(one.key, part.key)) is not None]
    return any(found.upper(DROP_ERROR) < 0 for found in added)


def _parts(search: Search, one: Arm) -> Iterator[Arm]:
    """The single settings of an arm, and the joint arms that it holds."""
    for setting in one.settings:
        yield arm([setting])
    for other in joint_arms(search):
        if other != one and set(other.settings) < set(one.settings):
            yield other


def _references(search: Search, fit: Fit, runners: list[Arm]) -> list[Arm]:
    """Beside them runs the best single one of each: what a joint arm has to beat."""
    found: dict[str, Arm] = {}
    for one in runners:
        singles = [arm([setting]) for setting in one.settings]
        best = max(singles, key=lambda single: _log(fit.gain(single.key)))
        if _log(fit.gain(best.key)) > search.margin:
            found[best.key] = best
    return [one for key, one in found.items() if all(runner.key != key for runner in runners)]


def _outward(search: Search, fit: Fit) -> list[Arm]:
    """The best joint arm of each group, with each other knob's best value that seems to help."""
    tried = {one.key for one in joint_arms(search)}
    further = []
    for group, those in members(search).items():
        best = best_of(search, fit, group)
        if best is None or len(best[0].settings) < 2 or best[1].log <= search.margin:
            continue
        knobs = {setting.knob for setting in best[0].settings}
        for one in those:
            if one.setting.knob not in knobs and _log(fit.gain(one.id)) > 0:
                knobs.add(one.setting.knob)
                further.append(best[0] | alone(one))
    return [one for one in further if one.key not in tried]


def _affordable(search: Search, arms: list[Arm], reserve_s: float) -> list[Arm]:
    run_s = search.bench.run_s(BASELINE)
    # The baseline and what the arms have to beat run in the same blocks.
    spare_s = search.bench.left_s() - reserve_s - 4 * run_s
    num = min(int(spare_s / (RUNS_AN_ARM * run_s)), MOST_ARMS) if run_s > 0 else MOST_ARMS
    return arms[: max(0, num)]


def _write_down(search: Search, fit: Fit) -> None:
    found: list[Estimate] = []
    for one in joint_arms(search):
        if (gain := fit.gain(one.key)) is not None:
            found.append(estimate_of(one.key, "", "join", gain))
    search.estimate(found)


def _log(gain: Gain | None) -> float:
    return gain.log if gain is not None else 0.0
