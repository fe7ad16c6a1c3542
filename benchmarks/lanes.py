"""What fresh runs in lanes take and say, against the same runs one after another.

    python benchmarks/lanes.py [--device cuda] [--lanes 2] [--only same] [--size large] [--pairs 8] [--budget 140]

`same` compares a net with itself and `faster` with a setting that helps, both in fresh processes alone; `tune`
searches. Any verdict on `same` but `undecided` is wrong, since its margin is nothing. Other answers agree if the ratios
lie within 3% of each other or the intervals overlap, and the recipes name the same settings. One result grows over
several calls: what is in it is not measured again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kept
from hardware import RESULTS
from in_process import PROGRAM, agree
from msgspec.structs import replace
from rich.console import Console
from tuning_programs import photographs

from dynotune import knobs, probe
from dynotune.measure.comparison import protocol
from dynotune.measure.live import CompareRequest
from dynotune.report import Progress
from dynotune.schema.errors import DynotuneError
from dynotune.schema.run import RunSpec
from dynotune.search import TuneRequest
from dynotune.search.tune import tune

KINDS = ("same", "faster", "tune")
NOTHING = "env.DYNOTUNE_NOTHING=1"


class Told(Progress):
    """Keeps what is said of lanes."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True))
        self.lanes: list[str] = []

    def say(self, text: str) -> None:
        super().say(text)
        if any(word in text for word in ("lane", "one after another", "left out")):
            self.lanes.append(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--lanes",
        type=int,
        help="as many as there are GPUs, or 2; 1: only the other half",
    )
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--net", default="resnet50")
    parser.add_argument("--size", choices=("small", "large"), default="small")
    parser.add_argument("--faster", default="precision.autocast=bf16", help="settings that help, one arm")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--budget", type=float, default=140.0, help="seconds of each tune")
    parser.add_argument("--try", dest="extra", action="append", default=[], help="of tune, besides what is found")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = asked.out or RESULTS / f"lanes_{asked.device}.json"
    env = os.environ | ({} if asked.device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"})
    gpus = probe.nvml.visible_gpus(env)
    num = asked.lanes or (max(2, len(gpus)) if isinstance(gpus, list) else 2)
    for kind in asked.only or KINDS:
        for lanes in (1, num):
            key = f"{kind} {asked.net}, {lanes} lanes"
            if key in kept.read(out).get("answers", {}):
                continue
            with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as folder:
                photographs(Path(folder))
                command = [sys.executable, str(PROGRAM), asked.net, "--size", asked.size, "--device", asked.device]
                run = RunSpec(command=command, cwd=Path(folder), env=env, base=Path(base), seed=0, lanes=lanes)
                answer = measured(kind, run, asked)
            with kept.opened(out) as result:
                result.setdefault("answers", {})[key] = answer
        if num == 1:
            continue
        with kept.opened(out) as result:
            one, several = (result["answers"][f"{kind} {asked.net}, {lanes} lanes"] for lanes in (1, num))
            result.setdefault("compared", {})[f"{kind} {asked.net}, {num} lanes"] = row = {
                "share_of_time": round(several["wall_s"] / one["wall_s"], 3),
                "agree": agree(one, several),
                "same_recipe": one.get("recipe") == several.get("recipe"),
            }
        print(f"{kind:7} {one['wall_s']:6.1f} s alone, {several['wall_s']:6.1f} s in {num} lanes: {row}", flush=True)


def measured(kind: str, run: RunSpec, asked: argparse.Namespace) -> dict[str, Any]:
    began_s = time.monotonic()
    with Told() as watcher:
        try:
            if kind == "tune":
                found = tuned(run, asked, watcher)
            else:
                words = NOTHING if kind == "same" else asked.faster
                request = CompareRequest(
                    run=replace(run, warmup_steps=asked.warmup, window_steps=asked.steps),
                    candidate=list(map(knobs.parse, words.split())),
                    max_pairs=asked.pairs,
                    # Of what does nothing all pairs are made, whatever their noise.
                    margin=0.0 if kind == "same" else 0.01,
                    in_process="never",
                )
                compared = protocol.compare(request, watcher)
                found = {
                    "verdict": compared.verdict, "speedup": compared.speedup, "ci": compared.ci,
                    "num_pairs": len(compared.pairs), "lanes": [pair.lane for pair in compared.pairs],
                    "pairs": [[pair.baseline_s, pair.candidate_s] for pair in compared.pairs],
                    "warnings": compared.warnings,
                    "failed": None if compared.failed is None else list(compared.failed.last_lines),
                }  # fmt: skip
        except DynotuneError as error:
            found = {"reason": error.message}
    return found | {"said": watcher.lanes, "wall_s": round(time.monotonic() - began_s, 1)}


def tuned(run: RunSpec, asked: argparse.Namespace, watcher: Told) -> dict[str, Any]:
    _, study = tune(TuneRequest(run=run, extra=asked.extra), asked.budget, watcher)
    confirmed = study.confirmed
    return {
        "verdict": confirmed.verdict if confirmed else None,
        "speedup": confirmed.speedup if confirmed else None,
        "ci": confirmed.ci if confirmed else None,
        "recipe": sorted(map(str, study.recipe or [])),
        "phases": [f"{trial.phase} {trial.block} lane {trial.lane}: {trial.wall_s:.1f} s" for trial in study.trials],
        "answer": study.verdict,
    }


if __name__ == "__main__":
    main()
