"""Every candidate alone, beside the baseline; then the hopeless are dropped, look by look.

Races only screen: what they find is biased by having been picked, so nothing of it enters a proof, and their levels
are chosen for power. Each look drops a setting whose one-sided upper bound at `DROP_ERROR`, in every company that it
may keep, says that it cannot gain more than the margin; docs/decisions/0007 has the simulated chance that a good one
is ever dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dynotune.schema.study import Candidate, CandidateOutcome, Estimate, OutcomeKind
from dynotune.search import words
from dynotune.search.bench import BASELINE, arm
from dynotune.search.budget import bound_log, worth_trying
from dynotune.search.fit import Fit, Gain, counts
from dynotune.search.model import Model
from dynotune.search.needs import has_company, together
from dynotune.search.running import Search, alone, estimate_of, fate_of_failure
from dynotune.search.switching import switched, told

DROP_ERROR = 0.025
# On fewer degrees of freedom the noise is not known well enough for a look to drop anything.
LEAST_DF = 8
TOO_LATE = "The time was needed to prove what others gain."


def race(search: Search, reserve_s: float) -> None:
    """One block of the baseline and every candidate that the time but `reserve_s` affords.

    Raises:
        OutOfTime: what was raced is kept.
    """
    done = {trial.arm for trial in search.trials("race")}
    left_s = search.bench.left_s() - reserve_s
    left_s -= 0.0 if BASELINE.key in done else search.bench.run_s(BASELINE)
    runners = []
    known = told(search.study)
    for one in taking_turns(search):
        if one.needs or one.id in known:
            continue
        if one.id not in done:
            left_s -= search.bench.run_s(alone(one))
            if left_s < 0:
                search.settle({one.id: CandidateOutcome("not-tried", TOO_LATE)})
                continue
        runners.append(alone(one))
    if not runners:
        return
    search.run_block([BASELINE, *runners], "race", 1)
    fit = Fit(search.trials("race"))
    gains = {one.key: gain for one in runners if (gain := fit.gain(one.key)) is not None}
    search.estimate(estimate_of(key, "", "race", gain) for key, gain in gains.items())
    search.settle(failures(search))


def failures(search: Search) -> dict[str, CandidateOutcome]:
    return {one.id: fate_of_failure(failed) for one in search.alive() if (failed := search.failure(one.id))}


def taking_part(search: Search) -> list[Candidate]:
    """Candidates that ran, or mean something beside one that did, and may still be in the recipe."""
    return together([one for one in search.alive() if one.needs or ran(search, one)])


def ran(search: Search, one: Candidate) -> bool:
    """It ran alone, or within one process in turns with the baseline, and gave a measurement."""
    return search.failure(one.id) is None and (search.piloted(one.id) or one.id in told(search.study))


def fitted(search: Search) -> Model:
    """Of all runs so far that only screened; what is out of the race by now was in them too."""
    measured = {trial.arm for trial in search.trials("race", "join") if counts(trial)}
    all_of = search.study.candidates
    known = together([one for one in all_of if one.needs or one.id in measured or ran(search, one)])
    arms = {one.id: frozenset([one.id]) for one in known if not one.needs} | {"": frozenset()}
    arms |= {arm(joint).key: frozenset(map(str, joint)) for joint in search.study.joint_arms or []}
    arms |= switched(known)
    return Model(known, arms, search.trials("race", "join"), list(told(search.study).values()))


def look(search: Search) -> Model:
    """Write down how settings and pairs stand, and drop those that are hopeless; what is known of them all."""
    model = fitted(search)
    by_id = {one.id: one for one in search.study.candidates}
    found: list[Estimate] = []
    for feature in model.features:
        those = [by_id[id_] for id_ in feature.ids]
        if together(those) != those or not model.ran(feature):
            continue
        gain = shown(model, feature.ids, model.gain(frozenset(feature.ids)))
        if gain.num_blocks:
            key = arm(one.setting for one in those).key
            found.append(estimate_of(key, "", "race" if len(those) == 1 else "join", gain))
    for one in search.study.candidates:
        company, gain = by_itself(model, one)
        if company is not None and gain.num_blocks:
            both = arm([one.setting, by_id[company].setting]).key
            found.append(estimate_of(both, company, "join", shown(model, (one.id,), gain)))
    search.estimate(found)
    settle_orphans(search)
    candidates = taking_part(search)
    if clear := [one for one in candidates if is_clear(model, (one.id,))]:
        best = [one.id for one in model.best(candidates, model.mean)]
        fates = {one.id: fate for one in clear if (fate := _hopeless(search, model, one, candidates, best))}
        search.settle(fates)
        for id_, fate in fates.items():
            search.watcher.say(f"Dropped {id_}. {fate.reason}")
    return model


def is_clear(model: Model, ids: Sequence[str]) -> bool:
    """Whether the noise of what is known of these settings is known, too."""
    return model.df >= LEAST_DF or all(map(model.is_told, ids))


def shown(model: Model, ids: Sequence[str], gain: Gain) -> Gain:
    """As it is told: before the runs themselves say what their noise is, without an interval."""
    return gain if is_clear(model, ids) else gain._replace(df=0)


def by_itself(model: Model, one: Candidate) -> tuple[str | None, Gain]:
    """What it gains over the baseline; of one that needs another, the id of that which is known best, and over that."""
    if not one.needs:
        return None, model.gain(frozenset([one.id]))
    gains = {id_: model.gain(frozenset([one.id, id_]), frozenset([id_])) for id_ in one.needs}
    best = max(gains, key=lambda id_: (gains[id_].num_blocks, -gains[id_].se))
    return best, gains[best]


def settle_orphans(search: Search) -> None:
    """Give a fate to those of which all that they need has one."""
    alive = {one.id for one in search.alive()}
    fates: dict[str, CandidateOutcome] = {}
    for one in search.alive():
        if not has_company(one, alive):
            kind: OutcomeKind = "unproved" if was_in_a_run(search, one) else "not-tried"
            fates[one.id] = CandidateOutcome(
                kind, f"It means something only beside {words.either(one.needs)}, out of the race."
            )
    search.settle(fates)


def was_in_a_run(search: Search, one: Candidate) -> bool:
    return any(one.setting in joint and search.piloted(arm(joint).key) for joint in search.study.joint_arms or [])


def added(model: Model, candidate: Candidate, best: Sequence[Candidate]) -> Gain:
    """What a setting adds beside the others of the best arm, in the place of another value of its knob."""
    held = together([one for one in best if one.id != candidate.id])
    whole = [*(one for one in best if one.setting.knob != candidate.setting.knob), candidate]
    if not has_company(candidate, [one.id for one in whole]):
        return bounded(candidate, by_itself(model, candidate)[1])
    return bounded(candidate, model.gain(_ids(together(whole)), _ids(held)))


def _ids(those: Iterable[Candidate]) -> frozenset[str]:
    return frozenset(one.id for one in those)


def bounded(candidate: Candidate, gain: Gain) -> Gain:
    """No more than what bounds the candidate."""
    return gain._replace(log=min(gain.log, bound_log(candidate)))


def _hopeless(
    search: Search, model: Model, candidate: Candidate, candidates: Sequence[Candidate], best: Sequence[str]
) -> CandidateOutcome | None:
    if candidate.id in best:
        return None
    most = max(
        min(model.gain(company | {candidate.id}, company).upper(DROP_ERROR), bound_log(candidate))
        for company in _companies(candidate, candidates, best)
    )
    gain = by_itself(model, candidate)[1]
    if most > search.margin:
        return _outrun(search, model, candidate, candidates, best)
    return idle(search, gain)


def idle(search: Search, gain: Gain) -> CandidateOutcome:
    """Of one that cannot gain more than the margin."""
    seen = words.gain(search.study, gain)
    if gain.ci is not None and gain.ci[1] < 1 / (1 + search.study.margin):
        return CandidateOutcome("slower", f"It is {seen}.")
    return CandidateOutcome("no-effect", f"It cannot gain more than {search.study.margin:.0%}: {seen}.")


def _outrun(
    search: Search, model: Model, candidate: Candidate, candidates: Sequence[Candidate], best: Sequence[str]
) -> CandidateOutcome | None:
    """Another value of its knob, which is in the best arm, is surely better."""
    rival = next((one for one in candidates if one.id in best and one.setting.knob == candidate.setting.knob), None)
    # Of a rival that ran once, one stalled run of the baseline makes a better one.
    if rival is None or not is_clear(model, (candidate.id, rival.id)):
        return None
    for company in _companies(candidate, candidates, best):
        if model.gain(company | {candidate.id}, company | {rival.id}).upper(DROP_ERROR) > 0:
            return None
    gain = model.gain(frozenset([candidate.id]), frozenset([rival.id]))
    kind: OutcomeKind = "not-needed" if by_itself(model, candidate)[1].log > search.margin else "no-effect"
    return CandidateOutcome(
        kind, f"Another value of the knob is better: it is {words.gain(search.study, gain)}, than {rival.id}."
    )


def _companies(candidate: Candidate, candidates: Sequence[Candidate], best: Sequence[str]) -> Iterator[frozenset[str]]:
    """Alone, beside the best arm, and beside each other setting of its group: those in which all mean something."""
    knob = candidate.setting.knob
    others = [one for one in candidates if one.setting.knob != knob]
    of_group = [one for one in others if candidate.group and one.group == candidate.group]
    for company in ([], [one for one in others if one.id in best], *([one] for one in of_group)):
        if together([*company, candidate]) == [*company, candidate]:
            yield _ids(company)


def pilots(search: Search, reserve_s: float) -> None:
    """One unmeasured run of each setting that leaves something behind for later runs."""
    for one in taking_turns(search):
        if not one.needs_warm_cache or one.needs or search.piloted(one.id):
            continue
        if search.bench.left_s() - reserve_s < 2 * search.bench.run_s(alone(one)):
            search.settle({one.id: CandidateOutcome("not-tried", TOO_LATE)})
        elif failed := search.pilot(alone(one)):
            search.settle({one.id: fate_of_failure(failed)})


def taking_turns(search: Search) -> list[Candidate]:
    """Those without a fate; those that may gain most first."""
    order = {one.id: at for at, one in enumerate(worth_trying(search.study))}
    return sorted(search.alive(), key=lambda one: order.get(one.id, len(order)))
