"""What four mechanisms of a tune are worth, each switched off in turn: numbers behind decisions 0004, 0007 and 0008.

    python benchmarks/search_open.py

- Tunes drawn from the starved trainer's recorded table, with neither sequels nor further blocks of an ablation, with
  sequels, and with both: how often the recipe is within 95% of the table's best.
- The same of trainings whose step is made of parts, 30 runs: what is lost to the best arm.
- Tunes drawn from the other recorded tables, in a quarter and in half of their time, with what can change at any step
  screened within one process (a block of that differs by 2%) and without.
- Where steps are all alike but for noise, how often MSER-5 tells no steady step, and where it cuts, with what is like
  the rest before its cut taken in and without.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
from pathlib import Path
from typing import Any

import search_methods
from hardware import RESULTS, describe
from search_problems import Problem, best_of, of_parts, recorded

from dynotune.measure.live import warmup
from dynotune.search import ablation

TABLE = RESULTS / "tuning_tables" / "starved_cuda.json"
# Of its tune on an H200, as written: a run, and what of it is the start.
RUN_S, START_SHARE = 6.4, 0.52
BUDGETS_S = (187.0, 374.0)
SWITCHES = ("neither", "sequels", "both")
SDS, PARTS_RUNS = (0.005, 0.02), 30
NUM_STEPS = (30, 45, 60, 100)
SCREENED, SHARES, SCREEN_SD = ("vit", "mlp", "gpt"), (0.25, 0.5), 0.02


def _switch(which: str) -> None:
    if which != "both":
        ablation.OPEN_P = -1.0
    if which == "neither":
        search_methods.affords_more = lambda study, left_s: False


def lost(job: tuple[str, Problem]) -> tuple[float, float]:
    """What the answer lacks to the best arm, as a logarithm, and the seconds that it took."""
    which, problem = job
    _switch(which)
    answer = search_methods.ours(problem, problem.budget_s)
    return best_of(problem) - problem.table.gain(answer.arm), answer.cost_s


def of_table(job: tuple[str, int, float, bool]) -> tuple[float, float]:
    """As `lost`, of a table's tune in that share of its time."""
    name, seed, share, is_screened = job
    search_methods.SCREEN_SD = SCREEN_SD if is_screened else None
    problem = recorded(TABLE.with_name(f"{name}_cuda.json"), seed, share)
    answer = search_methods.ours(problem, problem.budget_s)
    return best_of(problem) - problem.table.gain(answer.arm), answer.cost_s


def screens(processes: int, num_tunes: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for name, share, is_screened in itertools.product(SCREENED, SHARES, (False, True)):
            found = pool.map(of_table, [(name, seed, share, is_screened) for seed in range(num_tunes)], chunksize=1)
            row: dict[str, Any] = {"of": name, "with": "screening" if is_screened else "races", "share_of_time": share}
            row |= {"num": len(found), "reached": sum(math.exp(-log) >= 0.95 for log, _ in found)}
            row |= {"mean_share": statistics.fmean(math.exp(-log) for log, _ in found)}
            rows.append({**row, "took_s": statistics.fmean(cost_s for _, cost_s in found)})
    return rows


def starved(seed: int, budget_s: float) -> Problem:
    problem = recorded(TABLE, seed, 1.0)
    table = problem.table._replace(run_s=RUN_S, start_share=START_SHARE)
    return problem._replace(table=table, budget_s=budget_s)


def tunes(which: str, processes: int, num_tunes: int, num_parts: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    # Processes of its own: what is switched off stays off in them.
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for budget_s in BUDGETS_S:
            found = pool.map(lost, [(which, starved(seed, budget_s)) for seed in range(num_tunes)], chunksize=1)
            reached = sum(math.exp(-log) >= 0.95 for log, _ in found)
            took_s = statistics.fmean(cost_s for _, cost_s in found)
            rows.append({"of": "starved", "with": which, "budget_s": budget_s, "num": len(found), "reached": reached})
            rows[-1] |= {"mean_share": statistics.fmean(math.exp(-log) for log, _ in found), "took_s": took_s}
        for sd in SDS if which != "neither" else ():
            found = pool.map(lost, [(which, of_parts(seed, sd, PARTS_RUNS)) for seed in range(num_parts)], chunksize=4)
            logs = [log for log, _ in found]
            se = statistics.stdev(logs) / math.sqrt(len(logs))
            rows.append({"of": "parts", "with": which, "sd": sd, "runs": PARTS_RUNS, "num": len(logs)})
            rows[-1] |= {"regret": statistics.fmean(logs), "se": se}
    return rows


def alike(num_runs: int) -> list[dict[str, Any]]:
    rows = []
    taken_in = warmup._first_alike
    for num_steps in NUM_STEPS:
        for is_taken_in in (False, True):
            warmup._first_alike = taken_in if is_taken_in else lambda means, cut: cut
            cuts = [warmup.steady_from(_noise(num_steps, seed)) for seed in range(num_runs)]
            told = [cut for cut in cuts if cut is not None]
            row = {"num_steps": num_steps, "taken_in": is_taken_in, "num": num_runs, "mean_cut": statistics.fmean(told)}
            rows.append({**row, "untold": 1 - len(told) / num_runs})
    warmup._first_alike = taken_in
    return rows


def _noise(num_steps: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [0.01 * max(0.1, 1 + 0.03 * draw.gauss(0, 1)) for _ in range(num_steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunes", type=int, default=48)
    parser.add_argument("--parts", type=int, default=150)
    parser.add_argument("--tables", type=int, default=100, help="tunes of each recorded table")
    parser.add_argument("--runs", type=int, default=400, help="of steps that are alike")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=RESULTS / "search_open.json")
    asked = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    found = [row for which in SWITCHES for row in tunes(which, asked.processes, asked.tunes, asked.parts)]
    found += screens(asked.processes, asked.tables)
    steps = alike(asked.runs)
    for row in (*found, *steps):
        print(" ".join(f"{key}={f'{value:.4g}' if isinstance(value, float) else value}" for key, value in row.items()))
    asked.out.write_text(json.dumps({**describe(), "tunes": found, "alike": steps}, indent=1) + "\n")


if __name__ == "__main__":
    main()
