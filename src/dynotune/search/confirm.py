"""What is left, against the baseline, on pairs that played no part in any choice; judged as `compare` judges.

How runs spread is known from more than these pairs: all earlier ones were of the same command. So it counts beside the
pairs' own, and fewer pairs are enough. It is a little too small: an ablation keeps more where its runs spread less.

Where the time left holds no such pairs, the blocks of the ablation answer: the baseline ran in them, and what was to be
left out in turn was fixed before the first. Which arm is left they decided themselves, so each arm of theirs has its
share of the level.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from msgspec.structs import replace

from dynotune.measure.comparison import SequentialResult as Judgement
from dynotune.measure.comparison import arm_of_void, judge, orders
from dynotune.schema.comparison import LOOKS, ArmName, ArmSummary, Comparison, Pair, Spread, Voided
from dynotune.schema.setting import Setting
from dynotune.schema.study import Trial
from dynotune.search import layout, words
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.fit import Fit, counts, value_of
from dynotune.search.running import OutOfTime, Search

# Pairs, from which on there is time to learn whether one arm alone is disturbed.
TELLS_ARM_FROM = 8


def confirm(search: Search, settings: list[Setting]) -> Comparison | None:
    """Judge fresh pairs; None where the time left holds too few for any verdict.

    How many pairs at most is fixed before the first, and holds for later attempts too.
    """
    candidate = arm(settings)
    comparison = search.study.confirmed
    if comparison is None:
        failed = search.check(candidate)
        if failed is not None:
            return None
        max_pairs = affordable_pairs(search, candidate)
        if (max_pairs or 0) < LOOKS[0]:
            search.bench.release()
            max_pairs = affordable_pairs(search, candidate)
        if max_pairs is None:
            return _by_ablation(search, candidate)
        comparison = _begin(search, candidate, max_pairs)
    while comparison.verdict is None:
        judgement = _judge(comparison)
        if judgement.finished:
            comparison = _conclude(search, comparison, judgement)
            break
        try:
            comparison = _as_planned(search, _pair(search, comparison, candidate))
        except OutOfTime:
            comparison = _conclude(search, comparison, _judge(comparison, ended=True))
        search.update(confirmed=comparison)
    search.update(confirmed=comparison)
    return comparison


def affordable_pairs(search: Search, candidate: Arm) -> int | None:
    pair_s = search.bench.run_s(BASELINE) + search.bench.run_s(candidate)
    seen = _seen(search, candidate)
    return layout.num_pairs(int(search.bench.left_s() / pair_s), seen.df if seen else 0) or None


def _seen(search: Search, candidate: Arm) -> Spread | None:
    """How pairs of earlier runs spread; None where too few ran."""
    fit = Fit(search.trials("race", "join", "ablate"))
    found = fit.of_a_pair(*(key for key in (BASELINE.key, candidate.key) if fit.num_blocks(key)))
    return None if found is None else replace(found, df=min(found.df, layout.MOST_SEEN_DF))


def _by_ablation(search: Search, candidate: Arm) -> Comparison | None:
    """What its blocks say of an arm that ran in them; None unless that is better than the baseline."""
    trials = search.trials("ablate")
    arms = {trial.arm for trial in trials} - {BASELINE.key}
    gain = Fit(trials).gain(candidate.key) if candidate.key in arms else None
    if gain is None or gain.p > (level := layout.of_one_arm(len(arms))):
        return None
    pairs = _pairs_of_blocks(trials, candidate)
    if len(pairs) < layout.LEAST_BLOCKS:
        return None
    search.watcher.say("No fresh pairs fit into the time left; the blocks that showed what each adds stand for them.")
    ci = math.exp(gain.lower(level)), math.exp(gain.upper(level))
    judgement = Judgement(verdict="faster", finished=True, speedup=gain.speedup, ci=ci, num_pairs=len(pairs))
    comparison = replace(_comparison(search, candidate, len(pairs)), pairs=pairs)
    comparison = _conclude(search, comparison, judgement)
    search.update(confirmed=comparison)
    return comparison


def _pairs_of_blocks(trials: Sequence[Trial], candidate: Arm) -> list[Pair]:
    """The baseline and the arm of each block in which both were measured."""
    pairs = []
    for block in dict.fromkeys(trial.block for trial in trials):
        ran = {trial.arm: trial for trial in trials if trial.block == block and counts(trial)}
        baseline, other = ran.get(BASELINE.key), ran.get(candidate.key)
        if baseline is not None and other is not None:
            first: ArmName = "baseline" if trials.index(baseline) < trials.index(other) else "candidate"
            pairs.append(_pair_of(first, baseline, other))
    return pairs


def _begin(search: Search, candidate: Arm, max_pairs: int) -> Comparison:
    comparison = replace(_comparison(search, candidate, max_pairs), seen=_seen(search, candidate))
    search.update(confirmed=comparison)
    search.watcher.say(
        f"Confirming {words.names(list(map(str, candidate.settings)))} on up to {max_pairs} fresh pairs."
    )
    return comparison


def _comparison(search: Search, candidate: Arm, max_pairs: int) -> Comparison:
    study = search.study
    comparison = Comparison(
        id=study.id,
        run=study.run,
        candidate_settings=list(candidate.settings),
        margin=study.margin,
        max_pairs=max_pairs,
        run_s=search.bench.run_s(candidate),
        facts=study.facts,
    )
    return _as_planned(search, comparison)


def _as_planned(search: Search, comparison: Comparison) -> Comparison:
    """With what all runs have in common. The first one that is measured fixes it, and that may be one of the pairs'."""
    study = search.study
    return replace(
        comparison,
        unit="step" if study.unit.endswith("step") else "sample",
        step=study.step,
        run=study.run,
    )


