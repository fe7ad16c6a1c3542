"""What `search_replay.py` compares: the shipped search, and what others do."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from search_problems import WORKERS, Parts, Problem, by_knob
from tests.search.simulated import Silent, SimulatedBench, Table, study_of

from dynotune.measure.comparison.schedule import orders
from dynotune.measure.comparison.stats import judge
from dynotune.schema.comparison import LOOKS, Pair
from dynotune.schema.study import Study, Trial
from dynotune.search.bench import BASELINE, Arm, arm
from dynotune.search.budget import affords_more
from dynotune.search.offering import decided
from dynotune.search.study import search

DIAGNOSIS_RUNS = 3
SEQUEL_SEED = 1_000_000
FEWEST_PAIRS = LOOKS[0]
# Of the logarithm of what one block of screening says; it concerns what can change at any step alone.
SCREEN_SD: float | None = 0.02


class Answer(NamedTuple):
    arm: Arm
    cost_s: float
    stated: float | None = None
    dropped: frozenset[str] = frozenset()


def ours(problem: Problem, budget_s: float, trials: Sequence[Trial] = ()) -> Answer:
    bench = SimulatedBench(
        problem.table, budget_s=budget_s, noise=problem.noise, seed=problem.seed, screen_sd=SCREEN_SD
    )
    asked = study_of(problem.candidates, budget_s=budget_s, seed=problem.seed)
    study = search(replace(asked, trials=list(trials)), bench, lambda study: None, Silent())
    stated = study.confirmed.speedup if study.confirmed is not None and study.recipe else None
    hopeless = ("no-effect", "slower", "not-needed")
    dropped = frozenset(id_ for id_, fate in study.fates.items() if fate.kind in hopeless)
    answer = Answer(arm(study.recipe or []), bench.clock_s, stated, dropped)
    return _gone_on(problem, study, answer, budget_s)


def _gone_on(problem: Problem, study: Study, answer: Answer, budget_s: float) -> Answer:
    """A shorter step may wait for something else: as `tune` does, diagnose what is proved, and go on from there."""
    table = problem.table
    if isinstance(table, Table) or not study.recipe:
        return answer
    left_s = budget_s - answer.cost_s - DIAGNOSIS_RUNS * (table.start_s + table.window_s)
    held = table._replace(held=table.held | answer.arm)
    settled = {*decided(study), *(setting.knob for setting in study.recipe)}
    if isinstance(held, Parts) and held.waits():
        # A finding names more workers.
        settled.discard(WORKERS)
        now = max((held.num_workers.get(str(setting), 0) for setting in held.held.settings), default=0)
        settled.update(id_ for id_, num in held.num_workers.items() if num <= now)
    rest = [one for one in problem.candidates if not {one.id, one.setting.knob} & settled]
    if not rest or not affords_more(replace(study, then=rest), left_s):
        return answer
    # Its runs are others, and so is their noise.
    then = problem._replace(table=held, candidates=rest, seed=problem.seed + SEQUEL_SEED)
    # The diagnosis ran the command as it is then: that is its pilot.
    pilot = Trial(arm="", phase="pilot", block=0, ended="measured", wall_s=table.start_s + table.window_s)
    more = ours(then, left_s, [pilot])
    return answer._replace(arm=answer.arm | more.arm, cost_s=budget_s - left_s + more.cost_s)


def random_search(problem: Problem, budget_s: float, repeats: int = 1, num_pairs: int = 0) -> Answer:
    """Arms drawn from the whole space; each runs `repeats` times."""
    bench = _bench(problem, budget_s, num_pairs)
    draw = np.random.default_rng([7, problem.seed])
    means = {BASELINE: _mean(bench, BASELINE, repeats)}
    values = by_knob(problem.candidates)
    while bench.left_s() > repeats * bench.run_s(BASELINE):
        drawn = [settings[at - 1] for settings in values if (at := int(draw.integers(len(settings) + 1)))]
        one = arm(drawn)
        if one not in means:
            means[one] = _mean(bench, one, repeats)
        elif len(means) >= math.prod(len(settings) + 1 for settings in values):
            break
    return _answer(bench, min(means, key=lambda one: means[one]), num_pairs)


def one_at_a_time(problem: Problem, budget_s: float, num_pairs: int = 0) -> Answer:
    """Knob by knob, the best mean is kept before the next one is tried; as many repeats as the budget affords."""
    bench = _bench(problem, budget_s, num_pairs)
    affordable = int(bench.left_s() / bench.run_s(BASELINE))
    repeats, more = divmod(affordable, len(problem.candidates) + 1)
    # The whole budget is spent: the first arms run once more than the others.
    in_turn = iter([max(1, repeats + (at < more)) for at in range(len(problem.candidates) + 1)])
    best, best_mean = BASELINE, _mean(bench, BASELINE, next(in_turn))
    for settings in by_knob(problem.candidates):
        start = best
        for setting in settings:
            repeats = next(in_turn)
            if bench.left_s() < repeats * bench.run_s(BASELINE):
                return _answer(bench, best, num_pairs)
            one = start | arm([setting])
            mean = _mean(bench, one, repeats)
            if mean < best_mean:
                best, best_mean = one, mean
    return _answer(bench, best, num_pairs)


def _bench(problem: Problem, budget_s: float, num_pairs: int) -> SimulatedBench:
    """With the time for so many pairs set aside."""
    reserve_s = 2 * num_pairs * (problem.table.start_s + problem.table.window_s)
    return SimulatedBench(problem.table, budget_s=budget_s, noise=problem.noise, seed=problem.seed, reserve_s=reserve_s)


def _answer(bench: SimulatedBench, found: Arm, num_pairs: int) -> Answer:
    """What was found; where pairs were set aside, the baseline unless fresh ones show it to be faster."""
    bench.release()
    if not num_pairs or found == BASELINE:
        return Answer(found, bench.clock_s)
    pairs = []
    for first in orders(num_pairs, 0):
        in_turn = (BASELINE, found) if first == "baseline" else (found, BASELINE)
        ran = {one: bench.run(one, "confirm", 1).value for one in in_turn}
        if ran[BASELINE] is None or (value := ran[found]) is None:
            return Answer(BASELINE, bench.clock_s)
        pairs.append(Pair(first, ran[BASELINE], value))
    verdict = judge(pairs, max_pairs=num_pairs, ended=True).verdict
    return Answer(found if verdict == "faster" else BASELINE, bench.clock_s)


METHODS: dict[str, Callable[[Problem, float], Answer]] = {
    "ours": ours,
    "random search": random_search,
    "random search, 3 runs an arm": functools.partial(random_search, repeats=3),
    "one at a time": one_at_a_time,
    "random search, its pick proved": functools.partial(random_search, num_pairs=FEWEST_PAIRS),
    "one at a time, its pick proved": functools.partial(one_at_a_time, num_pairs=FEWEST_PAIRS),
}


def _mean(bench: SimulatedBench, one: Arm, repeats: int) -> float:
    values = []
    for _ in range(repeats):
        trial = bench.run(one, "race", 1)
        if trial.value is None:
            return math.inf
        values.append(trial.value)
    return statistics.fmean(values)
