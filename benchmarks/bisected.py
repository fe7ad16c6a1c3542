"""How often `bisect` finds a planted step, is wrong without a warning, and how many pairs it takes.

Simulated, with the shipped search and the shipped judge; the noise is that of a pair's log ratio:

    python benchmarks/bisected.py --searches 100

Real, on a repository of 64 commits of a small program that computes and never sleeps:

    python benchmarks/bisected.py --real 3 --share 0.3
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dynotune.schema import document
from dynotune.schema.bisection import Bisection
from lab import result_file
from lab.bisected import planted, simulated, write_history

RESULTS = Path(__file__).parent / "results"
NUM_POINTS = 65
SHARES = (0.0, 0.05, 0.10, 0.30)
NOISES = (0.005, 0.015, 0.03, 0.06)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--searches", type=int, default=100, help="of each share and noise")
    parser.add_argument("--real", type=int, default=0, help="real searches instead")
    parser.add_argument(
        "--share", type=float, default=0.1, help="what the planted step takes more; 0: nothing"
    )
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.real:
        real(chosen.real, chosen.share, chosen.out or RESULTS / "bisected_cpu.json")
    else:
        simulate(chosen.searches, chosen.out or RESULTS / "bisected_simulated.json")


def simulate(num_searches: int, out: Path) -> None:
    rows = []
    for share in SHARES:
        for sd in NOISES:
            rows.append(row(share, sd, num_searches))
            print(json.dumps(rows[-1]), flush=True)
    with result_file.opened(out) as result:
        result["num_commits"] = NUM_POINTS - 1
        result["rows"] = rows


def row(share: float, sd: float, num_searches: int) -> dict[str, Any]:
    endings: collections.Counter[str] = collections.Counter()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(num_searches):
            first_bad = random.Random(f"{share} {sd} {seed}").randrange(1, NUM_POINTS)
            times = planted(NUM_POINTS, first_bad, share)
            found, num_pairs = simulated(Path(folder, str(seed)), times, sd=sd, seed=seed)
            endings[kind(found, first_bad)] += 1
            pairs.append(num_pairs)
    return {
        "share": share,
        "sd_of_a_pairs_log_ratio": sd,
        "searches": num_searches,
        **endings,
        "median_pairs": statistics.median(pairs),
    }


def kind(found: Bisection, first_bad: int) -> str:
    """Return `right`, `wrong` (without a warning), or the ending that says that the search is not sure."""
    if found.ending != "found":
        return str(found.ending)
    return "right" if found.first_bad == first_bad else "wrong"


def real(num: int, share: float, out: Path) -> None:
    for _ in range(num):
        began_s = time.monotonic()
        first_bad = random.SystemRandom().randrange(1, NUM_POINTS)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "history")
            write_history(place, NUM_POINTS, first_bad, share)
            answer = Path(folder, "answer.json")
            ends = ["--good", f"git.ref=HEAD~{NUM_POINTS - 1}", "--bad", "git.ref=HEAD"]
            options = ["--step-function", "train:step", "--run-dir", str(Path(folder, "runs"))]
            words = [*ends, *options, "--json", str(answer), "--", sys.executable, "train.py"]
            load = os.getloadavg()[0]
            subprocess.run([sys.executable, "-m", "dynotune", "bisect", *words], cwd=place, check=False)
            found = document.read(answer, Bisection)
        step = found.confirmed
        with result_file.opened(out) as result:
            result.setdefault("searches", []).append(
                {
                    "share": share,
                    "planted": first_bad,
                    "ending": kind(found, first_bad) if share else found.ending,
                    "first_bad": found.first_bad,
                    "ends": None if found.shown is None else [found.shown.speedup, found.shown.ci],
                    "size": None if step is None else [step.speedup, step.ci],
                    "num_pairs": sum(
                        one.num_pairs for one in [found.shown, *found.steps, step] if one is not None
                    ),
                    "not_sure": sum(not one.is_sure for one in found.steps),
                    "load_1min_before": round(load, 1),
                    "minutes": round((time.monotonic() - began_s) / 60, 1),
                }
            )


if __name__ == "__main__":
    main()
