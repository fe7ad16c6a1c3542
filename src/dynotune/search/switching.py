"""Settings that can change at any step, in turns within one process: which of them, beside which, and for how long.

What one process shows is known better than by a race's runs, and costs less: no start is paid for, and what differs
between processes is the same on both sides. Those of one group are switched together, too, so that it is known before
the first run whether one still adds anything beside another. It proves nothing: that is for fresh processes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from dynotune.schema.study import Candidate, CandidateOutcome, Estimate, OutcomeKind, Study
from dynotune.search import words
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.budget import LEAST_PAIRS, bound_log, may_help, to_try
from dynotune.search.running import Search, alone

SHARE = 0.1
"""Of the time left, or what a race of the same settings would take, if that is more."""
LEAST_RUNS = 2.0
"""Where there is less time than this for what interacts, its start alone may use it up."""
MOST_TOGETHER = 3
MOST_ARMS = 8
"""A block of each takes some steps; with more arms, each has fewer blocks in the same time."""


def switch(search: Search) -> None:
    """Screen what can be, once in a study; what is hopeless alone, and interacts with nothing, has its fate then."""
    quick = [one for one in search.alive() if one.in_process]
    if not quick or search.trials("race"):
        return
    if not told(search.study) and (left_s := _affordable_s(search, quick)) > 0:
        search.watcher.running(f"{len(quick)} settings in turns within one process")
        search.estimate(search.bench.screen(_arms(quick), left_s))
        if known := told(search.study):
            search.watcher.say(_in_words(search.study, max(known.values(), key=lambda one: one.speedup)))
    # What an attempt that ended in between left open is decided by the next.
    found = told(search.study)
    apart = [one for one in quick if not one.group and one.id in found]
    search.settle({one.id: fate for one in apart if (fate := _hopeless(search, found[one.id])) is not None})


def told(study: Study) -> dict[str, Estimate]:
    """What screening said, by the key of each arm."""
    return {one.arm: one for one in study.estimates if one.phase == "screen" and not one.against}


def switched(candidates: Sequence[Candidate]) -> Mapping[str, frozenset[str]]:
    """Ids of the settings of every arm that may have been screened, by its key."""
    quick = [one for one in candidates if one.in_process]
    arms = {alone(one).key: frozenset([one.id]) for one in quick}
    return arms | {key: frozenset(one.id for one in those) for key, those in _together(quick)}


def _arms(quick: Sequence[Candidate]) -> list[Arm]:
    """Each alone; then those of one group together, those first that may gain most: of two values of a knob one."""
    together = sorted(_together(quick), key=lambda found: -math.fsum(map(bound_log, found[1])))
    several = [arm(one.setting for one in those) for _, those in together]
    return [*map(alone, quick), *several[: max(0, MOST_ARMS - len(quick))]]


def _together(quick: Sequence[Candidate]) -> Iterator[tuple[str, list[Candidate]]]:
    """Pairs and more of one group, with the key of each."""
    for name in dict.fromkeys(one.group for one in quick if one.group):
        members = [one for one in quick if one.group == name]
        for num in range(2, MOST_TOGETHER + 1):
            for those in itertools.combinations(members, num):
                if len({one.setting.knob for one in those}) == num:
                    yield arm(one.setting for one in those).key, list(those)


def _affordable_s(search: Search, quick: Sequence[Candidate]) -> float:
    """Seconds for all of it, 0 where it is not worth its time.

    What interacts is switched in the place of its race: then it may take as long, where a proof still fits. One
    setting alone is proved at once, by a confirmation, which asks the same with more certainty.
    """
    run_s, left_s = search.bench.run_s(BASELINE), search.bench.left_s()
    grouped = [one for one in quick if one.group]
    if not grouped:
        return SHARE * left_s
    proof_s = run_s * (2 * LEAST_PAIRS + to_try(search.study).num_checks)
    most_s = max(SHARE * left_s, min(run_s * (1 + len(grouped)), left_s - proof_s))
    return most_s if len(search.alive()) > 1 and most_s >= LEAST_RUNS * run_s else 0.0


def _in_words(study: Study, best: Estimate) -> str:
    if best.speedup <= 1 + study.margin:
        return "In turns within one process, nothing was faster by more than the margin."
    return f"In turns within one process, {best.arm} was best: {words.size(study, best.speedup)}, to be proved."


def _hopeless(search: Search, estimate: Estimate) -> CandidateOutcome | None:
    margin = search.study.margin
    if estimate.ci is None or may_help(search.study, estimate):
        return None
    seen = f"{words.size(search.study, estimate.speedup)} ({words.interval(search.study, estimate.ci)})"
    kind: OutcomeKind = "slower" if estimate.ci[1] < 1 / (1 + margin) else "no-effect"
    return CandidateOutcome(kind, f"Switched on and off within one process, it is {seen}.")
