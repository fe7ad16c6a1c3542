"""What is left, against the baseline, on pairs that played no part in any choice; judged as `compare` judges."""

from __future__ import annotations

import statistics

from msgspec.structs import replace

from dynotune.measure.schedule import LOOKS, orders
from dynotune.measure.stats import Judgement, judge
from dynotune.schema.comparison import ArmName, ArmSummary, Comparison, Pair, Voided
from dynotune.schema.setting import Setting
from dynotune.schema.study import Trial
from dynotune.search import words
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.running import OutOfTime, Search

PAST_DEADLINE = "The budget is used up."


def confirm(search: Search, settings: list[Setting]) -> Comparison | None:
    """Judge fresh pairs; None where the time left holds too few for any verdict.

    How many pairs at most is fixed before the first, and holds for later sittings too.
    """
    candidate = arm(settings)
    comparison = search.study.confirmed
    if comparison is None:
        failed = search.check(candidate)
        max_pairs = affordable_pairs(search, candidate)
        if failed is not None or max_pairs is None:
            return None
        comparison = _begin(search, candidate, max_pairs)
    while comparison.verdict is None:
        judgement = _judge(comparison)
        if judgement.finished:
            comparison = _conclude(search, comparison, judgement)
            break
        try:
            comparison = _pair(search, comparison, candidate)
        except OutOfTime:
            late = replace(judgement, verdict="undecided", finished=True, reason=PAST_DEADLINE)
            comparison = _conclude(search, comparison, late)
        search.update(confirmed=comparison)
    search.update(confirmed=comparison)
    return comparison


def affordable_pairs(search: Search, candidate: Arm) -> int | None:
    pair_s = search.bench.run_s(BASELINE) + search.bench.run_s(candidate)
    return next((pairs for pairs in reversed(LOOKS) if pairs * pair_s <= search.bench.left_s()), None)


def _begin(search: Search, candidate: Arm, max_pairs: int) -> Comparison:
    study = search.study
    comparison = Comparison(
        id=study.id,
        command=study.command,
        settings=list(candidate.settings),
        against=[],
        objective=study.objective,
        margin=study.margin,
        max_pairs=max_pairs,
        unit="step" if study.unit.endswith("step") else "sample",
        caches=study.caches,
        step=study.step,
        warmup_steps=study.warmup_steps,
        window_steps=study.window_steps,
        run_s=search.bench.run_s(candidate),
        seed=study.seed,
        cwd=study.cwd,
        step_on=study.step_on,
        timeout_s=study.timeout_s,
        sandbox=study.sandbox,
        facts=study.facts,
    )
    search.update(confirmed=comparison)
    search.watcher.say(
        f"Confirming {words.names(list(map(str, candidate.settings)))} on up to {max_pairs} fresh pairs."
    )
    return comparison


def _judge(comparison: Comparison) -> Judgement:
    return judge(
        comparison.pairs,
        margin=comparison.margin,
        max_pairs=comparison.max_pairs,
        num_voided=len(comparison.voided),
    )


def _pair(search: Search, comparison: Comparison, candidate: Arm) -> Comparison:
    """One more pair. One whose second run is missing, after an interruption, is left behind and run anew."""
    block = 1 + max([0, *(trial.block for trial in search.trials("confirm"))])
    first = orders(comparison.max_pairs, comparison.seed)[len(comparison.pairs)]
    in_turn: list[tuple[ArmName, Arm]] = [("baseline", BASELINE), ("candidate", candidate)]
    ran: dict[ArmName, Trial] = {}
    for name, one in in_turn if first == "baseline" else reversed(in_turn):
        ran[name] = search.run(one, "confirm", block)
        if search.failure(one.key):
            reason = f"A run of it failed: {ran[name].detail or ran[name].ended}."
            return replace(comparison, verdict="undecided", reason=reason, num_pairs=len(comparison.pairs))
    void = "; ".join(dict.fromkeys(trial.void for trial in ran.values() if trial.void))
    if void:
        return replace(comparison, voided=[*comparison.voided, Voided(block, void)])
    pair = Pair(
        first, _value(ran["baseline"]), _value(ran["candidate"]), ran["baseline"].run, ran["candidate"].run
    )  # fmt: skip
    return replace(comparison, pairs=[*comparison.pairs, pair])


def _value(trial: Trial) -> float:
    assert trial.value is not None
    return trial.value


def _conclude(search: Search, comparison: Comparison, judgement: Judgement) -> Comparison:
    keys: dict[ArmName, str] = {"baseline": "", "candidate": arm(comparison.settings).key}
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
    starts = [trial.time_to_first_step_s for trial in search.trials("confirm") if trial.arm == key]
    first_steps = [start for start in starts if start is not None]
    start_s = statistics.median(first_steps) if first_steps else None
    if not values:
        return ArmSummary(time_to_first_step_s=start_s)
    median = statistics.median(values)
    summary = ArmSummary(value=median, time_to_first_step_s=start_s)
    if comparison.objective != "throughput":
        return summary
    if comparison.unit == "step":
        return replace(summary, s_per_step=median)
    return replace(summary, s_per_sample=median, samples_per_s=1 / median)
