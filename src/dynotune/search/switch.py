"""Stage 2: settings that can change at any step, in turns within one live run.

One process tells more in less time than fresh ones: no start is paid for, and what differs between processes is the
same on both sides. It proves nothing for a recipe: fresh pairs do. It drops what surely does nothing, and of settings
that spare the same work all but one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, CandidateOutcome, Estimate, OutcomeKind, Study
from dynotune.search import words
from dynotune.search.bench import Arm, arm
from dynotune.search.running import Search, alone, in_predicted_order

SHARE, SHARE_COMPILING = 0.2, 0.4
"""Of the time left. What an arm compiles lies in the caches of the fresh runs that follow."""
MOST_ARMS = 9
"""A block of each takes some steps: more arms have fewer blocks in the same time."""


def switch(work: Search) -> None:
    """Compare what can be switched, once in a study; settle what surely does nothing there."""
    quick = [one for one in in_predicted_order(work) if one.in_process]
    if not quick:
        return
    if not switched(work.study):
        work.watcher.running(f"{len(quick)} settings in turns within one process")
        share = SHARE_COMPILING if _compiling(quick) else SHARE
        work.estimate(work.bench.switch(_arms(quick), share * work.bench.left_s()))
    if estimates := switched(work.study):
        best = max(estimates.values(), key=lambda one: one.speedup)
        work.best = best.speedup, best.ci
        work.watcher.say(_in_words(work.study, best))
        work.settle(_hopeless(work.study, quick, estimates))


def switched(study: Study) -> dict[str, Estimate]:
    """Return what the live run said of each arm against the baseline, by the arm's key."""
    return {one.arm: one for one in study.estimates if one.phase == "switch"}


def _arms(quick: Sequence[Candidate]) -> list[Arm]:
    """Return the bundle, the bundle without what compiles, each alone, and that smaller bundle without each.

    Every arm that compiles does so anew, so few do.
    """
    bundle = _bundle(quick)
    eager = [one for one in bundle if one not in _compiling(quick)]
    without = [arm(one for one in eager if one != setting) for setting in eager]
    arms = [arm(bundle), arm(eager), *map(alone, quick), *without]
    return [one for one in dict.fromkeys(arms) if one.settings][:MOST_ARMS]


def _compiling(quick: Sequence[Candidate]) -> set[Setting]:
    return {one.setting for one in quick if one.setting.knob == "compile.mode"}


def _bundle(quick: Sequence[Candidate]) -> list[Setting]:
    """Return one value of each knob, the first in order."""
    return list({one.setting.knob: one.setting for one in reversed(quick)}.values())[::-1]


def _hopeless(study: Study, quick: Sequence[Candidate], known: dict[str, Estimate]) -> dict[str, CandidateOutcome]:
    """Return the outcomes of settings that gain nothing alone, nor beside the others that are left."""
    margin, found = math.log1p(study.margin), dict[str, CandidateOutcome]()
    compiling = _compiling(quick)
    rest = [one for one in _bundle(quick) if one not in compiling]
    by_gain = sorted(quick, key=lambda one: known[one.id].speedup if one.id in known else math.inf)
    for one in sorted(by_gain, key=lambda one: one.setting in compiling):
        single = known.get(one.id)
        if single is None or single.ci is None:
            continue
        helps_alone = math.log(single.ci[1]) > margin
        with_it = rest if one.setting in rest else [*rest, one.setting] if one.setting in compiling else None
        if with_it is None:
            # Another value of its knob stands in the bundle.
            if not helps_alone:
                found[one.id] = _outcome(study, single)
            continue
        without_it = [setting for setting in with_it if setting != one.setting]
        if without_it:
            adds_at_most = _difference_at_most(known.get(arm(with_it).key), known.get(arm(without_it).key))
        else:
            adds_at_most = math.log(single.ci[1])
        if adds_at_most is None or adds_at_most > margin:
            continue
        rest = [setting for setting in rest if setting != one.setting]
        beside = f"It helps alone ({_seen(study, single)}), but not beside {_names(without_it)}."
        found[one.id] = CandidateOutcome("not-needed", beside) if helps_alone else _outcome(study, single)
    return found


def _difference_at_most(larger: Estimate | None, smaller: Estimate | None) -> float | None:
    """Return the upper end of the gain of one arm over another, both against the baseline; None if one is unknown."""
    if larger is None or smaller is None or larger.ci is None or smaller.ci is None:
        return None
    half = [math.log(one.ci[1] / one.ci[0]) / 2 for one in (larger, smaller) if one.ci is not None]
    return math.log(larger.speedup / smaller.speedup) + math.hypot(*half)


def _outcome(study: Study, estimate: Estimate) -> CandidateOutcome:
    assert estimate.ci is not None
    kind: OutcomeKind = "slower" if estimate.ci[1] < 1 / (1 + study.margin) else "no-effect"
    return CandidateOutcome(kind, f"Switched on and off within one process, it is {_seen(study, estimate)}.")


def _seen(study: Study, estimate: Estimate) -> str:
    return f"{words.size(study, estimate.speedup)}, {words.interval(study, estimate.ci)}"


def _names(settings: Sequence[Setting]) -> str:
    return words.names(list(map(str, settings)))


def _in_words(study: Study, best: Estimate) -> str:
    if best.speedup <= 1 + study.margin:
        return "Within one process, no setting was faster by more than the margin."
    return f"Within one process, {best.arm} was best: {_seen(study, best)}. Fresh runs have to confirm it."
