"""Confirm the settings that a search selected, by fresh pairs of runs.

The pairs influenced no earlier choice. Their maximum number is fixed before the first pair.
"""

import itertools
import statistics

from msgspec.structs import replace

from dynotune.measure.comparison import judge_comparison, launched, orders
from dynotune.measure.live import lane_order, lanes
from dynotune.schema.arm import BASELINE, Arm, arm
from dynotune.schema.comparison import (
    MAX_PAIRS,
    PRECISION,
    TELLING_PAIRS,
    ArmName,
    ArmSummary,
    Comparison,
    Pair,
    Spread,
    Voided,
)
from dynotune.schema.setting import Setting
from dynotune.schema.study import Trial
from dynotune.search import words
from dynotune.search.fit import Fit, value_of
from dynotune.search.running import OutOfTime, Search, gave_nothing
from dynotune.search.switch import faster_within

MOST_SEEN_DF = 4
"""Most degrees of freedom taken from earlier runs: with more, a different spread of later runs would hardly count."""
NOISIER = 1.6
"""Factor on the variance of earlier runs: even if earlier runs were half as noisy as the pairs, errors stay < 5%."""


def confirm(work: Search, settings: list[Setting]) -> Comparison | None:
    """Compare by fresh pairs (their maximum number is fixed first); None if too few for a verdict fit in the time.

    The pairs influenced no earlier choice, and their verdict follows the rules of `compare`. Earlier runs
    were of the same command, so their spread is used in addition to the spread of the pairs, and fewer pairs
    are enough. Fewer are
    also enough if blocks within one process proved the settings: then the pairs state the speed-up of a
        launch.
    """
    candidate = arm(settings)
    comparison = work.study.confirmed
    if comparison is None:
        begun = _begun(work, candidate) if work.check(candidate) is None else None
        if begun is None:
            return None
        comparison = begun
    first = orders(comparison.max_pairs, comparison.run.seed or 0)
    blocks = itertools.count(1 + max([0, *(trial.block for trial in work.trials("confirm"))]))
    in_order = lane_order.InOrder(
        work.bench.side,
        work.bench.all_lanes(),
        lambda lane, pair: _pair(work, first[pair], candidate, lane, next(blocks)),
    )
    with work.bench.side:
        while comparison.verdict is None:
            judgement = judge_comparison(comparison, precision=PRECISION)
            work.best = judgement.speedup, judgement.ci
            try:
                if not judgement.finished:
                    ran = in_order.take(len(comparison.pairs), comparison.max_pairs)
                    comparison = _as_planned(work, _with_pair(comparison, ran or {}))
            except OutOfTime:
                judgement = judge_comparison(comparison, precision=PRECISION, ended=True)
            if judgement.finished:
                pairs = comparison.pairs
                comparison = judgement.conclude(
                    comparison,
                    baseline=_summary(work, comparison, BASELINE.key, [pair.baseline_s for pair in pairs]),
                    candidate=_summary(work, comparison, candidate.key, [pair.candidate_s for pair in pairs]),
                )
            work.update(confirmed=comparison)
    return comparison


def _begun(work: Search, candidate: Arm) -> Comparison | None:
    """Return the empty comparison with as many pairs as the time allows; None if the time allows too few."""
    run_s = work.bench.run_s(candidate)
    fit = Fit(work.trials("prune"))
    spread = fit.of_a_pair(*(key for key in (BASELINE.key, candidate.key) if fit.num_blocks(key)))
    seen = spread and Spread(NOISIER * spread.variance, min(spread.df, MOST_SEEN_DF))
    blocks = next((one for one in faster_within(work.study) if arm(one.candidate_settings) == candidate), None)
    if blocks is not None:
        seen = launched.spread(seen)
    fewest = launched.fewest_pairs(seen)
    num, in_turn = (
        len(work.bench.all_lanes()),
        int(work.bench.left_s() / (work.bench.run_s(BASELINE) + run_s)),
    )
    max_pairs = max(n for n in range(MAX_PAIRS + 1) if lane_order.most_in_a_lane(n, num) <= max(0, in_turn))
    if max_pairs < fewest:
        return None
    comparison = _as_planned(work, work.comparison(candidate, max_pairs=max_pairs, run_s=run_s, seen=seen))
    if blocks is not None:
        comparison = replace(comparison, blocks=launched.blocks_answer(blocks))
    work.update(confirmed=comparison)
    work.watcher.say(f"Confirming {words.names(candidate.settings)} on up to {max_pairs} fresh pairs.")
    return comparison


def _as_planned(work: Search, comparison: Comparison) -> Comparison:
    """Return the comparison with the planned window, which the first measured run fixes, perhaps a run of a pair."""
    study = work.study
    unit = "step" if study.unit.endswith("step") else "sample"
    return replace(comparison, unit=unit, step=study.step, run=study.run)


def _pair(work: Search, first: ArmName, candidate: Arm, lane: lanes.Lane, block: int) -> dict[ArmName, Trial]:
    in_turn: list[tuple[ArmName, Arm]] = [("baseline", BASELINE), ("candidate", candidate)]
    ordered = in_turn if first == "baseline" else in_turn[::-1]
    # A pair counts only if each of its runs counts; the next pair is a better use of the time than a repeated
    # run.
    work.in_turn([one for _, one in ordered], "confirm", block, lane, repeats=0)
    ran = {trial.arm: trial for trial in work.trials("confirm") if trial.block == block}
    return {name: ran[one.key] for name, one in ordered if one.key in ran}


def _with_pair(comparison: Comparison, ran: dict[ArmName, Trial]) -> Comparison:
    """Return the comparison with the pair added, or with the reason, from the pair's last run, why it is missing."""
    (first, *_), trial, num_pairs, reason = ran, list(ran.values())[-1], len(comparison.pairs), ""
    if gave_nothing(trial):
        reason = f"A run of it failed: {trial.detail or trial.ended}."
    elif trial.void and trial.ended == "timeout" and num_pairs < TELLING_PAIRS:
        # The run is void because of its duration, but the duration is the measured value.
        reason = f"A run did not end in the time left, and fewer than {TELLING_PAIRS} pairs are left without it."
    if reason:
        return replace(comparison, verdict="undecided", reason=reason, num_pairs=num_pairs)
    if trial.void:
        return replace(comparison, voided=[*comparison.voided, Voided(trial.block, trial.void)])
    baseline, other = ran["baseline"], ran["candidate"]
    pair = Pair(first, value_of(baseline), value_of(other), baseline.run, other.run, trial.lane)
    return replace(comparison, pairs=[*comparison.pairs, pair])


def _summary(work: Search, comparison: Comparison, key: str, values: list[float]) -> ArmSummary:
    starts_s = [one.time_to_first_step_s for one in work.trials("confirm") if one.arm == key]
    known_s = [start_s for start_s in starts_s if start_s is not None]
    median = statistics.median(values) if values else None
    summary = ArmSummary(value=median, time_to_first_step_s=statistics.median(known_s) if known_s else None)
    if median is None or comparison.run.objective != "throughput":
        return summary
    if comparison.unit == "step":
        return replace(summary, s_per_step=median)
    return replace(summary, s_per_sample=median, samples_per_s=1 / median)
