"""Whether an agent that comes to a running program finds what it finds in a program that dynotune starts.

    python benchmarks/joined_faults.py --python 'WORDS' [--checkout PATH] [--only WORD] [--number N]
        [--after S] [--out FILE]

`--python` and `--checkout` are as for `attachments.py`; a program that is started needs dynotune's agent and
its run folder at the same paths as dynotune itself. Each program of lab/faults for the CPU, at its largest
dose, and each clean one, is started bare, joined `--after` seconds later, and diagnosed. Then `diagnose`
starts the same command. Results grow over several calls.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from lab import result_file
from lab.faults.fault import Fault
from lab.faults.manifest import CLEAN, FAULTS
from lab.provenance import RESULTS

SHOWN = ("high", "medium")


def programs(device: str = "cpu") -> Iterator[tuple[str, Fault, int]]:
    seen = set()
    for fault in (*FAULTS, *CLEAN):
        if device not in fault.devices or fault.launcher:
            continue
        dose = max(fault.doses, default=0)
        name = " ".join([fault.id, Path(fault.program).stem, *fault.args])
        if name not in seen:
            seen.add(name)
            yield f"{name}, {dose}%", fault, dose


def answer(words: list[str]) -> dict[str, Any]:
    """Run dynotune; return bottleneck, verdict and findings of the recorded steps, or why there are none."""
    command = [sys.executable, "-m", "dynotune", "diagnose", "--json", "-", *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return {"failed": done.stderr.strip()[-300:]}
    found = found.get("recorded", found)
    if "findings" not in found:
        return {"failed": found.get("reason", "")}
    return {
        "bottleneck": found.get("bottleneck"),
        "verdict": found["verdict"],
        "findings": [[one["id"], one["severity"]] for one in found["findings"]],
    }


def joined(command: list[str], env: dict[str, str], after_s: float) -> dict[str, Any]:
    """Start the program bare, join it once it has used `after_s` of the processor, and end it."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, env=env, start_new_session=True, **quiet) as child:
        try:
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < 4 * after_s and _cpu_s(child.pid) < after_s:
                time.sleep(0.5)
            return answer(["--pid", str(child.pid), "--record"])
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    process = psutil.Process(pid)
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))


def summary(answers: dict[str, Any]) -> dict[str, int]:
    """Count programs whose planted fault a start finds, those in which joining finds it too, and the rest."""
    both = {name: row for name, row in answers.items() if not row["joined"].get("failed")}
    both = {name: row for name, row in both.items() if not row["started"].get("failed")}

    def ids(row: dict[str, Any], how: str) -> set[str]:
        return {one for one, severity in row[how]["findings"] if severity in SHOWN}

    found = [row for row in both.values() if set(row["right"]) & ids(row, "started")]
    first = [row for row in both.values() if ids(row, "started")]
    return {
        "programs": len(answers),
        "answered_both_ways": len(both),
        "fault_found_by_start": len(found),
        "of_these_by_joining": sum(bool(set(row["right"]) & ids(row, "joined")) for row in found),
        "same_bottleneck": sum(
            row["joined"]["bottleneck"] == row["started"]["bottleneck"] for row in both.values()
        ),
        "first_finding_of_start": len(first),
        "of_these_named_by_joining": sum(
            row["started"]["findings"][0][0] in {one for one, _ in row["joined"]["findings"]} for row in first
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", required=True)
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--only", default="")
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--after", type=float, default=12.0)
    parser.add_argument("--out", type=Path, default=RESULTS / "joined_faults_cpu.json")
    chosen = parser.parse_args()
    num = 0
    for name, fault, dose in programs():
        if num >= chosen.number:
            break
        if chosen.only not in name or name in result_file.read(chosen.out).get("answers", {}):
            continue
        program = chosen.checkout / "lab" / "faults" / "programs" / fault.program
        command = [*shlex.split(chosen.python), str(program), *fault.args, "--dose", str(dose)]
        command += ["--device", "cpu", "--steps", "100000000"]
        env = {**os.environ, **(fault.env if dose else {})}
        row = {
            "right": [fault.id, *fault.implies],
            "joined": joined(command, env, chosen.after),
            "started": answer(["--no-sandbox", "--", "env", *_settings(fault, dose), *command]),
        }
        with result_file.opened(chosen.out) as result:
            result.setdefault("answers", {})[name] = row
            result["summary"] = summary(result["answers"])
        num += 1
        print(name, [row[how].get("findings", row[how]) for how in ("joined", "started")], flush=True)


def _settings(fault: Fault, dose: int) -> list[str]:
    return [f"{name}={value}" for name, value in fault.env.items()] if dose else []


if __name__ == "__main__":
    main()
