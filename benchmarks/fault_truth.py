"""What the planted faults truly cost: each program alone, with its fault and without, in turns.

    python benchmarks/fault_truth.py [--device cuda] [--only num-workers-zero] [--only sync_item:60]
        [--out FILE]

The share of a dose is 1 - T(dose 0) / T(dose), one value a repeat. FILE is written after every run, and runs
that it holds are not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.faults.manifest import FAULTS, PAIRS, PROGRAMS, Fault
from lab.provenance import describe, without_places

# Steps of the run that tells how many steps the others need, and the fewest of those.
TRIED_STEPS, LEAST_STEPS = 12, 30
LIMIT_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda", "cuda-x2"], default="cpu")
    parser.add_argument(
        "--only", action="append", default=[], help="an id or a program's name, with :DOSE for one dose"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8, help="of each run, about")
    parser.add_argument("--lanes", type=int, default=1, help="programs at once; more than one disturbs them")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="for every program and dose"
    )
    parser.add_argument("--out", type=Path, default=Path("fault_truth.json"))
    args = parser.parse_args()
    result = json.loads(args.out.read_text()) if args.out.exists() else {**describe(), "cases": {}}
    lock = threading.Lock()
    env = dict(pair.split("=", 1) for pair in args.env)

    def keep() -> None:
        args.out.write_text(without_places(json.dumps(result, indent=1)) + "\n")

    only: dict[str, set[int]] = {}
    for name, _, dose in (text.partition(":") for text in args.only):
        only.setdefault(name, set()).update([int(dose)] if dose else [])

    def doses_of(fault: Fault) -> tuple[int, ...]:
        asked = set().union(*(only.get(name, set()) for name in names(fault)))
        return tuple(dose for dose in fault.doses if not asked or dose in asked)

    def measure(fault: Fault) -> None:
        with lock:
            case = result["cases"].setdefault(key(fault, args.device), {"doses": list(fault.doses)})
            rates = case.setdefault("rates", {})
        for repeat in range(args.repeats):
            for dose in (0, *doses_of(fault)):
                if len(rates.setdefault(str(dose), [])) > repeat:
                    continue
                # Seconds are asked of the twin; a slower program gets as many steps as fit in twice as long.
                if "steps" not in case:
                    tried = run(fault, args.device, 0, TRIED_STEPS, env)
                    case["steps"] = max(LEAST_STEPS, round(args.seconds * tried))
                slower = 1 if dose < 50 else 1 - dose / 100
                steps = max(LEAST_STEPS, round(case["steps"] * slower))
                rate = run(fault, args.device, dose, steps, env)
                with lock:
                    rates[str(dose)].append(rate)
                    case["load"] = [*case.get("load", []), round(os.getloadavg()[0], 1)]
                    case["shares"] = shares(rates)
                    keep()
        with lock:
            print(line(key(fault, args.device), case["shares"]), flush=True)

    def try_to_measure(fault: Fault) -> None:
        try:
            measure(fault)
        except ProgramFailed as failure:
            print(f"{key(fault, args.device)}: {failure}", flush=True)

    found = [
        fault
        for fault in (*FAULTS, *PAIRS)
        if args.device in fault.devices and (not only or names(fault) & set(only))
    ]
    with ThreadPoolExecutor(args.lanes) as lanes:
        list(lanes.map(try_to_measure, found))


class ProgramFailed(Exception):
    """The program did not end with its rate."""


def names(fault: Fault) -> set[str]:
    return {fault.id, fault.program, fault.program.removesuffix(".py")}


def key(fault: Fault, device: str) -> str:
    return " ".join([fault.id, fault.program.removesuffix(".py"), device, *fault.args])


def run(fault: Fault, device: str, dose: int, steps: int, env: dict[str, str]) -> float:
    """Steps a second of one run. Raises ProgramFailed."""
    launcher = fault.launcher or (sys.executable,)
    if launcher[0] == "torchrun":
        launcher = (sys.executable, "-m", "torch.distributed.run", *launcher[1:])
    command = [
        *launcher,
        str(PROGRAMS / fault.program),
        *fault.args,
        "--dose",
        str(dose),
        "--steps",
        str(steps),
    ]
    command += ["--device", device.removesuffix("-x2")]
    environment = {**os.environ, **env, **(fault.env if dose else {})}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as late:
        raise ProgramFailed(f"dose {dose}, {steps} steps: not done in {LIMIT_S} s") from late
    rate = re.search(r"^RATE (\S+)$", done.stdout, re.MULTILINE)
    if done.returncode or rate is None:
        raise ProgramFailed(f"dose {dose}: exit code {done.returncode}: {done.stderr[-1000:]}")
    return float(rate[1])


def shares(rates: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Of each dose, in percent: by the median rates, by the best rates, and the least and most of the
    repeats.

    Other work on the machine only slows a program: where there was some, the best rates say more.
    """
    found = {}
    for dose, of_dose in rates.items():
        pairs = list(zip(rates["0"], of_dose, strict=False))
        if dose == "0" or not pairs:
            continue
        each = [percent(twin, rate) for twin, rate in pairs]
        share = percent(statistics.median(rates["0"]), statistics.median(of_dose))
        of_best = percent(max(rates["0"]), max(of_dose))
        found[dose] = {"share": share, "of_best": of_best, "least": min(each), "most": max(each)}
    return found


def percent(twin: float, rate: float) -> float:
    return round(100 * (1 - rate / twin), 1)


def line(name: str, found: dict[str, Any]) -> str:
    told = [
        f"{dose}: {of['share']:.0f} ({of['least']:.0f} to {of['most']:.0f}, best {of['of_best']:.0f})"
        for dose, of in found.items()
    ]
    return f"{name:60} {'  '.join(told)}"


if __name__ == "__main__":
    main()
