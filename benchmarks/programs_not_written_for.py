"""What dynotune counts and sets in programs that it was not written for, against what these say themselves.

    python benchmarks/programs_not_written_for.py [--device cuda] [--only NAME] [--out FILE]

The programs come with lightning, transformers, accelerate, torch and ultralytics; those whose packages are
missing are skipped. A program's own count is the truth: of its framework, of the driver in lab/drivers/, or,
where it does not count, of a witness in its process that uses other means than dynotune. Needs no network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lab.programs_not_written_for import PROGRAMS, Program, agrees, compare, run
from lab.provenance import RESULTS, describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help="Programs whose name holds this.")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    out = args.out or RESULTS / f"programs_{args.device}.json"
    rows: list[dict[str, Any]] = []
    for program in PROGRAMS:
        if args.only not in program.name:
            continue
        for make in (run, compare) if program.samples_a_step else (run,):
            rows.append(row_of(make, program, args.device))
            print(line(rows[-1]), flush=True)
            out.write_text(json.dumps({**describe(), "rows": rows}, indent=1) + "\n")


def row_of(
    make: Callable[[Program, Path, str], dict[str, Any]], program: Program, device: str
) -> dict[str, Any]:
    """What `make` finds of the program in a folder of its own, or why there is nothing."""
    if missing := program.missing():
        return {"program": program.name, "skipped": "without " + ", ".join(missing)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            row = make(program, Path(folder), device)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return {"program": program.name, "failed": str(error), "agrees": False}
    return {**row, "agrees": agrees(row)}


def line(row: Mapping[str, Any]) -> str:
    """For people: counted/truth, found/asked."""
    if "skipped" in row or "failed" in row:
        return f"{row['program']}\n    {row.get('skipped') or row['failed']}"
    found = ", ".join(f"{knob}={entry['found']}/{entry['asked']}" for knob, entry in row["settings"].items())
    return (
        f"{row['program']}\n    steps {row['steps']['counted']}/{row['steps']['truth']}"
        f"  samples {row['samples']['counted']}/{row['samples']['truth']}"
        f"  {found}  {'agrees' if row['agrees'] else 'DIFFERS'}  {row['wall_s']} s"
    )


if __name__ == "__main__":
    main()
