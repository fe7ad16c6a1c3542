"""What `compare` says of other numbers of workers where the truth is known: each sample takes 20 ms to load.

    python benchmarks/bursts.py [--tree NAME=FOLDER] [--budget 100s] [--out FILE]

N workers deliver N batches at once, so that steps that are timed can hold a burst more or less. `--tree`
repeats all with the package `dynotune` in another folder, such as an earlier version. Results grow over
several calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS

PROGRAM = Path(__file__).parent / "programs" / "sleeping_loader.py"
WORKERS = ((4, 6), (3, 5), (8, 16), (6, 4))
HOW = {"within one run": "only", "fresh pairs": "never"}


def compared(before: int, after: int, how: str, budget: str, tree: Path | None) -> dict[str, Any]:
    """Return the answer, beside the true ratio of the two loaders' speeds."""
    env = {**os.environ, **({"PYTHONPATH": str(tree)} if tree else {})}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        words = [
            sys.executable,
            "-m",
            "dynotune",
            "compare",
            f"loader.num_workers={after}",
            "--in-process",
            HOW[how],
        ]
        words += ["--budget", budget, "--no-lock", "--run-dir", folder, "--json", str(out), "--"]
        program = [sys.executable, str(PROGRAM), str(before)]
        subprocess.run([*words, *program], env=env, check=False, capture_output=True, cwd=folder)
        answer = json.loads(out.read_text())
    told = {name: answer[name] for name in ("verdict", "speedup", "ci", "num_pairs", "reason")}
    return {"truth": after / before, **told}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", metavar="NAME=FOLDER", default="this=")
    parser.add_argument("--budget", default="100s")
    parser.add_argument("--out", type=Path, default=RESULTS / "bursts_cpu.json")
    asked = parser.parse_args()
    name, _, folder = asked.tree.partition("=")
    for how in HOW:
        for before, after in WORKERS:
            key = f"{name}: {before} to {after} workers, {how}"
            if key not in result_file.read(asked.out).get("answers", {}):
                answer = compared(
                    before, after, how, asked.budget, Path(folder).resolve() if folder else None
                )
                with result_file.opened(asked.out) as result:
                    result.setdefault("answers", {})[key] = answer
            row = result_file.read(asked.out)["answers"][key]
            ends = " to ".join(f"{end:.2f}" for end in row["ci"] or ())
            print(
                f"{key:44} truth {row['truth']:.2f}: {row['speedup'] or float('nan'):.2f} ({ends})",
                flush=True,
            )


if __name__ == "__main__":
    main()
