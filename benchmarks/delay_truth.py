"""Do delays name the critical part? Programs whose critical part is known by construction, as `diagnose`
delays them.

    python benchmarks/delay_truth.py [--device cuda] [--only NAME]… [--until-s S] [--out FILE]

Each program runs once; all parts that it has are delayed, also those that `diagnose` would leave out. A
program counts as right if the critical part's slope exceeds one half and no other part's does, apart from the
part that it is in: a function runs on the host, and the copies are in the stream of the kernels.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from dynotune.measure.live import Delay, TaskRunner, checked_facts, delay_tests, machine_lock
from dynotune.report import Progress
from dynotune.schema.delays import CRITICAL_SLOPE
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from lab import result_file
from lab.provenance import RESULTS

PROGRAM = Path(__file__).absolute().parent / "programs" / "delayed" / "parts.py"
CASES = {
    "cpu": [
        *(("host", step_ms) for step_ms in (1, 5, 25, 100, 500)),
        *(("loader", step_ms) for step_ms in (5, 25, 100)),
        *(("function", step_ms) for step_ms in (5, 50)),
    ],
    "cuda": [
        *(("host", step_ms) for step_ms in (2, 10, 60, 300)),
        # Below, launching the products takes longer than the products.
        *(("device", step_ms) for step_ms in (4, 10, 60, 300)),
        *(("loader", step_ms) for step_ms in (5, 25)),
        *(("transfer", step_ms) for step_ms in (5, 25)),
        *(("function", step_ms) for step_ms in (10, 50)),
    ],
}
"""By device: the critical part, and the milliseconds that it takes."""
WITHIN = {"function": ["host"], "transfer": ["device"]}
"""Of a critical part: the part that it is in, which is critical, too."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=tuple(CASES), default="cpu")
    parser.add_argument("--only", action="append")
    parser.add_argument(
        "--until-s", type=float, default=math.inf, help="begin no program after so many seconds"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out, until_s = given.out or RESULTS / f"delay_truth_{given.device}.json", time.monotonic() + given.until_s
    for critical, step_ms in CASES[given.device]:
        name = f"{critical}-{step_ms}"
        if (given.only and name not in given.only) or time.monotonic() > until_s:
            continue
        if name in result_file.read(out).get("programs", {}):
            continue
        row = tested(critical, step_ms, given.device)
        with result_file.opened(out) as result:
            result.setdefault("programs", {})[name] = row
    show(result_file.read(out).get("programs", {}))


def tested(critical: str, step_ms: float, device: str) -> dict[str, Any]:
    options = ["--critical", critical, "--step-ms", str(step_ms), "--device", device]
    hidden = {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as base, Progress(Console(stderr=True)) as progress:
        command = [sys.executable, str(PROGRAM), *options]
        run = RunSpec(command=command, cwd=Path(base), env=os.environ | hidden, base=Path(base))
        facts = checked_facts(run, None, progress)
        with (
            machine_lock(run, progress),
            TaskRunner(run, progress, facts=facts, label=critical, observe=True) as runner,
        ):
            found = delay_tests(runner, parts(critical, device))
            runner.end()
    if isinstance(found, Unknown):
        return {"critical": critical, "failed": found.reason, "right": False}
    slopes = {test.part: test.slope for test in found.tests}
    expected = {critical, *WITHIN.get(critical, [])}
    above = {part for part, slope in slopes.items() if slope > CRITICAL_SLOPE}
    return {"critical": critical, "right": above == expected, "delays": msgspec.to_builtins(found)}


def parts(critical: str, device: str) -> list[Delay]:
    found = [Delay(part="host"), Delay(part="loader")]
    if device == "cuda":
        found += (
            [Delay(part="device"), Delay(part="transfer")]
            if critical == "transfer"
            else [Delay(part="device")]
        )
    if critical == "function":
        lines = PROGRAM.read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if text.startswith("def prepared"))
        found.append(Delay(part="function", place="prepared", site={"file": str(PROGRAM), "line": str(line)}))
    return found


def show(rows: dict[str, Any]) -> None:
    for name, row in rows.items():
        tests = row.get("delays", {}).get("tests", [])
        slopes = "  ".join(
            f"{one['part']} {one['slope']:5.2f} ({one['ci'][0]:.2f}, {one['ci'][1]:.2f})" for one in tests
        )
        wall_s = row.get("delays", {}).get("wall_s", 0.0)
        print(
            f"{name:14} {'right' if row['right'] else 'WRONG':6} {wall_s:5.1f} s  {slopes}  "
            f"{row.get('failed', '')}"
        )
    print(f"{sum(row['right'] for row in rows.values())} of {len(rows)} right", flush=True)


if __name__ == "__main__":
    main()
