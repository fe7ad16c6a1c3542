"""How long a step of a running training takes at most while an agent comes, measures, records and leaves.

    python benchmarks/held_steps.py --python 'WORDS' [--checkout PATH] [--root FOLDER] [--layers 0 100]
        [--times 3] [--out FILE]

`--python`, `--checkout` and `--root` are as for `attachments.py`. Each training runs within one epoch, so no
workers start meanwhile, and is joined once by `diagnose --pid --record`. Steps are listed that take 50 ms
more than a mean step before, with what dynotune did then. `--layers` makes steps longer. Results grow over
several calls.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from dynotune.running import diagnose_running
from lab import result_file
from lab.provenance import RESULTS

PROGRAM = "benchmarks/programs/attended.py"
BEFORE_S, AFTER_S = 5.0, 3.0
"""Seconds of steps before and after an attachment."""
FIRST_S, LONG_S = 1.0, 0.05
"""Seconds of an attachment in which steps may be longer, and seconds by which none should be later on."""
STEPS = {0: 2600, 100: 1000}
"""Steps of a training by its layers: some 25 s."""


def joined(chosen: argparse.Namespace, layers: int) -> dict[str, Any]:
    """Run a training, join it once, and return what its steps took."""
    with tempfile.TemporaryDirectory(dir=chosen.root and chosen.root / "tmp") as name:
        folder = Path(name)
        inside = Path("/", *folder.parts[len(chosen.root.parts) :]) if chosen.root else folder
        words = [*shlex.split(chosen.python), str(chosen.checkout / PROGRAM), "--workers", "1"]
        words += ["--steps", str(STEPS[layers]), "--samples", "1000000", "--layers", str(layers)]
        with (folder / "output").open("wb") as output:
            child = subprocess.Popen([*words, "--side", str(inside / "side")], stdout=output)
        while b"warm" not in (folder / "output").read_bytes():
            time.sleep(0.1)
        time.sleep(BEFORE_S)
        marks: list[tuple[float, str]] = []
        begin_s = time.perf_counter()
        found = diagnose_running(
            child.pid,
            look_s=1.0,
            with_stacks=False,
            record=True,
            running=lambda what: marks.append((time.perf_counter(), what)),
        )
        end_s = time.perf_counter()
        code = child.wait()
        ends_s = json.loads((folder / "side.0").read_text())["ends_s"]
    rows = list(itertools.pairwise(ends_s))

    def steps(since_s: float, until_s: float) -> dict[str, Any]:
        took = [end - begin for begin, end in rows if since_s <= begin < until_s]
        return {"num": len(took), "mean_s": statistics.fmean(took), "longest_s": max(took)} if took else {}

    def doing(at: float) -> str:
        return next((what for since, what in reversed(marks) if since <= at), "")

    before = steps(begin_s - BEFORE_S, begin_s)
    return {
        "rung": found.rung,
        "exit_code": code,
        "attached_s": end_s - begin_s,
        "before": before,
        "first_second": steps(begin_s, begin_s + FIRST_S),
        "later": steps(begin_s + FIRST_S, end_s),
        "after": steps(end_s, end_s + AFTER_S),
        "long": [
            {"at_s": begin - begin_s, "took_s": end - begin, "doing": doing(end)}
            for begin, end in rows
            if begin_s <= begin < end_s and end - begin > before["mean_s"] + LONG_S
        ],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [row for row in rows if row["later"] and row["after"]]
    return {
        "times": len(rows),
        "rungs": sorted({row["rung"] for row in rows}),
        "mean_step_before_s": statistics.fmean(row["before"]["mean_s"] for row in whole),
        "longest_before_s": max(row["before"]["longest_s"] for row in whole),
        "longest_later_s": [row["later"]["longest_s"] for row in whole],
        "longest_after_s": max(row["after"]["longest_s"] for row in whole),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True)
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", choices=sorted(STEPS), default=sorted(STEPS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "held_steps.json")
    chosen = parser.parse_args()
    for layers in chosen.layers * chosen.times:
        row = joined(chosen, layers)
        with result_file.opened(chosen.out) as result:
            rows = result.setdefault("rows", {}).setdefault(f"{layers} layers", [])
            rows.append(row)
            result.setdefault("summary", {})[f"{layers} layers"] = summary(rows)
        print(layers, row["before"], row["later"], row["long"], flush=True)


if __name__ == "__main__":
    main()
