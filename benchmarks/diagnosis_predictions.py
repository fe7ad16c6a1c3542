"""Whether `compare` confirms what `diagnose` suggests: findings that claim much and name a setting, each
tried.

    python benchmarks/diagnosis_predictions.py DIAGNOSED [--device cuda] [--pairs 6] [--lanes 1] [--gpus 1]
        [--draw SEED] [--out FILE]

DIAGNOSED is a result of diagnosis_accuracy.py. Of each finding with a share above a tenth of the step and
candidate settings, the first value of each candidate knob is set, all together, and compared with the program
as it is, in the same dose. `--draw` takes them in an order by lot, so that those within `--budget-s` stand
for all. The finding is confirmed where the verdict is `faster`. The bound is kept where the gain, 1 -
1/speedup, is no more than the share that was claimed, as far as the interval tells. What is in FILE already
is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from diagnosis_accuracy import Case, cases

from lab.provenance import RESULTS, describe, without_places

CLAIMED = 0.10
DEADLINE_S = 900

Row = dict[str, Any]


def claims(diagnosed: dict[str, Row], device: str) -> Iterator[tuple[Case, Row]]:
    """Findings that claim more than a tenth of the step and name settings, with the program they were found
    in."""
    for case in cases(device, None, ()):
        row = diagnosed.get(case.key, {})
        for finding in row.get("findings", []):
            if finding["candidates"] and (finding["share"] or 0.0) > CLAIMED:
                yield case, finding


def compared(case: Case, finding: Row, cores: Sequence[int], gpu: int | None, pairs: int) -> Row:
    env = {**os.environ, **dict(case.env)}
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = str(gpu)
    first: dict[str, str] = {}
    for setting in finding["candidates"]:
        first.setdefault(setting.partition("=")[0], setting)
    with tempfile.TemporaryDirectory() as folder:
        ours = [
            sys.executable,
            "-m",
            "dynotune",
            "compare",
            *first.values(),
            "--no-lock",
            "--pairs",
            str(pairs),
        ]
        words = ["taskset", "-c", ",".join(map(str, cores)), *ours, "--json", "-", "--run-dir", folder, "--"]
        try:
            ran = subprocess.run(
                [*words, *case.command], env=env, cwd=folder, capture_output=True, timeout=DEADLINE_S
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"took longer than {DEADLINE_S} s"}
    if ran.returncode != 0:
        return {"failed": without_places(ran.stderr.decode(errors="replace")[-800:])}
    comparison = json.loads(ran.stdout)
    speedup, interval = comparison["speedup"], comparison["ci"]
    return {
        "verdict": comparison["verdict"],
        "speedup": speedup,
        "ci": interval,
        "num_pairs": comparison["num_pairs"],
        "num_voided": len(comparison["voided"]),
        "confirmed": comparison["verdict"] == "faster",
        "gain": None if speedup is None else 1 - 1 / speedup,
        # The lowest gain that the interval allows: above the share, the bound was none.
        "bound_kept": None if not interval else 1 - 1 / interval[0] <= finding["share"],
    }


def show(rows: dict[str, Row]) -> None:
    for key, row in rows.items():
        said = f"{key:58} claims {row['share']:.0%}"
        if "failed" in row:
            print(f"{said}  FAILED {row['failed'].strip().splitlines()[-1][:80]}")
            continue
        speedup = "-" if row["speedup"] is None else f"{row['speedup']:.2f}"
        kept = "" if row["bound_kept"] in (True, None) else "  BOUND BROKEN"
        print(f"{said}  {row['verdict']:9} {speedup}{kept}")
    ran = [row for row in rows.values() if "failed" not in row]
    confirmed = sum(row["confirmed"] for row in ran)
    print(
        f"{confirmed} of {len(ran)} confirmed; bound broken in "
        f"{sum(row['bound_kept'] is False for row in ran)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("diagnosed", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument(
        "--budget-s", type=float, default=float("inf"), help="begin no further comparison after it"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out or RESULTS / f"diagnosis_predictions_{given.device}.json"
    rows: dict[str, Row] = json.loads(out.read_text())["claims"] if out.is_file() else {}
    wanted = list(claims(json.loads(given.diagnosed.read_text())["programs"], given.device))
    if given.draw is not None:
        random.Random(given.draw).shuffle(wanted)
    until_s = time.monotonic() + given.budget_s
    told = describe()
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // given.lanes)
    free = queue.SimpleQueue[tuple[list[int], int | None]]()
    for lane in range(given.lanes):
        free.put((cpus[lane * size : (lane + 1) * size], lane % given.gpus if given.gpus > 1 else None))

    def try_one(claim: tuple[Case, Row]) -> None:
        case, finding = claim
        key = f"{case.key} {finding['id']}"
        if (key in rows and "failed" not in rows[key]) or time.monotonic() > until_s:
            return
        own = free.get()
        try:
            rows[key] = {**finding, **compared(case, finding, *own, given.pairs)}
        finally:
            free.put(own)
        ordered = {name: rows[name] for c, f in wanted if (name := f"{c.key} {f['id']}") in rows}
        out.write_text(json.dumps({**told, "lanes": given.lanes, "claims": ordered}, indent=1) + "\n")

    with ThreadPoolExecutor(given.lanes) as pool:
        list(pool.map(try_one, wanted))
    show(rows)


if __name__ == "__main__":
    main()
