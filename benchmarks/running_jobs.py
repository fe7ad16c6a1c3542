"""How often `diagnose --pid` names the right part of programs that are started bare and asked while they run.

    python benchmarks/running_jobs.py [--device cpu|cuda] [--dose PERCENT] [--only WORD] [--after S]
        [--out FILE]

Each program of lab/faults runs at its largest dose, and the clean ones at dose 0. `--dose` is that of
programs with a fault of the loader, for a machine that others use as well: what is computed takes longer
there, and the share of the waits falls. A program is asked from outside alone, and then with its stacks if
py-spy is there. The truth of a program whose fault is of the loader is `input`. On a CPU it is `cpu`
otherwise. On a GPU only faults of the loader and of the host have a truth here. An answer is right, wrong, or
not given: `unknown`, or `waiting`, which says that the program waits and not for what. A program is asked
after it has used `--after` seconds of the processor, by when it steps. Results grow over several calls.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from dynotune.doctor import all_rules
from dynotune.running import diagnose_running
from dynotune.schema.errors import DynotuneError
from lab import result_file
from lab.faults.fault import Fault
from lab.faults.manifest import CLEAN, FAULTS, PROGRAMS
from lab.provenance import RESULTS

LEAST_DOSE = 30
"""Smaller faults are not what holds a program up."""
NO_ANSWER = ("unknown", "waiting")
OF_HOST = ("host", "sync")


def truths(device: str, loader_dose: int | None) -> Iterator[tuple[str, Fault, int, str]]:
    """Yield the programs with a name, a dose and the right part."""
    rules = all_rules()
    for fault in FAULTS:
        if device not in fault.devices or max(fault.doses) < LEAST_DOSE or fault.launcher:
            continue
        family = rules[fault.id].family if fault.id in rules else ""
        of_loader = family == "loader" or "loader-bound" in fault.implies
        right = "input" if of_loader else "host" if family in OF_HOST else ""
        dose = loader_dose if of_loader and loader_dose else max(fault.doses)
        if device == "cpu":
            right = "input" if right == "input" else "cpu"
        name = " ".join([fault.id, Path(fault.program).stem, *fault.args])
        if right:
            yield f"{name}, {dose}%", fault, dose, right
    for fault in CLEAN:
        if device in fault.devices and device == "cpu" and not fault.launcher:
            yield f"clean {Path(fault.program).stem}", fault, 0, "cpu"


def asked(fault: Fault, dose: int, device: str, after_s: float) -> dict[str, Any]:
    """Start the program; ask it once it used `after_s` of the processor, or three times as long passed; end
    it."""
    words = [sys.executable, str(PROGRAMS / fault.program), *fault.args]
    words += ["--dose", str(dose), "--device", device, "--steps", "100000000"]
    env = {**os.environ, **(fault.env if dose else {})}
    with subprocess.Popen(
        words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < 3 * after_s and _cpu_s(child.pid) < after_s:
                time.sleep(0.5)
            begin_s = time.monotonic()
            outside = diagnose_running(child.pid, with_stacks=False)
            took_s = time.monotonic() - begin_s
            inside = diagnose_running(child.pid)
            return {
                "outside": {"part": outside.part, "verdict": outside.verdict, "took_s": took_s},
                "stacks": {
                    "part": inside.part,
                    "verdict": inside.verdict,
                    "rung": inside.rung,
                    "loader_share": getattr(inside.stacks, "loader_share", None),
                },
                "evidence": outside.ranks[0].evidence,
                "pressure": outside.pressure,
                "findings": [finding.id for finding in outside.findings],
            }
        except DynotuneError as error:
            return {"failed": error.message}
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of a process and its children, living ones alone."""
    process = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def summary(answers: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Count right, wrong and missing answers of each rung."""
    counted = {}
    for rung in ("outside", "stacks"):
        verdicts: Counter[str] = Counter()
        for row in answers.values():
            part = row.get(rung, {}).get("part", "unknown")
            verdicts["right" if part == row["right"] else "not given" if part in NO_ANSWER else "wrong"] += 1
        counted[rung] = dict(verdicts)
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dose", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--after", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    out = chosen.out or RESULTS / f"running_jobs_{chosen.device}.json"
    for name, fault, dose, right in truths(chosen.device, chosen.dose):
        if chosen.only not in name or name in result_file.read(out).get("answers", {}):
            continue
        row = {"right": right, **asked(fault, dose, chosen.device, chosen.after)}
        with result_file.opened(out) as result:
            result.setdefault("answers", {})[name] = row
            result["summary"] = summary(result["answers"])
        parts = " ".join(row.get(rung, {}).get("part", "failed") for rung in ("outside", "stacks"))
        print(f"{name:60} {right:8} {parts}", flush=True)


if __name__ == "__main__":
    main()
