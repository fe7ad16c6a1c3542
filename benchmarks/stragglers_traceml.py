"""Run TraceML on the programs of `stragglers.py`, and keep what it says; the reader judges whether it is
right.

    PYTHONPATH=... python benchmarks/stragglers_traceml.py [--device cpu] [--ranks 2] [--delays 100 200]
        [--budget S]

`traceml-ai` must be importable. The steps are marked as its guide says; the last lines of its summary, the
verdict and its reason are kept. One result grows over several calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from stragglers import PHASES, PROGRAM

from lab import result_file
from lab.provenance import RESULTS, without_places

DEADLINE_S = 120


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--delays", type=int, nargs="+", default=[200, 100], help="milliseconds")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which nothing more is begun")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = asked.out or RESULTS / f"stragglers_traceml_{asked.device}.json"
    began_s = time.monotonic()
    cells = [("none", 0), *((phase, delay) for delay in asked.delays for phase in PHASES[asked.device])]
    for fault, delay in cells:
        key = f"{fault} {delay} ms, {asked.ranks} ranks"
        if time.monotonic() - began_s > asked.budget or key in result_file.read(out).get("cells", {}):
            continue
        row = told(fault, delay, asked)
        with result_file.opened(out) as result:
            result["traceml"] = metadata.version("traceml-ai")
            result.setdefault("cells", {})[key] = row
        print(f"{key}: {row['verdict']} {row['why']} {row.get('failed', '')}", flush=True)


def told(fault: str, delay_ms: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what TraceML concluded; the last rank is the slow one."""
    words = ["--fault", fault, "--delay", str(delay_ms / 1e3), "--rank", str(asked.ranks - 1)]
    words += ["--device", asked.device, "--steps", str(asked.steps), "--traceml"]
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(PROGRAM)]
        line += [
            "--nproc-per-node",
            str(asked.ranks),
            "--logs-dir",
            folder,
            "--run-name",
            "one",
            "--args",
            *words,
        ]
        try:
            done = subprocess.run(
                line,
                env=os.environ,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
                cwd=folder,
            )
            end, code = (done.stdout + done.stderr)[-400:], done.returncode
        except subprocess.TimeoutExpired:
            end, code = f"not over after {DEADLINE_S} s", None
        summary = next(Path(folder).rglob("final_summary.json"), None)
        lines = next(Path(folder).rglob("final_summary.txt"), None)
        if summary is None:
            return {"verdict": None, "why": None, "failed": without_places(end), "exit_code": code}
        document, shown = json.loads(summary.read_text()), lines.read_text() if lines else ""
    said = {word: _after(shown, word) for word in ("Verdict", "Why", "Next")}
    return {
        "verdict": said["Verdict"],
        "why": said["Why"],
        "next": said["Next"],
        "exit_code": code,
        "diagnosis": document.get("primary_diagnosis") or document.get("diagnosis"),
    }


def _after(text: str, word: str) -> str | None:
    found = (line.partition(f"{word}:")[2].strip(" |") for line in text.splitlines() if f"{word}:" in line)
    return next(found, None)


if __name__ == "__main__":
    main()
