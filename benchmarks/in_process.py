"""What `compare` says within one run against what it says in fresh processes, of the same settings and
programs.

    python benchmarks/in_process.py [--device cuda] [--pairs 6] [--only gpt]

They agree where the ratios lie within 3% of each other or the intervals overlap. A knob of which they do not
is not to be switched. One result grows over several calls: only where one of the two had no answer both are
measured again.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dynotune import knobs
from dynotune.measure.bench import protocol
from dynotune.measure.live import CompareRequest
from dynotune.report import Progress
from dynotune.schema.errors import DynotuneError
from dynotune.schema.run import RunSpec
from lab import result_file
from lab.provenance import RESULTS
from lab.tuning.programs import TRAIN

LIKELY = [
    "matmul.fp32_precision=high",
    "precision.autocast=bf16",
    "compile.mode=default",
    "optimizer.fused=true",
]
LOADED = [
    "loader.num_workers=4",
    "loader.prefetch_factor=8",
    "loader.pin_memory=true",
    "transfer.non_blocking=true",
]
CONVOLUTIONS = ["layout.channels_last=true", "cudnn.deterministic=true"]
SETTINGS: dict[str, dict[str, list[str]]] = {
    "cuda": {
        "gpt": [*LIKELY, "matmul.fp32_precision=high precision.autocast=bf16", "precision.autocast=fp16"],
        "vit": [*LIKELY, *LOADED],
        "resnet50": [*LIKELY, *LOADED, *CONVOLUTIONS],
        "bert": LIKELY,
        "starved": LOADED,
        "mlp": [*LIKELY, *LOADED],
    },
    "cpu": {
        "mlp": ["host.num_threads=1", "optimizer.fused=true", "loader.num_workers=1"],
        "gpt": ["host.num_threads=1", "precision.autocast=bf16"],
        "starved": ["loader.num_workers=1", "loader.num_workers=2"],
        "resnet50": ["layout.channels_last=true", "cudnn.deterministic=true"],
    },
}
"""By device and net; several words are one arm."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--budget", type=float, default=180.0, help="seconds for each comparison")
    parser.add_argument("--only", action="append", choices=list(SETTINGS["cuda"]))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    out = asked.out or RESULTS / f"in_process_{asked.device}.json"
    with tempfile.TemporaryDirectory() as base, Progress(Console(stderr=True)) as progress:
        for name in asked.only or SETTINGS[asked.device]:
            size = "large" if asked.device == "cuda" else "small"
            run = RunSpec(
                command=[sys.executable, str(TRAIN), name, "--size", size, "--device", asked.device],
                cwd=Path.cwd(),
                env=os.environ | ({} if asked.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
                base=Path(base),
            )
            for words in SETTINGS[asked.device][name]:
                known = result_file.read(out).get("answers", {}).get(f"{name}: {words}", {})
                if known.get("agree") is not None:
                    continue
                within, fresh = (measured(run, words, how, asked, progress) for how in ("only", "never"))
                row = {"within": within, "fresh": fresh, "agree": agree(within, fresh)}
                with result_file.opened(out) as result:
                    result.setdefault("answers", {})[f"{name}: {words}"] = row
                print(f"{name:14} {words:48} {told(within)} {told(fresh)}  {row['agree']}", flush=True)


def measured(
    run: RunSpec, words: str, how: Literal["only", "never"], asked: argparse.Namespace, progress: Progress
) -> dict[str, Any]:
    began_s = time.monotonic()
    try:
        request = CompareRequest(
            run=run,
            candidate=list(map(knobs.parse, words.split())),
            max_pairs=asked.pairs,
            budget_s=asked.budget,
            in_process=how,
        )
        found = protocol.compare(request, progress)
    except DynotuneError as error:
        return {"reason": error.message, "wall_s": round(time.monotonic() - began_s, 1)}
    return {
        "verdict": found.verdict,
        "speedup": found.speedup,
        "ci": found.ci,
        "num_pairs": len(found.pairs),
        "reason": found.reason if found.failed is None else "the command failed",
        "wall_s": round(time.monotonic() - began_s, 1),
    }


def agree(within: dict[str, Any], fresh: dict[str, Any]) -> bool | None:
    """None where one of them has no answer."""
    if not within.get("ci") or not fresh.get("ci"):
        return None
    (low, high), (other_low, other_high) = within["ci"], fresh["ci"]
    near = abs(math.log(within["speedup"] / fresh["speedup"])) <= math.log(1.03)
    return near or (low <= other_high and other_low <= high)


def told(answer: dict[str, Any]) -> str:
    if not answer.get("speedup"):
        return f"{'none':>24} {answer['wall_s']:5.0f} s"
    low, high = answer["ci"] or (math.nan, math.nan)
    return f"{answer['speedup']:6.3f} ({low:6.3f} to {high:6.3f}) {answer['wall_s']:5.0f} s"


if __name__ == "__main__":
    main()
