"""How much of what there is does the search of `tune` find, and how often is it fooled?

    python benchmarks/search_replay.py

Commands are tables, runs take simulated seconds, the search is the shipped one, within one process and
without it:

- synthetic tables with planted interactions, failing arms and noise; few settings with large gains; trainings
  whose step is made of parts, of which settings spare some;
- tables recorded on real machines (`results/tuning_tables/*.json`: every arm of a full factorial with its
  values), in a quarter of the table's time, a run being drawn from what was recorded;
- tunes of 20 settings that do nothing, and of one that helps among 19;
- the same of 8 that can be switched within one process, of a command whose start leaves no time for fresh
    pairs.

Regret is what the best arm gains beyond the recipe, as the logarithm of a ratio.
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
from pathlib import Path
from typing import NamedTuple

from dynotune.schema.arm import arm
from lab.provenance import RESULTS, describe
from lab.search.problems import (
    Problem,
    best_of,
    false_wins,
    few,
    helping,
    of_parts,
    recorded,
    slow_start,
    synthetic,
)
from lab.search.simulated_bench import SimulatedBench, searched
from lab.search.studies import study_of

SDS = (0.005, 0.02, 0.05)
RUNS = {"synthetic": (18, 30, 60, 120), "few": (12, 18, 30), "parts": (18, 30, 60)}
MAKERS = {"synthetic": synthetic, "few": few, "parts": of_parts}


class Answer(NamedTuple):
    """Of one tune: what it lost, the idle settings in its recipe, and what of the best it reached."""

    regret: float
    num_idle: int
    slower: bool
    share: float
    found: frozenset[str]


def tuned(problem: Problem) -> Answer:
    bench = SimulatedBench(
        problem.table,
        budget_s=problem.budget_s,
        noise=problem.noise,
        seed=problem.seed,
        switch_sd=problem.switch_sd,
    )
    asked = study_of(problem.candidates, budget_s=problem.budget_s, seed=problem.seed)
    study = searched(asked, bench)
    chosen = arm(study.recipe or [])
    gain, best = problem.table.gain(chosen), best_of(problem)
    found = frozenset(map(str, chosen.settings))
    return Answer(best - gain, false_wins(problem, chosen), gain < -1e-9, math.exp(gain - best), found)


def job(named: tuple[str, Problem]) -> tuple[str, Answer]:
    return named[0], tuned(named[1])


def jobs_of(num: int, tunes: int, tables: Path) -> list[tuple[str, Problem]]:
    jobs = [
        (f"{name}, noise {sd:.1%}, {runs} runs", MAKERS[name](seed, sd, runs))
        for name, budgets in RUNS.items()
        for sd in SDS
        for runs in budgets
        for seed in range(num)
    ]
    jobs += [
        (f"recorded: {path.stem}, a quarter of its time", recorded(path, seed, 0.25))
        for path in sorted(tables.glob("*.json"))
        for seed in range(num)
    ]
    jobs += [
        (f"nothing helps, noise {sd:.1%}", helping(0.0, sd, seed)) for sd in SDS for seed in range(tunes)
    ]
    jobs += [
        (f"one gains {gain:.0%}, noise {sd:.1%}", helping(gain, sd, seed))
        for sd in SDS
        for gain in (0.05, 0.1)
        for seed in range(num)
    ]
    jobs += [
        (
            f"slow start, {f'the bundle gains {gain:.0%}' if gain else 'nothing helps'}, noise {sd:.1%}",
            slow_start(gain, sd, seed),
        )
        for sd in SDS
        for gain in (0.0, 0.05, 0.2)
        for seed in range(num if gain else tunes)
    ]
    return jobs


def row_of(answers: list[Answer]) -> dict[str, float]:
    return {
        "num": len(answers),
        "mean_regret": statistics.fmean(one.regret for one in answers),
        "median_regret": statistics.median(one.regret for one in answers),
        "with_idle": statistics.fmean(one.num_idle > 0 for one in answers),
        "slower_than_baseline": statistics.fmean(one.slower for one in answers),
        "reaches_95_percent": statistics.fmean(one.share >= 0.95 for one in answers),
        "any_recipe": statistics.fmean(bool(one.found) for one in answers),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num", type=int, default=100, help="tables of a kind, noise and budget")
    parser.add_argument("--tunes", type=int, default=400, help="tunes of settings that do nothing, a noise")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tables", type=Path, default=RESULTS / "tuning_tables")
    parser.add_argument("--out", type=Path, default=RESULTS / "search_replay.json", help="- to write nothing")
    asked = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    began_s, by_name = time.monotonic(), collections.defaultdict[str, list[Answer]](list)
    jobs = jobs_of(asked.num, asked.tunes, asked.tables)
    with multiprocessing.get_context("fork").Pool(asked.processes) as pool:
        for name, answer in pool.imap_unordered(job, jobs, chunksize=8):
            by_name[name].append(answer)
    rows = {name: row_of(by_name[name]) for name in dict.fromkeys(name for name, _ in jobs)}
    print(
        "| tables | tunes | mean regret | median | with an idle setting | slower | reaches 95% | any recipe |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, row in rows.items():
        print(
            f"| {name} | {row['num']} | {row['mean_regret']:.1%} | {row['median_regret']:.1%} | "
            f"{row['with_idle']:.1%} "
            f"| {row['slower_than_baseline']:.1%} | {row['reaches_95_percent']:.0%} | "
            f"{row['any_recipe']:.1%} |"
        )
    if str(asked.out) != "-":
        took = {"wall_s": round(time.monotonic() - began_s, 1)}
        asked.out.write_text(json.dumps({**describe(), **took, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
