"""Screening inside one process against `compare` in fresh ones: what each says of the same settings, and what it costs.

    python benchmarks/screening.py [--device cuda] [--pairs 6] [--only transformer] [--left 120]

Some settings have an effect, some have none on that program. A setting that is not screened because it lasts beyond a
switch is screened here all the same, apart from the others, so that the reason can be seen to hold.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware import RESULTS, describe, without_places
from rich.console import Console

from dynotune import knobs
from dynotune.measure.comparison import protocol
from dynotune.measure.live import CompareRequest, facts_of, machine_lock, screening
from dynotune.report import Progress
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import DynotuneError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Estimate

PROGRAM = Path(__file__).parent / "programs" / "three_nets.py"
CASES = {
    "cpu": {
        "transformer": ["host.num_threads=1", "matmul.fp32_precision=high"],
        "convolutions": ["host.num_threads=1", "precision.autocast=bf16", "matmul.fp32_precision=high"],
        "loader": ["host.num_threads=1"],
    },
    "cuda": {
        "transformer": [
            "matmul.fp32_precision=high",
            "precision.autocast=bf16",
            "matmul.fp32_precision=high precision.autocast=bf16",
            "cudnn.deterministic=true",
        ],
        "convolutions": [
            "cudnn.benchmark=true",
            "cudnn.deterministic=true",
            "precision.autocast=bf16",
            "matmul.fp32_precision=high",
        ],
        "loader": ["precision.autocast=bf16", "matmul.fp32_precision=high"],
    },
}


@dataclass(frozen=True)
class Arm:
    """What `screening` asks of an arm."""

    settings: tuple[Setting, ...]

    @property
    def key(self) -> str:
        return " ".join(map(str, self.settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=list(CASES), default="cpu")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--left", type=float, default=120.0, help="Seconds for each screening.")
    parser.add_argument("--only", action="append")
    parser.add_argument("--skip-compare", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    target = args.out / f"screening_{args.device}.json"
    result: dict[str, Any] = {**describe(), "num_blocks": screening.NUM_BLOCKS, "max_pairs": args.pairs, "programs": {}}
    with tempfile.TemporaryDirectory() as base, Progress(Console(stderr=True)) as progress:
        for net in args.only or CASES[args.device]:
            arms = [Arm(tuple(map(knobs.parse, text.split()))) for text in CASES[args.device][net]]
            run = RunSpec(
                command=[sys.executable, str(PROGRAM), "--net", net, "--device", args.device],
                cwd=Path.cwd(),
                env=dict(os.environ),
                base=Path(base),
            )
            one = result["programs"][net] = screen(run, arms, args.left, progress)
            for each in arms if not args.skip_compare else ():
                one["arms"][each.key]["compared"] = in_fresh_processes(run, each, args.pairs, progress)
                show(net, each.key, one["arms"][each.key])
                save(target, result)
            save(target, result)


def screen(run: RunSpec, arms: Sequence[Arm], left_s: float, progress: Progress) -> dict[str, Any]:
    """What screening says of each arm, and of those that it leaves out, what it would say."""
    facts = facts_of(run)
    with machine_lock(run, progress):
        found = screening.screened(run, arms, left_s, facts=facts, watcher=progress)
        left_out = [each for each in arms if any(map(screening.why_not_in_process, each.settings))]
        # The reasons are put aside: what comes of that is shown beside what is so.
        reasons, screening.LASTS = screening.LASTS, {}
        try:
            anyway = screening.screened(run, left_out, left_s, facts=facts, watcher=progress) if left_out else None
        finally:
            screening.LASTS = reasons
    rows: dict[str, dict[str, Any]] = {each.key: {} for each in arms}
    for estimate in found.estimates:
        rows[estimate.arm]["screened"] = row(estimate)
    for key, reason in found.given_up.items():
        rows[key]["given_up"] = reason
    for estimate in anyway.estimates if anyway is not None else ():
        rows[estimate.arm]["if_it_were_screened"] = row(estimate)
    return {
        "stretch_steps": found.stretch_steps,
        "num_void": found.num_void,
        "reason": found.reason,
        "wall_s": found.wall_s,
        "wall_s_an_arm": found.wall_s / max(1, len(arms) - len(left_out)),
        "arms": rows,
    }


def row(estimate: Estimate) -> dict[str, Any]:
    return {"speedup": estimate.speedup, "ci": estimate.ci, "num_blocks": estimate.num_blocks, "p": estimate.p}


def in_fresh_processes(run: RunSpec, each: Arm, max_pairs: int, progress: Progress) -> dict[str, Any]:
    began_s = time.monotonic()
    try:
        request = CompareRequest(run=run, candidate=list(each.settings), max_pairs=max_pairs)
        found: Comparison = protocol.compare(request, progress)
    except DynotuneError as error:
        return {"error": error.message, "wall_s": time.monotonic() - began_s}
    return {
        "verdict": found.verdict,
        "speedup": found.speedup,
        "ci": found.ci,
        "num_pairs": len(found.pairs),
        "num_void": len(found.voided),
        "wall_s": time.monotonic() - began_s,
    }


def show(net: str, key: str, found: dict[str, Any]) -> None:
    screened, compared = found.get("screened") or found.get("if_it_were_screened"), found["compared"]
    difference = ""
    if screened and compared.get("speedup"):
        difference = f"{100 * math.log(screened['speedup'] / compared['speedup']):+.1f}%"
    print(net, key, json.dumps(screened), json.dumps(compared), difference, flush=True)


def save(target: Path, result: dict[str, Any]) -> None:
    target.write_text(without_places(json.dumps(result, indent=1)) + "\n")


if __name__ == "__main__":
    main()
