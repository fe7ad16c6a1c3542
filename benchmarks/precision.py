"""Faults that are planted in what a program computes, and settings that change nothing: what the judgement
says.

    python benchmarks/precision.py [--part catch] [--device cuda] [--exact 40] [--lanes N] [--budget S]
    python benchmarks/precision.py --part table …                  see precision_table.py

Beside it: fixed tolerances, torch's own (`torch.testing.assert_close` of float32), and whether numbers are
finite. A fault is in force while the candidate's setting is; the same program without one is held against the
same setting, and settings that round (sums in another order). One result grows over several calls.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import precision_table

from dynotune import knobs
from dynotune.measure.checks import guard
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Guarded
from lab import result_file
from lab.provenance import RESULTS

PROGRAM = Path(__file__).parent / "programs" / "planted.py"
SETTING, BF16 = "determinism.algorithms=true", "precision.autocast=bf16"
FAULTS = {
    "infer attention": ["mask", "stale", "last", "row", "tf32", "bf16", "eps", "tanh"],
    "infer packed": ["packed"],
    "infer convolution": ["colours"],
    "train attention": ["mask", "stale", "last", "tf32", "frozen"],
    "train convolution": ["skipped", "accumulation"],
    "train packed": ["packed"],
}
WITHOUT_FAULT = {
    "infer attention": [SETTING, BF16, "host.num_threads=2"],
    "infer convolution": [SETTING, BF16, "layout.channels_last=true"],
    "train attention": [SETTING, BF16, "optimizer.fused=true", "host.num_threads=2"],
    "train convolution": [SETTING, BF16, "layout.channels_last=true"],
}
RTOL, ATOL = 1.3e-6, 1e-5
LIMIT_S = 300.0


class Program:
    """The baseline's runs of one program and seed, which serve all arms."""

    def __init__(self, words: str, seed: int, device: str, folder: Path) -> None:
        self._words, self._seed, self._device, self._folder = words, seed, device, folder
        folder.mkdir()
        self._own = self._runs().baseline()

    def _runs(self, fault: str = "") -> guard.Guard:
        words = [*self._words.split(), "--device", self._device, "--seed", str(self._seed)]
        run = RunSpec(
            command=[sys.executable, str(PROGRAM), *words, *(["--fault", fault] if fault else [])],
            cwd=Path.cwd(),
            # Without a fixed workspace cuBLAS refuses deterministic algorithms.
            env=os.environ
            | (precision_table.FIXED if self._device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
            base=self._folder,
            seed=self._seed,
            lock=False,
            sandbox=False,
        )
        return guard.Guard(run, self._folder, {}, LIMIT_S)

    def judged(self, setting: str, fault: str = "") -> dict[str, Any]:
        settings, began_s = [knobs.parse(setting)], time.monotonic()
        own = self._own
        if isinstance(own, Unknown):
            return {"reason": own.reason}
        name = f"{setting.partition('=')[0]}-{fault}"
        arm = self._runs(fault).computed(name, settings)
        if isinstance(arm, Unknown):
            return {"reason": arm.reason}
        found = self._runs().judged(settings, own, arm, name)
        if isinstance(found, Unknown):
            return {"reason": found.reason}
        return {
            "ok": found.ok,
            "reference": found.reference,
            "error": found.difference,
            "own": found.own,
            "ratio": found.ratio,
            "ci": found.ci,
            "module": found.module,
            "reason": found.reason,
            "beside": beside(settings, own.first, arm),
            "wall_s": round(time.monotonic() - began_s, 1),
        }


def beside(settings: Sequence[Setting], first: guard.Readings, arm: guard.Readings) -> dict[str, bool]:
    """Whether each of the other judgements lets it pass."""
    fixed = guard.compared(settings, guard.Own(first=first, again=first), arm)
    ours, mine = numbers(first), numbers(arm)
    close = all(
        b is not None and abs(b - a) <= ATOL + RTOL * abs(a) for a, b in zip(ours, mine, strict=False) if a
    )
    return {
        "fixed": isinstance(fixed, Guarded) and fixed.ok,
        "close": close,
        "finite": all(value is not None for value in mine),
    }


def numbers(readings: guard.Readings) -> list[float | None]:
    """Losses, or sampled elements of outputs."""
    sampled = [
        value for one in readings for call in one.outputs for digest in call for value in digest.sampled
    ]
    return sampled or [loss for one in readings for loss in one.losses]


def catch(asked: argparse.Namespace, out: Path) -> None:
    began_s = time.monotonic()
    if asked.lanes > 1:
        in_lanes(asked.lanes, asked.gpus)
    per_setting = -(-asked.exact // sum(map(len, WITHOUT_FAULT.values())))
    wanted = [(words, 0, SETTING, fault) for words, faults in FAULTS.items() for fault in faults]
    clean = [
        (words, seed, setting, "")
        for seed in range(per_setting)
        for words, settings in WITHOUT_FAULT.items()
        for setting in settings
    ]
    programs: dict[tuple[str, int], Program] = {}
    with tempfile.TemporaryDirectory() as base:
        for words, seed, setting, fault in [*wanted, *clean[: asked.exact]]:
            key = f"{words} {seed} {setting} {fault}".strip()
            if (
                "ok" in result_file.read(out).get("catch", {}).get(key, {})
                or time.monotonic() - began_s > asked.budget
            ):
                continue
            # Jobs that share a baseline are done in one lane.
            number, num_lanes = asked.lane
            if (list(FAULTS).index(words) + len(FAULTS) * seed) % num_lanes != number:
                continue
            if (words, seed) not in programs:
                programs[words, seed] = Program(words, seed, asked.device, Path(base) / f"{len(programs)}")
            try:
                row = programs[words, seed].judged(setting, fault)
            except DynotuneError as error:
                row = {"reason": error.message}
            with result_file.opened(out) as result:
                result.setdefault("catch", {})[key] = {"fault": fault, **row}
            print(key, row.get("ok"), row.get("reason"), row.get("beside"), flush=True)
    with result_file.opened(out) as result:
        result["summary"] = summary(list(result["catch"].values()))
        print(result["summary"])


def in_lanes(num_lanes: int, num_gpus: int) -> None:
    """The programs are small and not timed: several share a GPU."""
    words = precision_table.without(sys.argv, ("--lanes", "--gpus"))
    lanes = [
        subprocess.Popen(
            [sys.executable, *words, "--lane", f"{number}/{num_lanes}"],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": str(number % num_gpus)},
        )
        for number in range(num_lanes)
    ]
    for lane in lanes:
        lane.wait()


def lane_of(text: str) -> tuple[int, int]:
    number, _, num_lanes = text.partition("/")
    return int(number), int(num_lanes)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    faults = [row for row in rows if row["fault"] and "ok" in row]
    clean = [row for row in rows if not row["fault"] and "ok" in row]
    counts = {"faults": len(faults), "caught": sum(not row["ok"] for row in faults)}
    counts |= {"without_fault": len(clean), "alarms": sum(not row["ok"] for row in clean)}
    counts["without_answer"] = len(rows) - len(faults) - len(clean)
    for name in ("fixed", "close", "finite"):
        counts[f"caught_{name}"] = sum(not row["beside"][name] for row in faults)
        counts[f"alarms_{name}"] = sum(not row["beside"][name] for row in clean)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("catch", "table"), default="catch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--exact", type=int, default=40, help="runs without a fault")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="nothing new is begun after so many seconds"
    )
    parser.add_argument("--only", action="append", default=[], help="a model, or one that trains or infers")
    parser.add_argument("--skip", action="append", default=[], choices=precision_table.PARTS)
    parser.add_argument("--arm", action="append", help="precisions to try; all")
    parser.add_argument(
        "--fresh", action="append", help="arms to compare in fresh pairs besides the best; bf16"
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument(
        "--lanes", type=int, default=1, help="GPUs, each with a model at a time; of `catch`, runs at once"
    )
    parser.add_argument("--gpus", type=int, default=1, help="of the lanes of `catch`")
    parser.add_argument("--lane", type=lane_of, default=(0, 1), help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=3, help="fresh ones of an arm")
    parser.add_argument(
        "--compare", type=float, default=120.0, help="seconds for the comparisons of one model"
    )
    parser.add_argument("--planted", type=int, default=3, help="times that the backend of noise is tried")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "dynotune-precise", help="weights"
    )
    asked = parser.parse_args()
    asked.arm, asked.fresh = asked.arm or ["all"], asked.fresh if asked.fresh is not None else ["bf16"]
    if asked.part == "table":
        asked.out = asked.out or RESULTS / f"precision_table_{asked.device}.json"
        precision_table.table(asked)
    else:
        catch(asked, asked.out or RESULTS / f"precision_{asked.device}.json")


if __name__ == "__main__":
    main()
