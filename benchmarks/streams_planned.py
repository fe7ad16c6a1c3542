"""How many cameras programs serve: as `dynotune plan` predicts, proves and refutes, and for two minutes each.

    python benchmarks/streams_planned.py --device cuda --weights yolo11n.pt
    python benchmarks/streams_planned.py --device cpu
    python benchmarks/streams_planned.py --device cuda --table      # the kept result, as Markdown

Needs ultralytics with `--weights` (from the registry; AGPL-3.0, which is why only benchmarks name it).
Programs that stand in the result are not planned again without `--again`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS, without_places

ROOT = Path(__file__).resolve().parents[1]
CAMERAS = ["examples/many_cameras.py", "--cameras", "{streams}"]
THREADS = ["benchmarks/programs/camera_threads.py", "--cameras", "{streams}"]
YOLO = ["benchmarks/programs/threaded_yolo.py", "--num-cams", "{streams}"]
BATCHES = ["benchmarks/programs/batch_server.py", "--clients", "{streams}"]
TORCHVISION = ["benchmarks/programs/torchvision_cameras.py", "--streams", "{streams}"]
SETUPS: dict[str, dict[str, Any]] = {
    "cuda": {
        "fps": "25",
        "window": "20s",
        "budget": "15m",
        "cameras": ["--device", "cuda", "--half"],
        "threads": ["--device", "cuda"],
        "yolo": ["--device", "cuda"],
        "batches": ["--device", "cuda", "--channels", "32"],
        "torchvision": ["--device", "cuda"],
        "deadline": "80ms",
        "soaks": (4, 16, 64),
        "soak_s": 120,
    },
    "cpu": {
        "fps": "5",
        "window": "5s",
        "budget": "6m",
        "cameras": ["--fps", "5", "--scale", "0.25", "--imgsz", "160", "--batch", "1", "4", "16"],
        "threads": ["--fps", "5", "--size", "270", "480", "--imgsz", "160"],
        "yolo": ["--fps", "5", "--width", "480", "--height", "270", "--imgsz", "160"],
        "batches": ["--fps", "5", "--width", "480", "--height", "270", "--side", "160", "--channels", "8"],
        "torchvision": ["--fps", "5", "--size", "270", "480"],
        "deadline": "200ms",
        "soaks": (2, 16),
        "soak_s": 20,
    },
}


def programs(device: str, weights: str | None) -> dict[str, tuple[list[str], list[str]]]:
    """Return the command of each program and its own options of `plan`."""
    setup = SETUPS[device]
    chosen = ["--weights", weights] if weights else []
    deadline = ["--deadline", setup["deadline"]]
    # On a GPU a thread's call returns before the work is done, so only its rate is seen.
    of_threads = deadline if device == "cpu" else []
    return {
        "many_cameras": ([*CAMERAS, *setup["cameras"], *chosen], deadline),
        "a model per thread": ([*THREADS, *setup["threads"], *chosen], of_threads),
        "one model, many threads": ([*THREADS, *setup["threads"], *chosen, "--shared"], of_threads),
        # By other hands: they know nothing of dynotune and mark no frame, so their rate alone is seen.
        "Ultralytics in threads": ([*YOLO, *setup["yolo"], *chosen], []),
        "a batch server": ([*BATCHES, *setup["batches"]], []),
        "torchvision, one loop": ([*TORCHVISION, *setup["torchvision"]], []),
    }


def planned(command: list[str], options: list[str]) -> dict[str, Any]:
    """Return the document of a plan, without places of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        words = [sys.executable, "-m", "dynotune", "plan", "streams", *options, "--json", str(file)]
        done = subprocess.run([*words, "--", sys.executable, *command], cwd=ROOT, check=False)
        if not file.is_file():
            return {"failed": done.returncode}
        found: dict[str, Any] = json.loads(without_places(file.read_text()))
    for name in ("facts", "run", "id", "warnings"):
        found.pop(name, None)
    return {"command": ["python", *command], "options": options, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=list(SETUPS), default="cpu")
    parser.add_argument("--weights", help="Of a YOLO model, for Ultralytics to load.")
    parser.add_argument("--only", nargs="+", help="Names of programs.")
    parser.add_argument("--again", action="store_true", help="Plan programs that stand in the result.")
    parser.add_argument("--window", help="Of each run.")
    parser.add_argument("--budget", help="Of each program's plan.")
    parser.add_argument("--no-soaks", action="store_true", help="No long windows at given numbers.")
    parser.add_argument("--no-lock", action="store_true", help="As for dynotune.")
    parser.add_argument("--table", action="store_true", help="Print the kept result as Markdown.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or RESULTS / f"streams_planned_{args.device}.json"
    if args.table:
        print(table(result_file.read(out)))
        return
    setup, no_lock = SETUPS[args.device], ["--no-lock"] * args.no_lock
    fps = ["--fps", setup["fps"]]
    options = [*fps, "--window", args.window or setup["window"], "--budget", args.budget or setup["budget"]]
    for name, (command, own) in programs(args.device, args.weights).items():
        is_kept = name in result_file.read(out).get("programs", {}) and not args.again
        if is_kept or (args.only and name not in args.only):
            continue
        answer = planned(command, [*options, *own, *no_lock])
        soaks = {}
        for number in () if args.no_soaks else setup["soaks"]:
            if number <= (answer.get("largest") or 0):
                once = ["--least", str(number), "--most", str(number), "--window", f"{setup['soak_s']}s"]
                soaks[str(number)] = planned(command, [*fps, *own, *once, "--budget", "10m", *no_lock])
        with result_file.opened(out) as result:
            result.setdefault("programs", {})[name] = {**answer, "soaks": soaks}
    print(table(result_file.read(out)))


def table(result: dict[str, Any]) -> str:
    """Return the result as a Markdown table."""
    rows = [
        "| program | limits | predicted | proved | refuted | what binds | in real time |",
        "| --- | --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name, plan in result.get("programs", {}).items():
        bounds = plan.get("predicted")
        known = (
            [bound for bound in bounds if bound["largest"] is not None] if isinstance(bounds, list) else []
        )
        first = min(known, key=lambda bound: bound["largest"], default=None)
        predicted = f"{first['largest']} ({first['name']})" if first else "unknown"
        limits = ", ".join(filter(None, (_limit(plan.get("fps"), one) for one in plan.get("limits", []))))
        binds = (plan.get("binds") or {}).get("name", "")
        soaks = "; ".join(_soak(number, soak) for number, soak in plan.get("soaks", {}).items())
        proved, refuted = (plan.get(key) or "none" for key in ("largest", "refuted"))
        rows.append(f"| {name} | {limits} | {predicted} | {proved} | {refuted} | {binds} | {soaks} |")
    return "\n".join(rows)


def _limit(fps: float | None, limit: dict[str, Any]) -> str:
    match limit["quantity"]:
        case "frame-rate":
            return f"{fps:g} fps"
        case "frame-latency-p99":
            return f"p99 {limit['bound'] * 1000:g} ms"
        case _:
            return ""


def _soak(number: str, soak: dict[str, Any]) -> str:
    """Write what a longer window at one number showed, as `16 for 120 s: p99 31 ms`."""
    if not soak.get("runs"):
        return f"{number}: failed"
    latencies = [
        one["value"]
        for run in soak["runs"]
        for one in run["measured"]
        if one["quantity"] == "frame-latency-p99"
    ]
    late = f", p99 {max(latencies) * 1000:.0f} ms" if latencies else ""
    held = "held" if soak["end"] == "ceiling" else "not held"
    return f"{number} for {soak['window_s']:g} s: {held}{late}"


if __name__ == "__main__":
    main()
