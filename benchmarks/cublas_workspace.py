"""CUBLAS_WORKSPACE_CONFIG on an NVIDIA GPU: what `dynotune compare` says of the popular advice.

    python benchmarks/cublas_workspace.py [--pairs 12]

Three comparisons: the variable set on a small-matrix inference program and on products of 8192 × 8192
matrices; and taken away from a program that builds a YOLO model, which sets it, before it runs a small
transformer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from lab.provenance import RESULTS, describe, without_places

EXAMPLES = Path(__file__).parents[1] / "examples"
CASES = {
    "small_matrices": ["env.CUBLAS_WORKSPACE_CONFIG=:4096:8", "infer_transformer.py"],
    "large_matrices": ["env.CUBLAS_WORKSPACE_CONFIG=:4096:8", "infer_large_matmul.py"],
    "yolo_then_transformer": ["env.CUBLAS_WORKSPACE_CONFIG=@unset", "yolo_then_transformer.py"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", default="12")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--steps", help="Steps of the window, where the time is short.")
    parser.add_argument("--only", choices=list(CASES), action="append")
    args = parser.parse_args()
    env = {**os.environ, "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": "/tmp"}
    for name in args.only or CASES:
        setting, program = CASES[name]
        target = args.out / f"cublas_{name}.json"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "dynotune",
                "compare",
                setting,
                "--pairs",
                args.pairs,
                "--json",
                str(target),
                *(["--steps", args.steps] if args.steps else []),
                "--",
                sys.executable,
                str(EXAMPLES / program),
                "--steps",
                "1000000",
            ],
            env=env,
        )
        if done.returncode:
            print(f"{name}: exit code {done.returncode}", flush=True)
            continue
        comparison = json.loads(target.read_text())
        target.write_text(
            without_places(json.dumps({**describe(), "comparison": comparison}, indent=1)) + "\n"
        )


if __name__ == "__main__":
    main()