def _judge(comparison: Comparison, *, ended: bool = False) -> Judgement:
    return judge(
        comparison.pairs,
        seen=comparison.seen,
        margin=comparison.margin,
        max_pairs=comparison.max_pairs,
        num_voided=len(comparison.voided),
        void_arm=arm_of_void(comparison.voided),
        ended=ended,
    )


def _pair(search: Search, comparison: Comparison, candidate: Arm) -> Comparison:
    """One more pair. One whose second run is missing, after an interruption, is left behind and run anew."""
    block = 1 + max([0, *(trial.block for trial in search.trials("confirm"))])
    first = orders(comparison.max_pairs, comparison.run.seed or 0)[len(comparison.pairs)]
    in_turn: list[tuple[ArmName, Arm]] = [("baseline", BASELINE), ("candidate", candidate)]
    ran: dict[ArmName, Trial] = {}
    for name, one in in_turn if first == "baseline" else reversed(in_turn):
        ran[name] = search.run(one, "confirm", block)
        if reason := _ends_all(search, ran[name], len(comparison.pairs)):
            return replace(comparison, verdict="undecided", reason=reason, num_pairs=len(comparison.pairs))
        if ran[name].void and comparison.max_pairs < TELLS_ARM_FROM:
            # The pair counts for nothing whatever the other run says: its time is better spent on the next pair.
            break
    void = "; ".join(dict.fromkeys(trial.void for trial in ran.values() if trial.void))
    if void:
        # Of a run that was spared it is not known, and one that the deadline cut was not disturbed.
        is_known = len(ran) == len(in_turn) and all(trial.ended == "measured" for trial in ran.values())
        arms = [name for name, trial in ran.items() if trial.void] if is_known else []
        return replace(comparison, voided=[*comparison.voided, Voided(block, void, arms=arms)])
    return replace(comparison, pairs=[*comparison.pairs, _pair_of(first, ran["baseline"], ran["candidate"])])


def _ends_all(search: Search, trial: Trial, num_pairs: int) -> str:
    """Why no pair is to follow this run; else empty."""
    if search.failure(trial.arm):
        return f"A run of it failed: {trial.detail or trial.ended}."
    # How long it took is why it is void, and that is what is measured: so few pairs must not do without it.
    if trial.void and trial.ended == "timeout" and num_pairs < LOOKS[0]:
        return f"A run did not end in the time left, and fewer than {LOOKS[0]} pairs cannot do without it."
    return ""


def _pair_of(first: ArmName, baseline: Trial, candidate: Trial) -> Pair:
    return Pair(first, value_of(baseline), value_of(candidate), baseline.run, candidate.run)


def _conclude(search: Search, comparison: Comparison, judgement: Judgement) -> Comparison:
    keys: dict[ArmName, str] = {"baseline": "", "candidate": arm(comparison.candidate_settings).key}
    summaries = {name: _summary(search, comparison, name, key) for name, key in keys.items()}
    return replace(
        comparison,
        verdict=judgement.verdict,
        speedup=judgement.speedup,
        ci=judgement.ci,
        num_pairs=judgement.num_pairs,
        reason=judgement.reason,
        num_pairs_to_settle=judgement.num_pairs_to_settle,
        baseline=summaries["baseline"],
        candidate=summaries["candidate"],
    )


def _summary(search: Search, comparison: Comparison, name: ArmName, key: str) -> ArmSummary:
    values = [pair.baseline_s if name == "baseline" else pair.candidate_s for pair in comparison.pairs]
    runs = {pair.baseline_run if name == "baseline" else pair.candidate_run for pair in comparison.pairs}
    timed = [trial.window_steps or 0 for trial in search.study.trials if trial.run in runs]
    most = max(timed) if max(timed, default=0) > (comparison.run.window_steps or 0) else None
    starts = [trial.time_to_first_step_s for trial in search.trials(search.study.confirming) if trial.arm == key]
    first_steps = [start for start in starts if start is not None]
    start_s = statistics.median(first_steps) if first_steps else None
    if not values:
        return ArmSummary(time_to_first_step_s=start_s)
    median = statistics.median(values)
    summary = ArmSummary(value=median, time_to_first_step_s=start_s, window_steps=most)
    if comparison.run.objective != "throughput":
        return summary
    if comparison.unit == "step":
        return replace(summary, s_per_step=median)
    return replace(summary, s_per_sample=median, samples_per_s=1 / median)
