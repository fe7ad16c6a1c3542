"""Measure what watching costs a step, in pairs of runs: plain, and under `dynotune watch` with page and
scraper.

    python benchmarks/watch_overhead.py [--device cuda] [--pairs 12] [--layers 8,32] [--within] [--json FILE]

Each pair runs the same program both ways in random order; a client holds the page's event stream open and
another reads /metrics once a second. The answer is the median ratio of the pairs with the order statistics
around it that hold it in 95% of cases, for each size of step, and the cores that the watcher used itself.
With TraceML installed (`traceml` on the PATH) it is a third arm of each pair.

Two processes of one program differ by more than watching costs. `--within` starts it once and stops the
watcher by
turns: what the watcher, its page and its scraper cost, without what the agent does, which
benchmarks/agent_overhead.py tells.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from scipy.stats import binom

from lab.provenance import describe

PROGRAM = str(Path(__file__).parent / "programs" / "watched.py")
START_S, SETTLED_S, BLOCK = 20.0, 1.5, 50
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def command(args: argparse.Namespace, layers: int) -> list[str]:
    words = [
        "--seconds",
        str(args.seconds),
        "--device",
        args.device,
        "--layers",
        str(layers),
        "--width",
        str(args.width),
    ]
    pinned = ["taskset", "-c", args.cores] if args.cores else []
    return [*pinned, sys.executable, PROGRAM, *words]


def plain(args: argparse.Namespace, layers: int) -> dict[str, float]:
    return json.loads(
        subprocess.run(command(args, layers), capture_output=True, text=True, check=True).stdout
    )


def traceml(args: argparse.Namespace, layers: int) -> dict[str, float]:
    words = ["traceml", "run", *command(args, layers)[1:]]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return json.loads(next(line for line in reversed(lines) if line.startswith("{")))


def watched(args: argparse.Namespace, layers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "stderr").open("w+") as errors:
        words = [
            sys.executable,
            "-m",
            "dynotune",
            "watch",
            "--run-dir",
            folder,
            "--serve",
            "127.0.0.1:0",
            "--",
        ]
        with subprocess.Popen(
            [*words, *command(args, layers)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as run:
            while not (found := re.search(r"serving (\S+)", Path(errors.name).read_text())):
                time.sleep(0.1)
            cores: list[float] = []
            since = time.monotonic()
            for asked in (f"page.json?since={since}&", "metrics?"):
                threading.Thread(target=poll, args=(found[1].replace("?", asked),), daemon=True).start()
            threading.Thread(target=measure, args=(run.pid, cores), daemon=True).start()
            out, _ = run.communicate()
    return {
        **json.loads(out),
        "watcher_cores": statistics.median(cores[2:]) if len(cores) > 2 else float("nan"),
    }


def within(args: argparse.Namespace, layers: int) -> list[dict[str, Any]]:
    """Stretches of one run, with the watcher stopped and at work, as pairs: the median of a step's time in
    each."""
    args.seconds = 2 * args.pairs * (args.stretch_s + SETTLED_S) + START_S
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "stderr").open("w+") as errors:
        words = [
            sys.executable,
            "-m",
            "dynotune",
            "watch",
            "--run-dir",
            folder,
            "--serve",
            "127.0.0.1:0",
            "--",
        ]
        words += [*command(args, layers), "--blocks"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as run:
            while not (found := re.search(r"serving (\S+)", Path(errors.name).read_text())):
                time.sleep(0.1)
            for asked in ("page.json?since=0&", "metrics?"):
                threading.Thread(target=poll, args=(found[1].replace("?", asked),), daemon=True).start()
            time.sleep(START_S / 2)
            arms = [arm for _ in range(args.pairs) for arm in random.sample(["plain", "watched"], 2)]
            spans = []
            for arm in arms:
                os.kill(run.pid, signal.SIGSTOP if arm == "plain" else signal.SIGCONT)
                time.sleep(SETTLED_S)  # it makes up for what it missed
                spans.append((time.perf_counter(), time.perf_counter() + args.stretch_s))
                time.sleep(args.stretch_s)
            os.kill(run.pid, signal.SIGCONT)
            blocks = json.loads(run.communicate()[0])["blocks"]
    steps = [
        statistics.median(step_s for end_s, step_s in blocks if begin_s + BLOCK * step_s < end_s < until_s)
        for begin_s, until_s in spans
    ]
    return [{arms[at]: {"step_s": steps[at]} for at in (one, one + 1)} for one in range(0, len(steps), 2)]


def poll(url: str) -> None:
    """Ask each second, as the page and Prometheus do."""
    while True:
        try:
            urllib.request.urlopen(url).read()
        except OSError:
            return
        time.sleep(1.0)


def measure(pid: int, cores: list[float]) -> None:
    """Cores that the watching process keeps busy, each two seconds."""
    before: tuple[float, float] | None = None
    while True:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        now = time.perf_counter(), (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        if before is not None:
            cores.append((now[1] - before[1]) / (now[0] - before[0]))
        before = now
        time.sleep(2.0)


def interval(ratios: list[float]) -> list[float]:
    """The order statistics that hold the median in 95% of cases; all of them where there are too few."""
    ordered, num = sorted(ratios), len(ratios)
    low = max(0, int(binom.ppf(0.025, num, 0.5)) - 1)
    return [ordered[low], ordered[num - 1 - low]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--layers", default="8,32", help="a size of step each")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--cores", help="of the program in both arms, as taskset takes them; the watcher has all"
    )
    parser.add_argument("--within", action="store_true", help="stop the watcher of one run by turns")
    parser.add_argument("--stretch-s", type=float, default=4.0, help="of --within")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    arms = {"plain": plain, "watched": watched}
    if shutil.which("traceml"):
        arms["traceml"] = traceml
    found: dict[int, list[dict[str, Any]]] = {layers: [] for layers in map(int, args.layers.split(","))}
    if args.within:
        for layers in found:
            found[layers] = within(args, layers)
    for _ in range(0 if args.within else args.pairs):
        for layers, pairs in found.items():
            order = random.sample(sorted(arms), len(arms))
            pairs.append({name: arms[name](args, layers) for name in order})
            print(json.dumps(pairs[-1]), flush=True)
            keep(args, found)  # a run may be cut off
    keep(args, found)
    for row in rows(found):
        print(json.dumps({name: value for name, value in row.items() if name != "pairs"}))


def keep(args: argparse.Namespace, found: dict[int, list[dict[str, Any]]]) -> None:
    if args.json:
        result = {"schema": "dynotune.benchmark/1", "within": args.within, **describe(), "rows": rows(found)}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


def rows(found: dict[int, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What came of each size of step so far."""
    made = []
    for layers, pairs in found.items():
        if not pairs:
            continue
        row: dict[str, Any] = {
            "layers": layers,
            "step_s": statistics.median(pair["plain"]["step_s"] for pair in pairs),
        }
        if "watcher_cores" in pairs[0]["watched"]:
            row["watcher_cores"] = statistics.median(pair["watched"]["watcher_cores"] for pair in pairs)
        for name in sorted(set(pairs[0]) - {"plain"}):
            ratios = [pair[name]["step_s"] / pair["plain"]["step_s"] for pair in pairs]
            row[name] = {"added": statistics.median(ratios) - 1, "ci": [end - 1 for end in interval(ratios)]}
        made.append({**row, "pairs": pairs})
    return made


if __name__ == "__main__":
    main()
