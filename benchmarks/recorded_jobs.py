"""What a recording on request does to a training that runs: its output, exit code, longest steps, and pace.

    python benchmarks/recorded_jobs.py [--device cpu|cuda] [--limit S] [--out FILE]

One training is started with `KINETO_USE_DAEMON=1`, one by `dynotune run --recordable`, and one runs alone.
The first two are recorded by `diagnose --pid --record` 3 s after their first steps. A run that the limit cuts
off is compared as far as it came.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS

PROGRAM = Path(__file__).parent / "programs" / "recorded.py"
WARM_UP, BEFORE_S = 200, 3.0
DYNOTUNE = [sys.executable, "-m", "dynotune"]


def job(
    chosen: argparse.Namespace,
    until_s: float,
    steps: int,
    prefix: list[str],
    env: dict[str, str],
    *,
    asked: bool,
) -> dict[str, Any]:
    """Run a training, recorded once if `asked`; return what it printed, and what its steps took."""
    with tempfile.TemporaryDirectory() as name:
        folder, row = Path(name), dict[str, Any]()
        words = [*prefix, sys.executable, str(PROGRAM), "--device", chosen.device, "--steps", str(steps)]
        with (folder / "output").open("wb") as output:
            child = subprocess.Popen(
                [*words, "--side", str(folder / "side")],
                stdout=output,
                env={**os.environ, **env},
                start_new_session=True,
            )
            try:
                if asked:
                    row.update(recorded(child, folder, until_s))
                row["exit_code"] = child.wait(timeout=max(1.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                row["exit_code"] = "cut off"
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
        row["output"] = (folder / "output").read_text().splitlines()
        if (folder / "side").exists():
            side = json.loads((folder / "side").read_text())
            row.update(paces(side["ends_s"], row) if "ends_s" in side else side)
    return row


def recorded(child: subprocess.Popen[bytes], folder: Path, until_s: float) -> dict[str, Any]:
    while b"warm" not in (folder / "output").read_bytes() and child.poll() is None:
        time.sleep(0.05)
    time.sleep(BEFORE_S)
    begin_s = time.perf_counter()
    words = [*DYNOTUNE, "diagnose", "--pid", str(child.pid), "--record", "--json", "-"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, until_s - time.monotonic()))
    found = json.loads(done.stdout or "{}")
    inside = found.get("recorded") or {}
    return {
        "begin_s": begin_s,
        "end_s": time.perf_counter(),
        "rung": found.get("rung"),
        "verdict": inside.get("verdict", inside.get("reason", done.stderr[-300:])),
        "bottleneck": inside.get("bottleneck"),
    }


def paces(ends_s: list[float], row: dict[str, Any]) -> dict[str, Any]:
    """Return what steps took before, during and from 1 s after the recording on; of a run alone, of all."""

    def took(begin_s: float, end_s: float) -> dict[str, float]:
        inside = [at for at in ends_s[WARM_UP:] if begin_s <= at < end_s]
        steps = [later - earlier for earlier, later in itertools.pairwise(inside)]
        return (
            {"num": len(steps), "mean_s": statistics.fmean(steps), "longest_s": max(steps)} if steps else {}
        )

    if "begin_s" not in row:
        return {"steps": took(0.0, ends_s[-1])}
    begin_s, end_s = row["begin_s"], row["end_s"]
    found = {
        "before": took(0.0, begin_s),
        "inside": took(begin_s, end_s),
        "after": took(end_s + 1, ends_s[-1]),
        "attached_s": end_s - begin_s,
    }
    if found["before"] and found["after"]:
        found["after_over_before"] = found["after"]["mean_s"] / found["before"]["mean_s"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds in all")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    until_s = time.monotonic() + chosen.limit
    steps = job(chosen, until_s, 0, [], {}, asked=False)["steps"]
    with tempfile.TemporaryDirectory() as door:
        daemon = {
            "KINETO_USE_DAEMON": "1",
            "KINETO_IPC_SOCKET_DIR": door,
            "KINETO_ONDEMAND_TRACE_DIR": door,
            "KINETO_LOG_LEVEL": "5",
            "TEARDOWN_CUPTI": "1",
        }
        rows = {"KINETO_USE_DAEMON": job(chosen, until_s, steps, [], daemon, asked=True)}
    run = [*DYNOTUNE, "run", "--recordable", "--"]
    rows["dynotune run"] = job(chosen, until_s, steps, run, {}, asked=True)
    rows["alone"] = job(chosen, until_s, steps, [], {}, asked=False)
    pairs = itertools.combinations(rows, 2)
    with result_file.opened(chosen.out or RESULTS / f"recorded_jobs_{chosen.device}.json") as result:
        result["steps"] = steps
        result["same_output"] = {
            f"{one}, {other}": all(
                a == b for a, b in zip(rows[one]["output"], rows[other]["output"], strict=False)
            )
            for one, other in pairs
        }
        for row in rows.values():
            row["num_lines"] = len(row.pop("output"))
        result["runs"] = rows
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
