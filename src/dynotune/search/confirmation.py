"""Confirm the settings that a search selected, by fresh pairs of runs.

The pairs influenced no earlier choice. Their maximum number is fixed before any is judged: by a guess of how
long they take, and after the first pair by what that took.
"""

import itertools
import math
import statistics

from msgspec.structs import replace

from dynotune.measure.bench import NoPair, fresh_pairs
from dynotune.measure.comparison import SequentialResult, launched
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
from dynotune.search import words
from dynotune.search.fit import Fit, value_of
from dynotune.search.running import OutOfTime, Search, gave_nothing
from dynotune.search.switch import faster_within, stating_fits

MOST_SEEN_DF = 4
"""Most degrees of freedom taken from earlier runs: with more, a different spread of later runs would hardly
count."""
NOISIER = 1.6
"""Factor on the variance of earlier runs: even if earlier runs were half as noisy as the pairs, errors stay <
5%."""


def confirm(work: Search, settings: list[Setting]) -> Comparison | None:
    """Compare by fresh pairs; None if too few for a verdict fit in the time.

    The pairs influenced no earlier choice, and their verdict follows the rules of `compare`. Earlier runs
    were of the same command, so their spread is used in addition to the spread of the pairs, and fewer pairs
    are enough. Fewer are also enough if blocks within one process proved the settings: then the pairs state
    the speed-up of a launch.
    """
    candidate = arm(settings)
    comparison = work.study.confirmed
    if comparison is None:
        begun = _begun(work, candidate) if work.check(candidate) is None else None
        if begun is None:
            return None
        comparison = begun
    if comparison.verdict is None:
        pairs = _Pairs(work, candidate)
        judged = fresh_pairs(pairs, work.journal.part("confirmed"), precision=PRECISION)
        values = [pair.baseline_s for pair in judged.pairs], [pair.candidate_s for pair in judged.pairs]
        judged = replace(
            judged,
            baseline=_summary(work, judged, BASELINE.key, values[0]),
            candidate=_summary(work, judged, candidate.key, values[1]),
        )
        work.update(confirmed=launched.stated(judged))
    return work.study.confirmed


def _begun(work: Search, candidate: Arm) -> Comparison | None:
    """Return the empty comparison with as many pairs as the time allows; None if the time allows too few."""
    blocks = next(
        (one for one in faster_within(work.study) if arm(one.candidate_settings) == candidate), None
    )
    is_likely = blocks is not None and stating_fits(work)
    if is_likely:
        work.pilot(BASELINE)  # a diagnosis may leave none, and the window is planned from it
    run_s = work.bench.run_s(candidate)
    fit = Fit(work.trials("prune"))
    spread = fit.of_a_pair(*(key for key in (BASELINE.key, candidate.key) if fit.num_blocks(key)))
    seen = spread and Spread(NOISIER * spread.variance, min(spread.df, MOST_SEEN_DF))
    if blocks is not None:
        seen = launched.spread(seen)
    fewest = launched.fewest_pairs(seen)
    num, in_turn = (
        len(work.bench.all_lanes()),
        int(work.bench.left_s() / (work.bench.run_s(BASELINE) + run_s)),
    )
    max_pairs = max(n for n in range(MAX_PAIRS + 1) if lane_order.most_in_a_lane(n, num) <= max(0, in_turn))
    if is_likely:
        max_pairs = max(max_pairs, fewest)  # the first pair shows how long a pair takes
    if max_pairs < fewest:
        return None
    comparison = replace(
        work.comparison(candidate, max_pairs=max_pairs, run_s=run_s, seen=seen), **_planned(work)
    )
    if blocks is not None:
        comparison = replace(comparison, blocks=launched.blocks_answer(blocks))
    work.update(confirmed=comparison)
    work.watcher.say(f"Confirming {words.names(candidate.settings)} on up to {max_pairs} fresh pairs.")
    return comparison


def _planned(work: Search) -> dict[str, object]:
    """Return what the first measured run fixes, perhaps a run of a pair: unit, step, and the window."""
    study = work.study
    return {"unit": study.per, "step": study.step, "run": study.run}


class _Pairs:
    """Makes the pairs of the confirmation, whose runs are trials of the study."""

    def __init__(self, work: Search, candidate: Arm) -> None:
        self._work, self._candidate, self.side = work, candidate, work.bench.side
        self._blocks = itertools.count(1 + max([0, *(trial.block for trial in work.trials("confirm"))]))

    def all_lanes(self) -> list[lanes.Lane]:
        return self._work.bench.all_lanes()

    def most_turns(self) -> float:
        """Return no limit: each run of a pair begins only if it fits into the time."""
        return math.inf

    def see(self, judgement: SequentialResult) -> None:
        self._work.best = judgement.speedup, judgement.ci

    def tell(self, pair: Pair | Voided) -> None:
        """After the first pair, plan as many as its seconds leave time for, if these are more; its runs were
        told. Lanes begin pairs ahead, by the first plan."""
        work, confirmed = self._work, self._work.study.confirmed
        if confirmed is None or len(confirmed.pairs) != 1 or confirmed.voided or len(self.all_lanes()) > 1:
            return
        took_s = sum(trial.wall_s for trial in work.trials("confirm"))
        max_pairs = min(MAX_PAIRS, 1 + int(work.bench.left_s() / took_s)) if took_s > 0 else 0
        if max_pairs > confirmed.max_pairs:
            with work.journal.lock:
                work.journal.part("confirmed").update(max_pairs=max_pairs)
            work.watcher.say(f"A pair takes {took_s:.0f} s: up to {max_pairs} fit.")

    def turn(self, order: ArmName, lane: lanes.Lane) -> Pair | Voided | None:
        """Run both arms in the lane; a run that does not count ends the pair, since a next pair uses the time
        better.

        Raises NoPair: a run failed; or it did not end in the time, and too few pairs are left without it.
        """
        work, block = self._work, next(self._blocks)
        in_turn: list[tuple[ArmName, Arm]] = [("baseline", BASELINE), ("candidate", self._candidate)]
        ordered = in_turn if order == "baseline" else in_turn[::-1]
        try:
            work.in_turn([one for _, one in ordered], "confirm", block, lane, repeats=0)
        except OutOfTime:
            return None
        ran = {trial.arm: trial for trial in work.trials("confirm") if trial.block == block}
        with work.journal.lock:
            work.journal.part("confirmed").update(**_planned(work))
        last = [ran[one.key] for _, one in ordered if one.key in ran][-1]
        if gave_nothing(last):
            raise NoPair(f"A run of it failed: {last.detail or last.ended}.")
        void = Voided(block, last.void)
        if last.void and last.ended == "timeout":
            # The run is void because of its duration, but the duration is the measured value.
            few = f"fewer than {TELLING_PAIRS} pairs are left without it"
            raise NoPair(f"A run did not end in the time left, and {few}.", void=void, enough=TELLING_PAIRS)
        if last.void:
            return void
        baseline, other = ran[BASELINE.key], ran[self._candidate.key]
        return Pair(order, value_of(baseline), value_of(other), baseline.run, other.run, baseline.lane)


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
