"""Compare settings of DistributedDataParallel in fresh runs, and tell the exchange that bounds their gain.

    python benchmarks/ddp.py [--device cuda] [--ranks 2] [--only gpt] [--blocks 4] [--time-limit 520]
        [--out FILE]
    python benchmarks/ddp.py --diagnose ...

A block is a run of the net as it is and one of each setting, in random order, and the next block in the
opposite order: all settings share the baseline's runs. Each setting's verdict is that of its pairs, as
`compare` would judge them. With `--diagnose` each net is diagnosed first: a gain beyond the share of a step
that waits for communication, and for copies of buckets, would break the bound. One result grows over several
calls: what is in it is not measured again, and nothing is begun after the time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from programs.ddp_net import NETS

from dynotune import knobs
from dynotune.measure.comparison import judge, objective
from dynotune.measure.live import facts_of, run_settings
from dynotune.schema.comparison import Pair
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from lab import result_file
from lab.provenance import RESULTS

PROGRAMS = Path(__file__).parent / "programs"
SETTINGS = (
    "ddp.gradient_as_bucket_view=true",
    "ddp.static_graph=true",
    "ddp.bucket_cap_mb=100",
    "env.NCCL_ALGO=Ring",
    "env.NCCL_PROTO=LL",
)
BASELINE = ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(NETS))
    parser.add_argument("--setting", action="append")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--diagnose", action="store_true")
    parser.add_argument(
        "--time-limit", type=float, default=1e9, help="seconds after which nothing more is begun"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began_s = time.monotonic()
    out = asked.out or RESULTS / f"ddp_{asked.device}.json"
    env = os.environ | (
        {} if asked.device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    )
    nets, settings = asked.only or list(NETS), asked.setting or list(SETTINGS)

    def has_time() -> bool:
        return time.monotonic() - began_s < asked.time_limit

    commands = {net: [sys.executable, str(PROGRAMS / "ranks.py"), str(asked.ranks)] for net in nets}
    for net, command in commands.items():
        command += [str(PROGRAMS / "ddp_net.py"), net, "--device", asked.device, "--steps", "100000"]
    for net in nets if asked.diagnose else []:
        name = f"{net}, {asked.ranks} ranks"
        if has_time() and name not in result_file.read(out).get("diagnosed", {}):
            told = called(["diagnose"], commands[net], env)
            with result_file.opened(out) as result:
                result.setdefault("diagnosed", {})[name] = diagnosed(told)
    facts: Facts | None = None
    for block in range(asked.blocks):
        for net in nets:
            name = f"{net}, {asked.ranks} ranks"
            arms = [BASELINE, *settings]
            # Every second block runs in the opposite order, so that each run is before and after the net as
            # it is.
            random.Random(f"{name} {block // 2}").shuffle(arms)
            arms = arms[:: -1 if block % 2 else 1]
            for arm in arms:
                if not has_time() or arm in result_file.read(out).get("runs", {}).get(name, {}).get(
                    str(block), {}
                ):
                    continue
                with tempfile.TemporaryDirectory() as base:
                    run = RunSpec(command=commands[net], cwd=Path.cwd(), env=env, base=Path(base), seed=0)
                    facts = facts or facts_of(run)
                    row = measured(run, arm, facts, asked)
                with result_file.opened(out) as result:
                    runs = result.setdefault("runs", {}).setdefault(name, {}).setdefault(str(block), {})
                    runs[arm] = {**row, "at_s": time.time()}
                print(f"{name} block {block}: {arm or 'as it is':34} {row}", flush=True)
    with result_file.opened(out) as result:
        result["answers"] = answers(result.get("runs", {}), asked.blocks)
        for key, row in result["answers"].items():
            bound = result.get("diagnosed", {}).get(key.partition(":")[0], {}).get("communication")
            print(f"{key:52} {row['verdict']} {row['speedup']} {row['ci']} exchange {bound}", flush=True)


def measured(run: RunSpec, arm: str, facts: Facts, asked: argparse.Namespace) -> dict[str, Any]:
    began_s = time.monotonic()
    folder = run.base / "run"
    folder.mkdir()
    settings = [knobs.parse(arm)] if arm else []
    steps = {"warmup_steps": asked.warmup, "window_steps": asked.steps}
    try:
        outcome = run_settings(
            run, settings, label=f"a run with {arm}", cache_folder=run.base / "caches", folder=folder,
            purpose="measured", facts=facts, limit_s=90.0, **steps,
        )  # fmt: skip
        found: dict[str, Any] = {"step_s": objective.value(outcome, "throughput", "step")}
        # Every rank reads its settings back.
        found["readback"] = [[one.found, one.ok] for one in outcome.run.readback]
        if outcome.rejected:
            found = {"reason": f"not as asked: {outcome.rejected[0].detail}"}
    except DynotuneError as error:
        found = {"reason": error.message}
    return found | {"wall_s": round(time.monotonic() - began_s, 1)}


def answers(runs: dict[str, Any], most: int) -> dict[str, Any]:
    """Judge each setting by its pairs: in each whole block its run, and that of the net as it is."""
    found = {}
    for name, blocks in runs.items():
        for arm in {arm for rows in blocks.values() for arm in rows if arm != BASELINE}:
            pairs, reasons = [], []
            for _, rows in sorted(blocks.items(), key=lambda item: int(item[0])):
                both = [rows.get(one, {}) for one in (BASELINE, arm)]
                if all("step_s" in one for one in both):
                    first = "baseline" if both[0]["at_s"] < both[1]["at_s"] else "candidate"
                    pairs.append(Pair(first, *(one["step_s"] for one in both)))
                reasons += [one["reason"] for one in both if "reason" in one]
            max_pairs = max(2, most - most % 2)
            told = judge(pairs[:max_pairs], max_pairs=max_pairs, ended=True)
            found[f"{name}: {arm}"] = {
                "verdict": told.verdict, "speedup": told.speedup, "ci": told.ci, "num_pairs": len(pairs),
                "pairs": [[pair.baseline_s, pair.candidate_s] for pair in pairs], "reasons": reasons,
            }  # fmt: skip
    return found


def called(words: list[str], command: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Return what the subcommand said as JSON, or the end of its words."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        line = [
            sys.executable,
            "-m",
            "dynotune",
            *words,
            "--run-dir",
            folder,
            "--json",
            str(file),
            "--",
            *command,
        ]
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        told = (
            dict(json.loads(file.read_text())) if file.is_file() else {"reason": done.stderr.strip()[-600:]}
        )
    return told | {"wall_s": round(time.monotonic() - began_s, 1)}


def diagnosed(told: dict[str, Any]) -> dict[str, Any]:
    shares = told.get("shares") or {}
    found = [[one["id"], one["severity"], one["share"]] for one in told.get("findings", [])]
    keys = {name: shares.get(name) for name in ("communication", "host", "device")}
    return {**keys, "verdict": told.get("verdict"), "findings": found, "reason": told.get("reason")}


if __name__ == "__main__":
    main()
