"""Faults injected into a program while it is watched: said within 15 s, by the right cause; and clean runs,
no alert.

    python benchmarks/watch_faults.py [--device cuda] [--times 5] [--clean 3600] [--faults NAME,…] [--ranks 2]
        [--json FILE]

Each injection starts the program anew, lets it run clean for a minute, injects one fault at a random moment,
and asks for the view until it says the right thing or 15 s are over. `--clean` watches a clean run so many
seconds and counts alerts. `--ranks` is the number of ranks of `rank-input`, and of the clean run if no other
fault is asked for. Faults of a GPU need one; `rank-input` on GPUs needs as many as ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from lab.provenance import describe

PROGRAM = str(Path(__file__).parent / "programs" / "watched.py")
CLEAN_S, LIMIT_S, FIRST_STEP_S = 60.0, 15.0, 180.0
STEPS_PER_S, FULL_S = 45, 100
HOG = (
    "import torch\na = torch.randn(8192, 8192, device='cuda')\nwhile True:\n    a @ a\n    "
    "torch.cuda.synchronize()"
)

View = dict[str, Any]


def alerts(view: View) -> dict[str, View]:
    return {alert["id"]: alert for alert in view["alerts"]}


def of_input(view: View) -> bool:
    drop = alerts(view).get("throughput-drop", {"text": ""})["text"]
    return view["cause"] == "input" or "wait for input" in drop


def of_host(view: View) -> bool:
    drop = alerts(view).get("throughput-drop", {"text": ""})["text"]
    return any(
        words in drop
        for words in ("the program itself uses", "the host does more", "nothing that is watched")
    )


def stopped(view: View) -> bool:
    stall = alerts(view).get("stalled", {"details": []})
    return any("stopped" in line for line in stall["details"]) or "is stopped" in view["verdict"]


def has(id_: str, whose: str | None = None) -> Callable[[View], bool]:
    return lambda view: id_ in alerts(view) and whose in (None, alerts(view)[id_]["whose"])


# Words that the program is told, its options, and what is right to say.
FAULTS: dict[str, tuple[str, list[str], Callable[[View], bool]]] = {
    "slow-input": ("input=0.02", [], of_input),
    "slow-input-of-workers": ("input=0.05", ["--workers", "2"], of_input),
    "stopped-worker": ("", ["--workers", "2"], stopped),
    "leak": ("", [], has("memory-growth")),
    "stall": ("stall=1", [], has("stalled")),
    "host-sleeps": ("compute=0.04", [], of_host),
    "host-computes": ("busy=0.03", [], of_host),
    "rank-input": ("rank=0.02", ["--ranks", "{ranks}"], has("rank-lag", "1")),
}
OF_GPU = {"shared-gpu": ("", [], has("device-shared"))}


class Run:
    """A program under `dynotune watch`."""

    def __init__(self, options: list[str], device: str, folder: Path) -> None:
        self.control = folder / "control"
        self.tell("")
        with (folder / "stderr").open("w") as errors:
            words = [
                sys.executable,
                "-m",
                "dynotune",
                "watch",
                "--run-dir",
                str(folder / "runs"),
                "--serve",
                "127.0.0.1:0",
            ]
            program = [sys.executable, PROGRAM, "--control", str(self.control), "--device", device, *options]
            self.process = subprocess.Popen([*words, "--", *program], stderr=errors)
        while not (found := re.search(r"serving (\S+)", (folder / "stderr").read_text())):
            time.sleep(0.1)
        self.url = found[1]

    def tell(self, what: str) -> None:
        new = self.control.with_suffix(".new")
        new.write_text(what if "compute" in what else f"compute=0.02 {what}")
        new.rename(self.control)

    def view(self) -> View:
        return json.loads(urllib.request.urlopen(self.url.replace("/?", "/view.json?")).read())

    def runs(self, length_s: float) -> list[View]:
        """The alerts of a clean stretch."""
        found, until_s = [], time.monotonic() + length_s
        while time.monotonic() < until_s:
            found += self.view()["alerts"]
            time.sleep(1.0)
        return found


@contextlib.contextmanager
def started(options: list[str], device: str) -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(options, device, Path(folder))
        try:
            until_s = time.monotonic() + FIRST_STEP_S
            while run.view().get("num_steps", 0) < 20:
                if time.monotonic() > until_s:
                    raise SystemExit("the program makes no step")
                time.sleep(0.5)
            yield run
        finally:
            run.tell("end=1")
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(timeout=10)
            run.process.kill()
            run.process.wait()


def inject(name: str, device: str, ranks: int) -> dict[str, Any]:
    told, options, right = {**FAULTS, **OF_GPU}[name]
    options = [word.format(ranks=ranks) for word in options]
    if name == "leak":  # the machine would be full in some minutes
        told = f"leak={max(2_000_000, psutil.virtual_memory().available // (STEPS_PER_S * FULL_S))}"
    with started(options, device) as run:
        before = run.runs(CLEAN_S + random.uniform(0.0, 10.0))
        hog = subprocess.Popen([sys.executable, "-c", HOG]) if name == "shared-gpu" else None
        worker = next(
            (row["pid"] for row in run.view()["processes"] if row["role"].startswith("worker")), None
        )
        if name == "stopped-worker":
            os.kill(worker, signal.SIGSTOP)
        run.tell(told)
        begun_s, said_s, view = time.monotonic(), None, {}
        try:
            while said_s is None and time.monotonic() - begun_s < 2 * LIMIT_S:
                view = run.view()
                if right(view):
                    said_s = time.monotonic() - begun_s
                time.sleep(0.2)
        finally:
            if hog is not None:
                hog.kill()
            if name == "stopped-worker":
                os.kill(worker, signal.SIGCONT)
    said = [view["verdict"], *(alert["text"] for alert in view["alerts"])]
    return {
        "fault": name,
        "said_s": said_s,
        "in_time": said_s is not None and said_s <= LIMIT_S,
        "said": said,
        "before": before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--clean", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--faults", help="names, with commas; all without")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = args.faults.split(",") if args.faults else [*FAULTS, *(OF_GPU if args.device != "cpu" else {})]
    rows: list[dict[str, Any]] = []
    for name in random.sample(names * args.times, len(names) * args.times):
        rows.append(inject(name, args.device, args.ranks))
        print(json.dumps(rows[-1]), flush=True)
        keep(args.json, rows, 0.0, [])
    clean: list[View] = []
    if args.clean:
        of_ranks = ["--ranks", str(args.ranks)] if names == ["rank-input"] else []
        with started(of_ranks, args.device) as run:
            clean = run.runs(args.clean)
    print(json.dumps(keep(args.json, rows, args.clean, clean)))


def keep(path: Path | None, rows: list[dict[str, Any]], clean_s: float, clean: list[View]) -> dict[str, Any]:
    """Write what there is so far; a run may be cut off. The totals."""
    num_in_time = sum(row["in_time"] for row in rows)
    total = {"num": len(rows), "in_time": num_in_time, "clean_s": clean_s, "clean_alerts": len(clean)}
    if path is not None:
        result = {"schema": "dynotune.benchmark/1", **describe(), **total, "rows": rows, "clean": clean}
        path.write_text(json.dumps(result, indent=1) + "\n")
    return total


if __name__ == "__main__":
    main()
