"""How many cameras programs serve: as `dynotune plan` predicts, proves and refutes, and for two minutes each.

    python benchmarks/streams_planned.py --device cuda --weights yolo11n.pt
    python benchmarks/streams_planned.py --device cpu
    python benchmarks/streams_planned.py --device cuda --each 16    # the latency of each of 16 cameras

`tools/result_tables.py` writes the kept result into the guide, and `tools/result_charts.py` draws it.
Needs ultralytics with `--weights` (from the registry; AGPL-3.0, which is why only benchmarks name it).
Programs that stand in the result are not planned again without `--again`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS, without_places
from tools import result_tables

ROOT = Path(__file__).resolve().parents[1]
CAMERAS = ["examples/many_cameras.py", "--cameras", "{streams}"]
THREADS = ["benchmarks/programs/camera_threads.py", "--cameras", "{streams}"]
YOLO = ["benchmarks/programs/threaded_yolo.py", "--num-cams", "{streams}"]
BATCHES = ["benchmarks/programs/batch_server.py", "--clients", "{streams}"]
TORCHVISION = ["benchmarks/programs/torchvision_cameras.py", "--streams", "{streams}"]
LINE = re.compile(r"(camera \d+)  (\d+) served, (\d+) dropped, p50 ([\d.]+) ms, p99 ([\d.]+) ms")
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
    parser.add_argument("--each", type=int, help="Keep what each of so many cameras of the example gets.")
    parser.add_argument("--each-s", type=int, default=20, help="Seconds of that.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or RESULTS / f"streams_planned_{args.device}.json"
    if args.each:
        found = each_camera(args.device, args.weights, args.each, args.each_s)
        with result_file.opened(out) as result:
            result["each camera"] = found
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
    print(result_tables.streams(result_file.read(out)))


def each_camera(device: str, weights: str | None, num: int, seconds: int) -> dict[str, Any]:
    """Run the example with so many cameras, and return what it says of each."""
    setup = SETUPS[device]
    command = [word.replace("{streams}", str(num)) for word in (*CAMERAS, *setup["cameras"])]
    command += [
        "--frames",
        str(int(float(setup["fps"]) * seconds)),
        *(["--weights", weights] if weights else []),
    ]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True, text=True)
    lines = (LINE.match(line) for line in done.stdout.splitlines())
    cameras = [
        {"name": name, "served": int(served), "dropped": int(dropped), "p50_s": float(p50) / 1000,
         "p99_s": float(p99) / 1000}
        for name, served, dropped, p50, p99 in (line.groups() for line in lines if line)
    ]  # fmt: skip
    deadline_s = float(setup["deadline"].removesuffix("ms")) / 1000
    return {
        "command": ["python", *command],
        "fps": float(setup["fps"]),
        "deadline_s": deadline_s,
        "cameras": cameras,
    }


if __name__ == "__main__":
    main()
