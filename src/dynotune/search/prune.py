"""Stage 3: reduce the bundle of all candidates to the settings that it needs, by backward elimination in
fresh runs.

The bundle runs against the baseline, and against itself without each of its settings, in blocks of random
order. One Holm test at 5%, over a number of blocks that is fixed before the first run, decides which settings
stay. If two settings save the same work, the bundle is as fast without either setting. So if the bundle is
faster than the settings that stayed, the dropped settings are added back one at a time, each at its share of
another 5%. If the bundle is not faster than the baseline, the costliest setting is dropped; if the bundle is
still not faster, each setting runs alone.

If there is no time for a block of all these arms, the most promising settings are not left out: they are then
proved only as part of the whole.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from dynotune.schema.arm import BASELINE, Arm, arm
from dynotune.schema.comparison import MIN_PAIRS, Comparison
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.study import PART_ERROR, Candidate, CandidateOutcome, Round, Trial
from dynotune.search import words
from dynotune.search.bench import FIRST_LAUNCH, complete, each_left_out, needed_first, within_cores
from dynotune.search.fit import Fit, Gain, holm
from dynotune.search.parts import exact_arm, parts_of
from dynotune.search.results import KEEPS_OUT, NO_TIME, rounding
from dynotune.search.running import (
    OutOfTime,
    Search,
    alone,
    estimate_of,
    in_predicted_order,
    outcome_of_failure,
)
from dynotune.search.switch import (
    faster_within,
    fastest,
    fresh_fits,
    fresh_s,
    proved_within,
    stating_fits,
    switched,
)

FEWEST_BLOCKS, MOST_BLOCKS = 2, 6
CONFIRMING_PAIRS = 2 * MIN_PAIRS
"""Number of confirmation pairs for which the blocks of a round leave time."""


def prune(work: Search) -> list[Setting]:
    """Return the settings that are worth confirming; empty if there are none."""
    proved = proved_within(work.study)
    if not work.study.rounds and (not fresh_fits(work) or _leaves_nothing_to_prune(work, proved)):
        if proved is not None:
            return _as_launched(work)
        if not _fits_once_measured(work):
            return []
    first = next(iter(work.study.rounds), None)
    if first is None:
        work.pilot(BASELINE)
        whole = _bundle(work, in_predicted_order(work))
        if whole and work.pilot(arm(whole)) is not None:
            whole = _built_anew(work, in_predicted_order(work), work.pilot, beside=True)
        whole = _right(work, whole)
        if not whole:
            return []
        first = _planned(work, whole)
        if first is None:
            # The remaining time is enough for the confirmation only.
            return whole
        work.update(rounds=[first])
        work.watcher.say(
            f"Fresh runs of {words.names(whole)} together, and without each, in {first.num_blocks} blocks."
        )
    if first.kind == "alone":
        return _in_parts(work, _alone(work, first))
    _run(work, first)
    return _in_parts(work, _pruned(work, first))


def _leaves_nothing_to_prune(work: Search, proved: Comparison | None) -> bool:
    """Tell whether a single setting is proved within one process, and only its knob has settings left."""
    if proved is None or len(proved.candidate_settings) != 1:
        return False
    return {one.setting.knob for one in work.alive()} <= {proved.candidate_settings[0].knob}


def _without_rounding(work: Search) -> None:
    """Settle settings that round as unchecked if fresh pairs fit of the others only, which need no check of
    results."""
    exact = [one for one in in_predicted_order(work) if not one.rounds]
    if exact and fresh_s(work, exact) <= work.bench.left_s() < fresh_s(work):
        out = CandidateOutcome("unchecked", f"Its results could not be checked: {NO_TIME}.")
        work.settle({one.id: out for one in work.alive() if one.rounds})


def _fits_once_measured(work: Search) -> bool:
    """Return whether fresh pairs fit; a run is measured if only its guess, twice a first start, says
    otherwise."""
    if work.alive() and fresh_s(work) <= FIRST_LAUNCH * work.bench.left_s():
        work.pilot(BASELINE)
    _without_rounding(work)
    if work.alive() and not fresh_fits(work):
        # A round begins only if the time is enough to finish the round.
        needed_s, run_s = (
            work.study.budget_s - work.bench.left_s() + fresh_s(work),
            work.bench.run_s(BASELINE),
        )
        needed = f"a proof by fresh runs needs a --budget of {needed_s:.0f} s at least"
        work.warn(f"A run takes about {run_s:.0f} s: {needed}.")
    return bool(work.alive()) and fresh_fits(work)


def _as_launched(work: Search) -> list[Setting]:
    """Return the fastest settings proved within one process that leave results right and start; else the
    fastest."""
    proofs, outcomes = faster_within(work.study), dict[str, CandidateOutcome]()
    first = proof = fastest(work.study, proofs)
    while proof is not None:
        settings = proof.candidate_settings
        failed = work.check(arm(settings)) or started(work, arm(settings))
        if failed is None:
            break
        if failed.ended in KEEPS_OUT:
            outcomes |= {
                str(setting): outcome_of_failure(failed) for setting in rounding(work.study, settings)
            }
        proofs.remove(proof)
        proof = fastest(work.study, proofs)
    chosen = [] if proof is None else proof.candidate_settings
    # A setting may leave results right in this arm although a larger one did not.
    work.settle({id_: outcome for id_, outcome in outcomes.items() if id_ not in map(str, chosen)})
    return chosen or ([] if first is None else first.candidate_settings)


def started(work: Search, one: Arm) -> Trial | None:
    """Start the command with the settings once, unless fresh pairs will or there is no time; return a failed
    run."""
    if stating_fits(work) and work.study.confirmed is None and work.study.stage != "confirm":
        return None
    try:
        return work.pilot(one)
    except OutOfTime:
        work.warn(
            f"The command was not started with {one.key} yet: there was no time. dynotune recipe verify does."
        )
        return None


def _in_parts(work: Search, settings: list[Setting]) -> list[Setting]:
    """Measure the settings that do not round beside the others, if the time allows; return all settings."""
    if isinstance(parts_of(work.study, settings), Unknown):
        with suppress(OutOfTime):
            exact = exact_arm(work.study, settings)
            _compared(work, arm(settings), exact, "those that do not round")
            _compared(work, exact, BASELINE, "those that do not round")
    return settings


# The bundle


def _bundle(work: Search, ordered: Sequence[Candidate]) -> list[Setting]:
    """Return the first value of each knob in order, or the value that was fastest in the live run."""
    alone_there = switched(work.study)
    by_knob: dict[str, list[Candidate]] = {}
    for one in ordered:
        by_knob.setdefault(one.setting.knob, []).append(one)

    def gain(one: Candidate) -> float:
        return alone_there[one.key].speedup if one.key in alone_there else 0.0

    best = [max(values, key=gain).setting for values in by_knob.values()]
    return complete(within_cores(best, work.study.facts), ordered)


def _right(work: Search, settings: list[Setting]) -> list[Setting]:
    """Return the settings that leave results right together; the bundle is checked once."""
    if not settings or (failed := work.check(arm(settings))) is None:
        return settings
    if failed.ended not in KEEPS_OUT:
        return []
    return _built_anew(work, [one for one in in_predicted_order(work) if one.setting in settings], work.check)


def _built_anew(
    work: Search, ordered: list[Candidate], failure: Callable[[Arm], Trial | None], *, beside: bool = False
) -> list[Setting]:
    """Add settings one at a time; return the settings that did not fail. `beside`: name the others after a
    failure."""
    kept = list[Setting]()
    for one in needed_first(ordered):
        larger = complete([*kept, one.setting], work.study.candidates)
        if one.setting not in larger or one.setting.knob in {setting.knob for setting in kept}:
            continue
        failed = failure(arm(larger))
        if failed is None:
            kept = larger
            continue
        outcome = outcome_of_failure(failed)
        if beside and kept:
            outcome = replace(outcome, reason=f"{outcome.reason.rstrip('.')} beside {words.names(kept)}.")
        work.settle({one.id: outcome})
    return kept


# What the time affords


def _planned(work: Search, whole: list[Setting]) -> Round | None:
    """Return the first round; None with a single setting, or without time for a run that leaves a setting
    out."""
    ordered = in_predicted_order(work)
    knobs = {setting.knob for setting in whole}
    values = [one.setting for one in ordered if one.setting not in whole and one.setting.knob in knobs]
    # The round leaves the most promising setting out last, since this setting most likely stays.
    tested = whole[::-1] if len(whole) > 1 else []
    num_blocks = MOST_BLOCKS
    while tested or values:
        arms = [BASELINE, *[arm(whole)] * (1 + len(tested) + len(values))]
        num_blocks = _affordable_blocks(work, arms, 2 * FEWEST_BLOCKS)
        if num_blocks >= FEWEST_BLOCKS:
            break
        (values or tested).pop()
    if not tested and not values:
        return None
    without = each_left_out(whole, work.study.candidates)
    return Round(
        kind="prune",
        whole=whole,
        arms={str(one): without[str(one)] for one in tested},
        values={str(one): list(arm([*whole, one]).settings) for one in values},
        first_block=1,
        num_blocks=num_blocks,
    )


def _affordable_blocks(work: Search, arms: Sequence[Arm], num_later: int = 0) -> int:
    """Return how many blocks of these arms leave time for the confirmation and for `num_later` further
    runs."""
    longest_s = max(work.bench.run_s(one) for one in arms)
    pair_s = work.bench.run_s(BASELINE) + longest_s
    left_s = work.bench.left_s() - CONFIRMING_PAIRS * pair_s - num_later * longest_s
    block_s = math.fsum(work.bench.run_s(one) for one in arms)
    if not math.isfinite(left_s):
        return MOST_BLOCKS
    num_lanes = len(work.bench.all_lanes())
    num = max(0, min(MOST_BLOCKS, num_lanes * int(left_s / block_s)))
    return (
        num - num % num_lanes if num > num_lanes else num
    )  # lanes that wait for the last blocks save no time


# Rounds


def _run(work: Search, round_: Round) -> None:
    """Run the remaining blocks of the round; the round ends early if the bundle shows no gain."""
    whole = arm(round_.whole)
    arms = [BASELINE, whole, *map(arm, [*round_.arms.values(), *round_.values.values()])]
    first, last = round_.first_block, round_.first_block + round_.num_blocks
    look = min(last, first + max(FEWEST_BLOCKS, len(work.bench.all_lanes())))
    work.run_blocks(arms, "prune", range(first, look))
    gain = Fit(work.trials("prune")).gain(whole.key)
    if gain is not None and gain.log > work.margin:
        work.run_blocks(arms, "prune", range(look, last))


def _next_block(work: Search) -> int:
    return work.study.rounds[-1].first_block + work.study.rounds[-1].num_blocks


def _compared(work: Search, larger: Arm, smaller: Arm, label: str) -> Gain | None:
    """Return the gain of one arm over another, from more blocks if needed; None without time for these
    blocks."""
    found = Fit(work.trials("prune")).gain(larger.key, smaller.key)
    if found is not None and found.num_blocks >= FEWEST_BLOCKS:
        return found
    checks = [one for one in work.study.rounds if one.kind == "check" and arm(one.whole) == larger]
    known = next((one for one in checks if [arm(rest) for rest in one.arms.values()] == [smaller]), None)
    if known is None:
        num_blocks = min(work.study.rounds[0].num_blocks, _affordable_blocks(work, [larger, smaller]))
        if num_blocks < FEWEST_BLOCKS:
            return None
        known = Round(
            kind="check",
            whole=list(larger.settings),
            arms={label: list(smaller.settings)},
            first_block=_next_block(work),
            num_blocks=num_blocks,
        )
        work.update(rounds=[*work.study.rounds, known])
    work.run_blocks(
        [larger, smaller], "prune", range(known.first_block, known.first_block + known.num_blocks)
    )
    return Fit(work.trials("prune")).gain(larger.key, smaller.key)


def _pruned(work: Search, round_: Round) -> list[Setting]:
    fit = Fit(work.trials("prune"))
    whole = _best_values(round_, fit)
    # By setting, the arm with it and the arm without it; a better value represents its knob.
    ran, changed = arm(round_.whole), {one.knob for one in whole if one not in round_.whole}
    knob_of = {str(setting): setting.knob for setting in round_.whole}
    tests = {
        id_: (arm(whole) if knob_of[id_] in changed else ran, arm(rest)) for id_, rest in round_.arms.items()
    }
    gains = {
        id_: gain for id_, (of, rest) in tests.items() if (gain := fit.gain(of.key, rest.key)) is not None
    }
    worst = min(gains, key=lambda id_: gains[id_].log, default="")
    log_of = {knob_of[id_]: gain.log for id_, gain in gains.items()}
    if worst and gains[worst].df > 0 and gains[worst].upper(PART_ERROR / len(gains)) < 0:
        # Other settings may be slow only together with this one.
        gain = gains[worst]
        size, between = words.size(work.study, gain.speedup), words.interval(work.study, gain.ci)
        reason = f"With it the whole is {size} ({between}, {gain.num_blocks} blocks)."
        work.settle({worst: CandidateOutcome("slower", reason)})
        whole = complete([one for one in whole if one.knob != knob_of[worst]], work.study.candidates)
    wins = _compared(work, arm(whole), BASELINE, "everything") if whole else None
    if wins is not None:
        work.estimate([estimate_of(arm(whole).key, "", "prune", wins)])
    if wins is None or wins.p > PART_ERROR:
        rest = whole if len(whole) > 1 else []
        # Untried values of the bundle's knobs: another value need not be as slow.
        knobs = {setting.knob for setting in round_.whole}
        tried = {*round_.whole, *(setting for settings in round_.values.values() for setting in settings)}
        untried = [one.setting for one in in_predicted_order(work) if one.setting not in tried]
        return _alone(work, _round_alone(work, [*rest, *(one for one in untried if one.knob in knobs)]))
    ps = _corrected(work, gains, tests)
    drops = {knob_of[id_] for id_, p in ps.items() if p > PART_ERROR}
    kept = complete([one for one in whole if one.knob not in drops], work.study.candidates)
    explained = math.fsum(log_of.get(one.knob, 0.0) for one in kept)
    if wins.log - explained <= work.margin:
        return kept
    return _with_those_missed(work, whole, kept, log_of)


def _corrected(work: Search, gains: dict[str, Gain], arms: dict[str, tuple[Arm, Arm]]) -> dict[str, float]:
    """Record the estimates of the first arm over the second; return the p of each, by one Holm test."""
    ps = dict(zip(gains, holm([gain.p for gain in gains.values()]), strict=True))
    work.estimate(
        replace(
            estimate_of(arms[id_][0].key, arms[id_][1].key, "prune", gain),
            p=ps[id_],
            corrected_over=len(gains),
        )
        for id_, gain in gains.items()
    )
    return ps


def _best_values(round_: Round, fit: Fit) -> list[Setting]:
    """Return the bundle, with another value of one knob if the other value was faster."""
    gains = {
        id_: fit.gain(arm(settings).key, arm(round_.whole).key) for id_, settings in round_.values.items()
    }
    better = {id_: gain.log for id_, gain in gains.items() if gain is not None and gain.log > 0}
    return round_.values[max(better, key=lambda id_: better[id_])] if better else round_.whole


def _with_those_missed(
    work: Search, whole: list[Setting], kept: list[Setting], log_of: dict[str, float]
) -> list[Setting]:
    """Return the settings that stayed, and those of the others whose joint loss makes the bundle slower."""
    others = sorted((one for one in whole if one not in kept), key=lambda one: -log_of.get(one.knob, 0.0))
    level = PART_ERROR / max(1, len(others))
    while others:
        missed = _compared(work, arm(whole), arm(kept), "the rest")
        if missed is not None and (missed.p > PART_ERROR or missed.log <= work.margin):
            return kept
        one = others.pop(0)
        larger = complete([*kept, one], work.study.candidates)
        gain = None if missed is None else _compared(work, arm(larger), arm(kept), str(one))
        if gain is None:
            break
        work.estimate(
            [replace(estimate_of(arm(larger).key, arm(kept).key, "prune", gain), corrected_over=len(log_of))]
        )
        if gain.p <= level:
            kept = larger
    # Only all settings together are known to be faster than the baseline.
    return whole


# Each setting alone, if the bundle does not win


def _round_alone(work: Search, whole: Sequence[Setting]) -> Round | None:
    found = next((one for one in work.study.rounds if one.kind == "alone"), None)
    single = [one for one in in_predicted_order(work) if one.setting in whole and not one.needs]
    while found is None and single:
        num_blocks = _affordable_blocks(work, [BASELINE, *map(alone, single)])
        if num_blocks < FEWEST_BLOCKS:
            single.pop()
            continue
        arms = {one.id: [one.setting] for one in single}
        found = Round(kind="alone", arms=arms, first_block=_next_block(work), num_blocks=num_blocks)
        work.watcher.say("Together the settings are not faster than the command, so each is run alone.")
        work.update(rounds=[*work.study.rounds, found])
    return found


def _alone(work: Search, round_: Round | None) -> list[Setting]:
    """Return the settings that are faster by themselves, by one Holm test; if none is proved, the most likely
    one."""
    if round_ is None:
        return []
    blocks = range(round_.first_block, round_.first_block + round_.num_blocks)
    work.run_blocks([BASELINE, *map(arm, round_.arms.values())], "prune", blocks)
    fit = Fit(work.trials("prune"))
    gains = {
        id_: gain
        for id_ in round_.arms
        if (gain := fit.gain(arm(round_.arms[id_]).key)) is not None and gain.df > 0
    }
    ps = _corrected(work, gains, {id_: (arm(round_.arms[id_]), BASELINE) for id_ in gains})
    ordered = sorted((id_ for id_ in ps if gains[id_].log > work.margin), key=lambda id_: -gains[id_].log)
    better = [id_ for id_ in ordered if ps[id_] <= PART_ERROR] or ordered[:1]
    return [setting for id_ in better for setting in round_.arms[id_]]
