"""Is the search of `tune` better than random search and one-at-a-time, at equal cost, and how often is it fooled?

    python benchmarks/search_replay.py

Commands are tables, runs take simulated seconds, the search is the shipped one. Five questions:

- regret and false wins on synthetic tables with planted interactions, failing arms and noise, against random search and
  one-at-a-time. Both keep the best mean, as common tools do, and have the very seconds that ours used; once more with
  the last of these seconds spent on four fresh pairs, that must prove what they keep, as ours must;
- the same on trainings whose step is made of parts, which a model that adds up what settings gain does not describe;
- the same on tables recorded on real machines (`results/tuning_tables/*.json`: every arm of a full factorial with its
  values), a run being drawn from what was recorded;
- of tunes of 20 settings that do nothing, how many recipes contain any; and with one that helps among 19, how often it
  is found, and how often others come along;
- where runs are few, and the blocks of the ablation stand for fresh pairs: whether the stated interval holds the truth,
  and how often an idle setting comes along.

A false win is a setting in the answer without which, by the table, the rest is as good or better.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hardware import RESULTS, describe
from search_methods import METHODS, ours
from search_problems import (
    NOTHING,
    RUN_S,
    Problem,
    best_of,
    false_wins,
    few,
    of_parts,
    recorded,
    synthetic,
)
from tests.search.simulated import Noise, Silent, SimulatedBench, Table, candidate, study_of

from dynotune.schema.study import Candidate
from dynotune.search.bench import arm
from dynotune.search.study import search

SDS = (0.005, 0.02, 0.05)
BUDGETS_RUNS = (60, 100, 160, 240)
FEW_RUNS = (15, 30, 60)
PARTS_RUNS = (30, 60, 100)


# One comparison of all methods


def compare(job: tuple[str, Problem]) -> tuple[str, dict[str, dict[str, float]]]:
    name, problem = job
    best = best_of(problem)
    answers = {"ours": ours(problem, problem.budget_s)}
    cost_s = answers["ours"].cost_s
    answers |= {method: METHODS[method](problem, cost_s) for method in METHODS if method != "ours"}
    rows = {}
    for method, answer in answers.items():
        gain = problem.table.gain(answer.arm)
        wins = false_wins(problem, answer.arm)
        rows[method] = {
            "regret": best - gain,
            "any_false": float(wins > 0),
            "num_false": float(wins),
            "slower": float(gain < -NOTHING),
            "reaches_95": float(math.exp(gain) >= 0.95 * math.exp(best)),
            "runs": answer.cost_s / (problem.table.start_s + problem.table.window_s),
        }
    return name, rows


def nothing_helps(job: tuple[float, int]) -> tuple[float, int]:
    """The number of settings in the recipe of one tune of 20 that do nothing."""
    sd, seed = job
    problem = Problem(
        Table(), [candidate(f"idle{at:02d}=1", warms=at % 5 == 0) for at in range(20)], Noise(sd=sd), 100 * RUN_S, seed
    )
    return sd, len(ours(problem, problem.budget_s).arm.settings)


def _idle(num: int) -> list[Candidate]:
    """Settings that do nothing; one in five asks for a pilot of each arm that holds it."""
    return [candidate(f"idle{at:02d}=1", warms=at % 5 == 0) for at in range(num)]


class Found(NamedTuple):
    """Of one tune: was the one that helps found, or called useless; how many others came; the speed-up stated."""

    good: bool
    dropped: bool
    num_others: int
    stated: float | None


def one_helps(job: tuple[float, float, int]) -> tuple[tuple[float, float], Found]:
    """One that helps among 19 that do nothing."""
    sd, gain, seed = job
    candidates = _idle(19)
    candidates.insert(seed % 20, candidate("good=1", warms=False))
    problem = Problem(Table({"good=1": math.log1p(gain)}), candidates, Noise(sd=sd), 100 * RUN_S, seed)
    answer = ours(problem, problem.budget_s)
    found = {str(setting) for setting in answer.arm.settings}
    others = len(found - {"good=1"})
    return (sd, gain), Found("good=1" in found, "good=1" in answer.dropped, others, answer.stated)


SHORT_RUNS = (15, 22, 30)
# What helps, as logarithms of ratios; two that do nothing stand beside them.
SHORT_GAINS = ((0.3,), (0.3, 0.2), (0.06, 0.05))


class Short(NamedTuple):
    """Of one short tune: which runs confirmed its recipe ("" without one), and what is true of that.

    Args:
        idle: it contains a setting that does nothing; `covers`: its interval holds the truth; `over`: by how much the
            stated speed-up is too high, as a logarithm.
    """

    by: str
    idle: bool = False
    covers: bool = False
    over: float = 0.0


def short_tune(job: tuple[float, int, tuple[float, ...], int]) -> tuple[tuple[float, int], Short]:
    sd, num_runs, gains, seed = job
    candidates = [candidate(f"good{at}=1", warms=False) for at in range(len(gains))]
    candidates += [candidate(f"idle{at}=1", warms=False) for at in range(2)]
    table = Table({one.id: gain for one, gain in zip(candidates, gains, strict=False)})
    np.random.default_rng([13, seed]).shuffle(candidates)
    budget_s = num_runs * RUN_S
    bench = SimulatedBench(table, budget_s=budget_s, noise=Noise(sd=sd), seed=seed)
    study = search(study_of(candidates, budget_s=budget_s, seed=seed), bench, lambda study: None, Silent())
    confirmed = study.confirmed
    if not study.recipe or confirmed is None or confirmed.ci is None or confirmed.speedup is None:
        return (sd, num_runs), Short("")
    truth = math.exp(table.gain(arm(study.recipe)))
    idle = any(setting.knob.startswith("idle") for setting in study.recipe)
    covers = confirmed.ci[0] <= truth <= confirmed.ci[1]
    return (sd, num_runs), Short(study.confirming, idle, covers, math.log(confirmed.speedup / truth))


# Tables of results


def summarise(rows: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    found = {}
    for method in METHODS:
        those = [row[method] for row in rows]
        found[method] = {
            "mean_regret": statistics.fmean(row["regret"] for row in those),
            "median_regret": statistics.median(row["regret"] for row in those),
            "any_false_win": statistics.fmean(row["any_false"] for row in those),
            "false_wins": statistics.fmean(row["num_false"] for row in those),
            "slower_than_baseline": statistics.fmean(row["slower"] for row in those),
            "reaches_95_percent": statistics.fmean(row["reaches_95"] for row in those),
            "runs": statistics.fmean(row["runs"] for row in those),
        }
    return found


def print_methods(name: str, num: int, found: dict[str, dict[str, float]]) -> None:
    print(f"\n{name} ({num} tables)")
    print("| method | mean regret | median | any false win | false wins | slower | reaches 95% | runs |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for method, row in found.items():
        print(
            f"| {method} | {row['mean_regret']:.2%} | {row['median_regret']:.2%} | {row['any_false_win']:.1%} "
            f"| {row['false_wins']:.2f} | {row['slower_than_baseline']:.1%} | {row['reaches_95_percent']:.1%} "
            f"| {row['runs']:.0f} |"
        )


def run_tables(pool: multiprocessing.pool.Pool, jobs: list[tuple[str, Problem]]) -> dict[str, object]:
    by_name: dict[str, list[dict[str, dict[str, float]]]] = collections.defaultdict(list)
    for name, rows in pool.imap_unordered(compare, jobs, chunksize=4):
        by_name[name].append(rows)
    result: dict[str, object] = {}
    for name in sorted(by_name):
        found = summarise(by_name[name])
        print_methods(name, len(by_name[name]), found)
        result[name] = {"num": len(by_name[name]), "methods": found}
    return result


def run_nothing(pool: multiprocessing.pool.Pool, num: int) -> list[dict[str, object]]:
    counted: dict[float, list[int]] = collections.defaultdict(list)
    for sd, wins in pool.imap_unordered(nothing_helps, [(sd, seed) for sd in SDS for seed in range(num)], chunksize=8):
        counted[sd].append(wins)
    print(
        "\n20 settings that do nothing\n| sd | tunes | recipe contains any | in 20 tunes |\n| --- | --- | --- | --- |"
    )
    rows: list[dict[str, object]] = []
    for sd, wins in sorted(counted.items()):
        share = statistics.fmean(number > 0 for number in wins)
        print(f"| {sd:.1%} | {len(wins)} | {share:.2%} | {20 * share:.2f} |")
        rows.append({"sd": sd, "num": len(wins), "any": share, "in_20_tunes": 20 * share, "kept": share <= 0.05})
    return rows


def run_power(pool: multiprocessing.pool.Pool, num: int) -> list[dict[str, object]]:
    jobs = [(sd, gain, seed) for sd in SDS for gain in (0.03, 0.05, 0.10) for seed in range(num)]
    counted: dict[tuple[float, float], list[Found]] = collections.defaultdict(list)
    for key, found in pool.imap_unordered(one_helps, jobs, chunksize=8):
        counted[key].append(found)
    print("\nOne that helps among 19 that do nothing")
    print("| sd | gain | tunes | found | called useless | recipe contains another | median stated speed-up |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows: list[dict[str, object]] = []
    for (sd, gain), those in sorted(counted.items()):
        found, dropped = statistics.fmean(one.good for one in those), statistics.fmean(one.dropped for one in those)
        others = statistics.fmean(one.num_others > 0 for one in those)
        stated = [one.stated for one in those if one.stated is not None]
        median = statistics.median(stated) if stated else None
        said = f"{median - 1:+.1%}" if median is not None else ""
        print(f"| {sd:.1%} | {gain:.0%} | {len(those)} | {found:.1%} | {dropped:.1%} | {others:.1%} | {said} |")
        row = {"sd": sd, "gain": gain, "num": len(those), "found": found, "called_useless": dropped}
        rows.append({**row, "any_other": others, "stated_median": median})
    return rows


def run_short(pool: multiprocessing.pool.Pool, num: int) -> list[dict[str, object]]:
    jobs = [
        (sd, runs, gains, seed) for sd in SDS for runs in SHORT_RUNS for gains in SHORT_GAINS for seed in range(num)
    ]
    counted: dict[tuple[float, int], list[Short]] = collections.defaultdict(list)
    for key, found in pool.imap_unordered(short_tune, jobs, chunksize=8):
        counted[key].append(found)
    print("\nFew runs: recipes by what confirmed them")
    print("| sd | runs | tunes | confirmed by | recipes | with an idle one | interval holds | stated too high by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows: list[dict[str, object]] = []
    for (sd, runs), those in sorted(counted.items()):
        for by in ("ablate", "confirm"):
            if not (found := [one for one in those if one.by == by]):
                continue
            idle, covers = (statistics.fmean(getattr(one, name) for one in found) for name in ("idle", "covers"))
            over = statistics.fmean(one.over for one in found)
            shares = f"{idle:.1%} | {covers:.1%} | {over:.1%}"
            print(f"| {sd:.1%} | {runs} | {len(those)} | {by} | {len(found)} | {shares} |")
            row = {"sd": sd, "runs": runs, "num": len(those), "by": by, "recipes": len(found)}
            rows.append({**row, "any_idle": idle, "covers": covers, "over": over})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=100, help="synthetic tables a noise and budget")
    parser.add_argument("--tunes", type=int, default=400, help="tunes of settings that do nothing, a noise")
    parser.add_argument("--power", type=int, default=100, help="tunes a noise and gain")
    parser.add_argument("--seed", type=int, default=0, help="of the first table")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tables", type=Path, default=RESULTS / "tuning_tables")
    parser.add_argument("--out", type=Path, default=RESULTS / "search_replay.json", help="- to write nothing")
    asked = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    began_s = time.monotonic()
    seeds = range(asked.seed, asked.seed + asked.num)
    jobs = [
        (f"synthetic, sd {sd:.1%}, {runs:3d} runs", synthetic(seed, sd, runs))
        for sd in SDS
        for runs in BUDGETS_RUNS
        for seed in seeds
    ]
    jobs += [
        (f"few settings, sd {sd:.1%}, {runs:3d} runs", few(seed, sd, runs))
        for sd in SDS
        for runs in FEW_RUNS
        for seed in seeds
    ]
    jobs += [
        (f"of parts, sd {sd:.1%}, {runs:3d} runs", of_parts(seed, sd, runs))
        for sd in SDS
        for runs in PARTS_RUNS
        for seed in seeds
    ]
    paths = sorted(asked.tables.glob("*.json"))
    replays = [
        (f"{path.stem}, {share:.0%} of the table's time", recorded(path, seed, share))
        for path in paths
        for share in (0.25, 0.5)
        for seed in range(min(asked.num, 100))
    ]
    with multiprocessing.get_context("fork").Pool(asked.processes) as pool:
        result = {
            "synthetic": run_tables(pool, jobs),
            "recorded": run_tables(pool, replays),
            "nothing_helps": run_nothing(pool, asked.tunes),
            "one_helps": run_power(pool, asked.power),
            "short": run_short(pool, asked.power),
        }
    if str(asked.out) != "-":
        took = {"wall_s": round(time.monotonic() - began_s, 1), "seed": asked.seed}
        asked.out.write_text(json.dumps({**describe(), **took, **result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
