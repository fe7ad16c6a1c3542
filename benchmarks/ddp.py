"""Compare settings of DistributedDataParallel, in pairs of fresh runs, and the exchange that bounds their gain.

    python benchmarks/ddp.py [--device cuda] [--ranks 2] [--only gpt] [--pairs 4] [--budget 60] [--out FILE]

Each net is diagnosed first: a gain beyond the share of a step that waits for communication, and for copies of buckets,
would break the bound. One result grows over several calls: what is in it is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kept
from hardware import RESULTS
from programs.ddp_net import NETS

PROGRAM = Path(__file__).parent / "programs" / "ddp_net.py"
SETTINGS = ("ddp.gradient_as_bucket_view=true", "ddp.comm_hook=bf16", "ddp.bucket_cap_mb=100", "ddp.static_graph=true")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(NETS))
    parser.add_argument("--setting", action="append")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--budget", default="60s", help="of each comparison")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = asked.out or RESULTS / f"ddp_{asked.device}.json"
    cpu = {} if asked.device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    env = os.environ | cpu
    for net in asked.only or NETS:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(asked.ranks)]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command += [str(PROGRAM), net, "--device", asked.device]
        name = f"{net}, {asked.ranks} ranks"
        if name not in kept.read(out).get("diagnosed", {}):
            told = called(["diagnose"], command, env)
            with kept.opened(out) as result:
                result.setdefault("diagnosed", {})[name] = diagnosed(told)
        for setting in asked.setting or SETTINGS:
            key = f"{name}: {setting}"
            if key in kept.read(out).get("answers", {}):
                continue
            how = ["--pairs", str(asked.pairs), "--budget", asked.budget, "--in-process", "never"]
            told = called(["compare", *how, setting], command, env)
            with kept.opened(out) as result:
                row = compared(told)
                result.setdefault("answers", {})[key] = row
                bound = result["diagnosed"][name].get("communication")
            print(f"{key:52} {row.get('verdict')} {row.get('speedup')} {row.get('ci')} of {bound}", flush=True)


def called(words: list[str], command: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return what the subcommand said as JSON, or the end of its words."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        line = [sys.executable, "-m", "dynotune", *words, "--run-dir", folder, "--json", str(file), "--", *command]
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        told = dict(json.loads(file.read_text())) if file.is_file() else {"reason": done.stderr.strip()[-600:]}
    return told | {"wall_s": round(time.monotonic() - began_s, 1)}


def compared(told: dict[str, Any]) -> dict[str, Any]:
    row = {name: told.get(name) for name in ("verdict", "speedup", "ci", "reason", "wall_s", "warnings")}
    return row | {"pairs": [[pair["baseline_s"], pair["candidate_s"]] for pair in told.get("pairs", [])]}


def diagnosed(told: dict[str, Any]) -> dict[str, Any]:
    shares = told.get("shares") or {}
    found = [[one["id"], one["severity"], one["share"]] for one in told.get("findings", [])]
    keys = {name: shares.get(name) for name in ("communication", "host", "device")}
    return {**keys, "verdict": told.get("verdict"), "findings": found, "reason": told.get("reason")}


if __name__ == "__main__":
    main()
