"""From candidates to a recipe: choose, pilot, screen, race, join, check results, ablate, confirm.

Everything that has been decided stands in the study, so a search that was stopped anywhere goes on from there. Only
what is planned depends on the time left; what is planned for a proof is written down before its first run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, CandidateOutcome, Study
from dynotune.search import words
from dynotune.search.ablation import ablate, provable
from dynotune.search.bench import BASELINE, Bench, arm
from dynotune.search.budget import LEAST_PAIRS, Afforded, afforded, bound_log, to_try, worth_trying
from dynotune.search.choosing import SLACK, chosen, more_pays, whole
from dynotune.search.confirm import confirm
from dynotune.search.fates import conclude
from dynotune.search.fit import counts
from dynotune.search.joining import join
from dynotune.search.needs import complete
from dynotune.search.racing import failures, look, pilots, race, settle_orphans, taking_turns
from dynotune.search.running import OutOfTime, Search, Watcher, alone
from dynotune.search.second_turn import affordable, can_prove, left_out, race_left_out, take_back, take_in
from dynotune.search.switching import switch, told

# Three settings left out in turn in three blocks, some pilots, and four pairs; whether to leave more, the joint race
# decides itself. With less, short tunes find more than they can prove.
JOIN_LEAVES_RUNS = 26
# A pilot and four pairs.
ONE_PROOF_RUNS = 9
# Times a run of the command as written: what takes less is planned for as one of its runs.
COSTLY = 1.5
# Times another's bound: then the other is not worth a race that leaves no time for a proof.
FAR_LESS = 3.0


def search(study: Study, bench: Bench, save: Callable[[Study], None], watcher: Watcher) -> Study:
    """Find the settings of `study.candidates` that are proved to help, before the deadline of `bench`.

    Args:
        save: called after every run and every decision.

    Raises:
        CannotRunHere: the machine, or the command as written, gives no measurements; what was done is saved.
    """
    if study.finished:
        return study
    work = Search(study, bench, save, watcher)
    try:
        _go(work)
    except OutOfTime:
        watcher.say("The time is up.")
    conclude(work)
    return work.study


def _go(work: Search) -> None:
    settings = work.study.selected
    if settings is None:
        work.pilot(BASELINE)
        plan = _plan(work)
        if not plan.num_arms:
            # What was to come after the proofs may wait.
            work.bench.release()
            plan = _plan(work)
        if not work.study.outcomes and len(work.study.trials) == 1:
            work.watcher.say(plan.text)
        _refuse_hopeless(work)
        switch(work)
        _choose(work, plan)
        pilots(work, _reserve_s(work, plan))
        # First runs with cold caches may have taken any time.
        plan = _plan(work)
        _refuse_costly(work, plan)
        _choose(work, plan)
        reserve_s = _reserve_s(work, plan)
        settings = _right(work, _running(work, reserve_s, plan.num_checks))
        work.update(selected=settings)
        if settings:
            work.watcher.say(_best_so_far(work, settings))
    if not settings:
        return
    if work.study.confirmed is None:
        left = ablate(work, settings)
        if not left:
            return
    else:
        left = work.study.confirmed.candidate_settings
    confirm(work, left)


def _best_so_far(work: Search, settings: list[Setting]) -> str:
    hoped = [str(one.setting) for one in chosen(work) if one.is_hoped and one.setting in settings]
    best = [id_ for id_ in map(str, settings) if id_ not in hoped]
    more = "they do" if len(hoped) > 1 else "it does"
    beside = f" Beside {'them' if len(best) > 1 else 'it'}, {words.names(hoped)} may do what {more} not alone."
    return f"Best so far: {words.names(best)}.{beside if hoped else ''}"


def _right(work: Search, settings: list[Setting]) -> list[Setting]:
    """What is worth proving and leaves results right. What makes them wrong has its fate, and others are chosen."""
    while those := provable(work, settings):
        failed = work.check(arm(those))
        # What fails otherwise, ablation takes apart.
        if failed is None or failed.ended != "wrong-results":
            break
        sure = [one.setting for one in chosen(work) if not one.is_hoped and one.setting in those]
        # To find out which of those hoped for it is costs more than they promise.
        if sure and len(sure) < len(those) and work.check(arm(sure)) is None:
            work.warn(f"{arm(those).key} give wrong results together: {words.names(list(map(str, sure)))} do not.")
            return complete(sure, work.study.candidates)
        right: list[Setting] = []
        for setting in those:
            if work.check(arm([setting])) is None and work.check(arm([*right, setting])) is None:
                right.append(setting)
        if alone := failures(work):
            work.settle(alone)
            settings = whole(work)
        else:
            work.warn(f"{arm(those).key} give wrong results together: {words.names(list(map(str, right)))} do not.")
            settings = complete(right, work.study.candidates)
    return settings


def _running(work: Search, reserve_s: float, num_checks: int) -> list[Setting]:
    """The winner, of which all that may be proved starts in a process of its own.

    What was only screened runs there once, though not where that takes the time of the proof: then the proof shows it.
    """
    while True:
        settings = _winner(work, reserve_s, num_checks)
        known, those = told(work.study), provable(work, settings)
        for one in [one for one in work.alive() if one.setting in those and one.id in known]:
            if _has_run(work, one) or not can_prove(work, one, num_checks, piloted=True):
                continue
            if work.pilot(alone(one)) is not None:
                break
        else:
            return settings
        work.settle(failures(work))


def _has_run(work: Search, one: Candidate) -> bool:
    """In a process of its own, alone or with others."""
    joint = {arm(those).key for those in work.study.joint_arms or [] if one.setting in those}
    return work.piloted(one.id) or any(counts(trial) for trial in work.trials("join") if trial.arm in joint)


def _winner(work: Search, reserve_s: float, num_checks: int) -> list[Setting]:
    raced = work.alive()
    is_known = len(raced) == 1 and raced[0].id in told(work.study) and raced[0].setting not in whole(work)
    if len(raced) == 1 and not is_known and not work.trials("race") and not _makes_room(work, raced[0], num_checks):
        # Its confirmation asks the same question with more pairs.
        if work.pilot(alone(raced[0])) is None:
            return [raced[0].setting]
        work.settle(failures(work))
    if work.study.joint_arms is None:
        # What is known needs its proof whole: no run of the race may take a second of it.
        race(work, SLACK * reserve_s if told(work.study) else reserve_s)
        take_in(work)
    run_s = work.bench.run_s(BASELINE)
    join(work, min(reserve_s, (JOIN_LEAVES_RUNS + num_checks) * run_s), more_pays)
    look(work)
    if found := whole(work):
        return found
    # Nothing is sure enough to be proved: what was left for proofs of several is better spent on knowing more.
    while runners := affordable(work, left_out(work), num_checks):
        race_left_out(work, runners)
        look(work)
        if found := whole(work):
            return found
    join(work, min(reserve_s, (ONE_PROOF_RUNS + num_checks) * run_s), more_pays)
    look(work)
    return whole(work) or _straight_to_proof(work, num_checks)


def _makes_room(work: Search, one: Candidate, num_checks: int) -> bool:
    """Whether a race of it may show that there is time for what the plan left out."""
    others = [other for other in left_out(work) if other != one and not other.needs_warm_cache]
    return bool(others and affordable(work, [one], num_checks))


def _straight_to_proof(work: Search, num_checks: int) -> list[Setting]:
    """The first of what never ran: its confirmation asks the same question as a race does, with more pairs."""
    for one in left_out(work):
        is_piloted = can_prove(work, one, num_checks, piloted=True)
        if not is_piloted and (one.needs_warm_cache or not can_prove(work, one, num_checks, piloted=False)):
            break
        take_back(work, [one])
        if not is_piloted or work.pilot(alone(one)) is None:
            return [one.setting]
        work.settle(failures(work))
    return []


def _plan(work: Search) -> Afforded:
    """The same at every attempt: of the time left and the time spent since the pilots."""
    single = {one.id for one in work.study.candidates}
    piloted = {trial.arm for trial in work.trials("pilot")} & single
    spent = [trial for trial in work.study.trials[1:] if trial.phase != "pilot" or trial.arm not in single]
    left_s = work.bench.left_s() + math.fsum(trial.wall_s for trial in spent)
    return afforded(left_s, work.bench.run_s(BASELINE), to_try(work.study, piloted))


def _reserve_s(work: Search, plan: Afforded) -> float:
    """For the proofs."""
    return (plan.num_checks + 2 * plan.num_pairs + plan.num_ablation_runs) * work.bench.run_s(BASELINE)


def _refuse_costly(work: Search, plan: Afforded) -> None:
    """Of what takes long to start, leave out what may gain least, until the time affords to race and to prove the rest.

    Where it affords the proof alone of what may gain far more than all others, that is proved without a race.
    """
    if work.trials("race", "join", "ablate", "confirm"):
        return
    run_s = work.bench.run_s(BASELINE)
    costly = [one for one in work.alive() if work.piloted(one.id) and work.bench.run_s(alone(one)) > COSTLY * run_s]
    costly.sort(key=bound_log, reverse=True)
    while costly:
        proof_s, needed_s = _costs(work, plan, costly)
        if needed_s > work.bench.left_s():
            work.bench.release()
        if needed_s <= work.bench.left_s():
            break
        others = [other for other in work.alive() if other is not costly[0]]
        if proof_s <= work.bench.left_s() and all(_is_far_less(other, costly[0]) for other in others):
            reason = f"The time was needed to prove {costly[0].id}, which may gain far more."
            work.settle({other.id: CandidateOutcome("not-tried", reason) for other in others})
            return
        least = costly.pop()
        takes = f"A run with it takes {work.bench.run_s(alone(least)):.0f} s, and the command {work.study.begun}"
        reason = f"{takes} {run_s:.0f} s: to prove it takes {needed_s:.0f} s, more than there is."
        work.settle({least.id: CandidateOutcome("not-tried", reason)})
    settle_orphans(work)


def _costs(work: Search, plan: Afforded, costly: list[Candidate]) -> tuple[float, float]:
    """Seconds to prove the first of them, and to prove any of them after one block of a race, if there is one."""
    run_s, took_s = work.bench.run_s(BASELINE), {one.id: work.bench.run_s(alone(one)) for one in work.alive()}
    num_pairs = LEAST_PAIRS + plan.num_checks / 2
    race_s = run_s + math.fsum(took_s.values()) if len(took_s) > 1 else 0.0
    longest_s = max(took_s[one.id] for one in costly)
    return num_pairs * (took_s[costly[0].id] + run_s), num_pairs * (longest_s + run_s) + race_s


def _is_far_less(other: Candidate, one: Candidate) -> bool:
    """By what bounds both; what was asked for is worth its race."""
    return not other.by_user and math.isfinite(bound_log(one)) and FAR_LESS * bound_log(other) <= bound_log(one)


def _refuse_hopeless(work: Search) -> None:
    worth = worth_trying(work.study)
    work.settle({one.id: _bounded(work, one) for one in work.alive() if one not in worth})


def _choose(work: Search, plan: Afforded) -> None:
    """Leave out what is not affordable, what may gain least first; what was screened is known without a run."""
    if work.trials("race", "join", "ablate", "confirm"):
        return
    known = told(work.study)
    order = [one for one in taking_turns(work) if not one.needs and one.id not in known]
    reason = f"The budget affords {plan.num_arms} settings, and others may gain more."
    if not plan.num_arms:
        reason = "The budget affords too few runs to try it and prove it."
    work.settle({one.id: CandidateOutcome("not-tried", reason) for one in order[plan.num_arms :]})
    settle_orphans(work)


def _bounded(work: Search, one: Candidate) -> CandidateOutcome:
    by = f" ({one.bound_by})" if one.bound_by else ""
    most = math.expm1(bound_log(one))
    return CandidateOutcome(
        "not-tried", f"It can gain {most:.1%} at most{by}, less than the margin of {work.study.margin:.0%}."
    )
