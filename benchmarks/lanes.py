"""What fresh runs in lanes take and say, against the same runs one after another.

    python benchmarks/lanes.py [--device cuda] [--lanes 2] [--only same] [--net gpt] [--time-limit 500]

`same` compares a net with itself and `faster` with a setting that helps, both in fresh processes alone;
`tune` searches. Any verdict on `same` but `undecided` is wrong, since its margin is nothing; `aa` does
nothing else, in lanes, and its groups of 4 pairs (two blocks, so two lanes) are judged each by itself. Other
answers agree if the ratios lie within 3% of each other or the intervals overlap, and the recipes name the
same settings. One result grows over several
calls: what is in it is not measured again, and nothing is begun after the time limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from in_process import agree
from msgspec.structs import replace
from programs.ddp_net import NETS
from rich.console import Console

from dynotune import knobs, probe
from dynotune.measure.bench import protocol
from dynotune.measure.comparison import judge
from dynotune.measure.live import CompareRequest
from dynotune.report import Progress
from dynotune.schema.comparison import Pair
from dynotune.schema.errors import DynotuneError
from dynotune.schema.run import RunSpec
from dynotune.search import TuneRequest
from dynotune.search.tune import tune
from lab import result_file
from lab.provenance import RESULTS

PROGRAM = Path(__file__).parent / "programs" / "lane_net.py"
KINDS = ("same", "faster", "tune", "aa")
# No run can switch these, so that `tune` has fresh runs to make, and lanes something to save.
TRIED = ("alloc.expandable_segments", "cudnn.benchmark")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--lanes",
        type=int,
        help="as many as there are GPUs, or 2; 1: only the other half",
    )
    parser.add_argument(
        "--apart", action="store_true", help="leave out one lane, which another call measures"
    )
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--net", action="append", choices=[*NETS, "unet"], help="all of them without")
    parser.add_argument("--faster", default="precision.autocast=bf16", help="settings that help, one arm")
    parser.add_argument("--pairs", type=int, default=8, help="of same and faster")
    parser.add_argument("--aa-pairs", type=int, default=12, help="pairs of each run of aa, a multiple of 4")
    parser.add_argument("--groups", type=int, default=40, help="of pairs of one arm, to be judged by aa")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of each tune")
    parser.add_argument(
        "--try", dest="extra", action="append", help=f"of tune, besides what is found; {TRIED}"
    )
    parser.add_argument(
        "--time-limit", type=float, default=1e9, help="seconds after which nothing more is begun"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    began_s = time.monotonic()
    out = asked.out or RESULTS / f"lanes_{asked.device}.json"
    env = os.environ | (
        {} if asked.device == "cuda" else {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    )
    gpus = probe.nvml.visible_gpus(env)
    num = asked.lanes or (max(2, len(gpus)) if isinstance(gpus, list) else 2)
    for key, kind, net, lanes in jobs(asked, num):
        if key in result_file.read(out).get("answers", {}):
            continue
        if time.monotonic() - began_s > asked.time_limit or (
            kind == "aa" and num_groups(out, num) >= asked.groups
        ):
            continue
        with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(PROGRAM), net, "--device", asked.device]
            command += ["--large"] if asked.device == "cuda" else []
            # One process may measure on each GPU, if each sees only its own.
            run = RunSpec(
                command=command, cwd=Path(folder), env=env, base=Path(base), seed=0, lanes=lanes, lock=False
            )
            answer = measured(kind, run, asked)
        with result_file.opened(out) as result:
            result.setdefault("answers", {})[key] = answer
        print(f"{key}: {answer['wall_s']} s, {answer.get('verdict')} {answer.get('reason', '')}", flush=True)
    with result_file.opened(out) as result:
        result["compared"] = compared(result.get("answers", {}))
        result["aa"] = judged(result.get("answers", {}), num)
        print_table(result["compared"], result["aa"])


def jobs(asked: argparse.Namespace, num: int) -> list[tuple[str, str, str, int]]:
    """Return what there is to measure: its key, kind, net and number of lanes."""
    nets, kinds = asked.net or [*NETS, "unet"], asked.only or KINDS
    found = []
    for kind in kinds:
        # Each run of `same` and `faster` is of one net, the first; `aa` goes on until there are groups
        # enough.
        of = nets if kind == "tune" else [f"{nets[at % len(nets)]} {at}" for at in range(asked.groups)]
        for name in of if kind in ("tune", "aa") else nets[:1]:
            for lanes in (num,) if kind == "aa" or asked.apart else sorted({1, num}):
                found.append((f"{kind} {name}, {lanes} lanes", kind, name.split()[0], lanes))
    return [one for one in found if one[1] != "aa" or num > 1]


def compared(answers: dict[str, Any]) -> dict[str, Any]:
    """Return, by kind, net and number of lanes, the share of the time that lanes took, and whether answers
    agree."""
    rows = {}
    for key, several in answers.items():
        alone = f"{key.rpartition(', ')[0]}, 1 lanes"
        if key != alone and (one := answers.get(alone)) is not None:
            rows[key] = {
                "alone_s": one["wall_s"],
                "lanes_s": several["wall_s"],
                "share_of_time": round(several["wall_s"] / one["wall_s"], 3),
                "agree": agree(one, several),
                "same_recipe": one.get("recipe") == several.get("recipe"),
                "recipes": [one.get("recipe"), several.get("recipe")],
                "in_lanes": any("side by side" in text for text in several.get("lane_notes", [])),
            }
    return rows


def judged(answers: dict[str, Any], num: int) -> dict[str, int]:
    """Count verdicts on groups of 4 pairs of one arm in lanes, each looked at as a comparison looks at its
    pairs."""
    found: dict[str, int] = {}
    for key, answer in answers.items():
        if not (key.startswith("aa ") and key.endswith(f", {num} lanes") and max(answer.get("lanes") or [0])):
            continue
        pairs = [Pair(first, *times) for first, times in zip(answer["firsts"], answer["pairs"], strict=True)]
        for begin in range(0, len(pairs) - 3, 4):
            looks = (judge(pairs[begin : begin + num], max_pairs=4, margin=0.0) for num in (2, 3, 4))
            verdict = next((one.verdict for one in looks if one.finished), None)
            found[str(verdict)] = found.get(str(verdict), 0) + 1
    return found


def num_groups(out: Path, num: int) -> int:
    return sum(judged(result_file.read(out).get("answers", {}), num).values())


def print_table(rows: dict[str, Any], verdicts: dict[str, int]) -> None:
    for key, row in rows.items():
        told = f"{row['alone_s']:6.1f} s alone, {row['lanes_s']:6.1f} s in lanes, {row['share_of_time']:.2f}"
        print(
            f"{key:24} {told}  agree {row['agree']}  same recipe {row['same_recipe']}  lanes "
            f"{row['in_lanes']}"
        )
    print(f"One arm against itself in lanes, groups of 4 pairs: {verdicts}", flush=True)


def measured(kind: str, run: RunSpec, asked: argparse.Namespace) -> dict[str, Any]:
    began_s = time.monotonic()
    with Told() as watcher:
        try:
            if kind == "tune":
                found = tuned(run, asked, watcher)
            else:
                is_same = kind in ("same", "aa")
                words = NOTHING if is_same else asked.faster
                request = CompareRequest(
                    run=replace(run, warmup_steps=asked.warmup, window_steps=asked.steps),
                    candidate=list(map(knobs.parse, words.split())),
                    max_pairs=asked.aa_pairs if kind == "aa" else asked.pairs,
                    # Of what does nothing all pairs are made, whatever their noise.
                    margin=0.0 if is_same else 0.01,
                    in_process="never",
                )
                told = protocol.compare(request, watcher)
                found = {
                    "verdict": told.verdict, "speedup": told.speedup, "ci": told.ci,
                    "num_pairs": len(told.pairs), "lanes": [pair.lane for pair in told.pairs],
                    "firsts": [pair.first for pair in told.pairs],
                    "pairs": [[pair.baseline_s, pair.candidate_s] for pair in told.pairs],
                    "num_void": len(told.voided), "warnings": told.warnings, "lane_notes": told.lane_notes,
                    "failed": None if told.failed is None else list(told.failed.last_lines),
                }  # fmt: skip
        except DynotuneError as error:
            found = {"reason": error.message}
    return found | {"said": watcher.lanes, "wall_s": round(time.monotonic() - began_s, 1)}


def tuned(run: RunSpec, asked: argparse.Namespace, watcher: Told) -> dict[str, Any]:
    _, study = tune(TuneRequest(run=run, extra=asked.extra or [*TRIED]), asked.budget, watcher)
    confirmed = study.confirmed
    return {
        "verdict": confirmed.verdict if confirmed else None,
        "speedup": confirmed.speedup if confirmed else None,
        "ci": confirmed.ci if confirmed else None,
        "recipe": sorted(map(str, study.recipe or [])),
        "phases": [
            f"{trial.phase} {trial.block} lane {trial.lane}: {trial.wall_s:.1f} s" for trial in study.trials
        ],
        "answer": study.verdict,
        "lane_notes": study.lane_notes,
    }


if __name__ == "__main__":
    main()
