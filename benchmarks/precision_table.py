"""How low precision can go in eight models: what `dynotune precision` says of each, and whether that holds.

    python benchmarks/precision.py --part table [--device cuda] [--only NAME]… [--lanes N] [--budget S]
        [--arm NAME]… [--size small] [--out FILE]

In this order, of each model (`programs/precise.py`) that infers, and of three that train:

- `fit`: it learns a made-up task, so that its metric means something;
- `precision`: the whole of `dynotune precision`, with the metric;
- `judgement`: what `no worse` takes where nothing is known yet, and for a further setting;
- `truth`: errors in 200 other batches; whether they lie in the intervals that 24 batches gave;
- `fresh`: the speed of some arms in pairs of fresh processes, against that within one run;
- `planted`: a backend that is as fast, and noise says by how much it differs; one that is faster and gives
  wrong numbers, all of them finite.

Nothing in the result is done again, besides what failed. Nothing new is begun after `--budget` seconds.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from dynotune import knobs
from dynotune.measure.bench import protocol
from dynotune.measure.checks import differences, guard, lowest_precision, noise
from dynotune.measure.live import CompareRequest
from dynotune.report import Progress, on_terminal
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.precision import PrecisionArm
from dynotune.schema.run import RunSpec
from lab import result_file
from lab.provenance import without_places

PROGRAM = Path(__file__).parent / "programs" / "precise.py"
MODELS = ("vit_b", "gpt2", "bert", "resnet50", "whisper", "yolo11n", "unet", "detector")
ITEMS = (*(f"{name} infer" for name in MODELS), *(f"{name} train" for name in ("gpt2", "resnet50", "unet")))
PARTS = ("fit", "precision", "judgement", "truth", "fresh", "planted")
PLANTED, PLANTED_IN = "determinism.algorithms=true", ("unet infer", "bert infer")
LARGE = ("vit_b", "bert", "gpt2")  # about 100 M parameters
# Without it cuBLAS refuses deterministic algorithms.
FIXED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
NUM_OTHERS, NUM_AT_ONCE = 200, 4
NEAR = 1.03
Row = dict[str, Any]


class Item:
    """One model that trains or infers; `asked` is the command line's."""

    def __init__(self, name: str, asked: argparse.Namespace, base: Path, progress: Progress) -> None:
        self.name, self._asked, self._progress = name, asked, progress
        self._model, self._kind = name.split()
        self._base = base / name.replace(" ", "-")
        self._base.mkdir(parents=True, exist_ok=True)
        self._weights = asked.work / f"{self._model}-{asked.size}.pt"

    def _run(self, *more: str, kind: str = "") -> RunSpec:
        words = [self._model, kind or self._kind, "--weights", str(self._weights), "--size", self._asked.size]
        return RunSpec(
            command=[sys.executable, str(PROGRAM), *words, "--device", self._asked.device, *more],
            cwd=Path.cwd(),
            env=os.environ
            | ({} if self._asked.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""})
            | (FIXED if "--planted" in more else {}),
            base=self._base,
            seed=0,
            lock=False,
            sandbox=False,
        )

    def fit(self) -> Row:
        """Raises CalledProcessError: it ended with an error, and its last lines are in the result."""
        self._asked.work.mkdir(parents=True, exist_ok=True)
        steps = ["--steps", "10"] if self._asked.size == "small" else []
        run = self._run(*steps, kind="fit")
        done = subprocess.run(run.command, env=run.env, text=True, capture_output=True, check=False)
        if done.returncode:
            return {"reason": without_places(done.stderr[-300:])}
        return {"says": done.stdout.strip().splitlines()[-1]}

    def has(self, part: str) -> bool:
        """Whether it need not be done: it is there, or does not belong to this item."""
        if part == "fit":
            return self._weights.is_file()
        if part == "planted" and self.name not in PLANTED_IN:
            return True
        if part in ("judgement", "truth") and self._kind == "train":
            return True
        if part == "judgement" and self._model not in LARGE:
            return True
        return "reason" not in self.known().get(part, {"reason": ""})

    def known(self) -> Row:
        return dict(result_file.read(self._asked.out).get("table", {}).get(self.name, {}))

    def do(self, part: str) -> None:
        began_s = time.monotonic()
        try:
            row = getattr(self, part)()
        except DynotuneError as error:
            said = " ".join([error.message, *getattr(error, "last_lines", ())[-2:]])
            row = {"reason": without_places(said.replace(str(self._base), "."))}
        with result_file.opened(self._asked.out) as result:
            row["wall_s"] = round(time.monotonic() - began_s, 1)
            result.setdefault("table", {}).setdefault(self.name, {})[part] = row
        print(f"{self.name:16} {part:10} {row['wall_s']:6.1f} s  {row.get('reason', '')}", flush=True)

    def precision(self) -> Row:
        metric = "precise:score" if self._kind == "infer" else ""
        with only(self._asked.arm):
            found, _ = lowest_precision.boundary(
                self._run(), self._progress, metric=metric, budget_s=self._asked.compare
            )
        Console(width=160).print(on_terminal(found))
        return {
            "own": found.own,
            "peak_bytes": found.peak_bytes,
            "arms": {arm.name: _arm(arm) for arm in found.arms},
        }

    def judgement(self) -> Row:
        """Seconds of `no worse`: the first time, and for another setting that rounds alike."""
        took = {}
        runs = guard.Guard(self._run(), self._base, {})
        own: guard.Own | Unknown | None = None
        for name, words in (("first_s", "precision.autocast=bf16"), ("further_s", "precision.autocast=bf16")):
            began_s = time.monotonic()
            own = own or runs.baseline()
            found = own if isinstance(own, Unknown) else runs.compare([knobs.parse(words)], own, name)
            took[name] = round(time.monotonic() - began_s, 1)
            if isinstance(found, Unknown):
                return {"reason": found.reason, **took}
        return took

    def truth(self) -> Row:
        """Errors in batches of which none was among the first 24."""
        num = 8 if self._asked.size == "small" else NUM_OTHERS
        runs = guard.Guard(self._run("--first", "1000"), self._base, {})

        def computed(name: str, words: Sequence[str] = (), **how: Any) -> guard.Readings:
            settings = [knobs.parse(one) for one in words]
            found = runs.computed(f"truth-{name}", settings, num_values=num, **how)
            if isinstance(found, Unknown):
                raise DynotuneError(found.reason)
            return found

        known = self.known().get("precision", {}).get("arms")
        if known is None:
            return {"reason": "there is no precision to hold against it"}
        rows: Row = {}
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            exact, own = pool.submit(computed, "float64", reference="float64"), pool.submit(computed, "own")
            arms = {
                n: pool.submit(computed, n, arm["settings"]) for n, arm in known.items() if arm["error_ci"]
            }
        for name, arm in arms.items():
            errors, plain = (errors_of(exact.result(), mine.result()) for mine in (arm, own))
            judged = noise.judge(errors, plain)
            low, high = known[name]["error_ci"]
            if judged is not None:
                rows[name] = {"error": judged.error, "is_inside": low <= judged.error <= high}
        return {"num_batches": num, "arms": rows}

    def fresh(self) -> Row:
        """The arm that is worth it, and those asked for."""
        known = self.known().get("precision", {}).get("arms")
        if known is None:
            return {"reason": "there is no precision to hold against it"}
        worth = [name for name, arm in known.items() if arm["is_worth_it"]]
        best = sorted(worth, key=lambda name: -known[name]["speedup"])[:1]
        rows: Row = {}
        for name in dict.fromkeys([*best, *self._asked.fresh]):
            if not known.get(name, {}).get("ci"):
                continue
            settings = list(map(knobs.parse, known[name]["settings"]))
            request = CompareRequest(run=self._run(), candidate=settings, max_pairs=self._asked.pairs)
            found = protocol.compare(request, self._progress)
            if found.speedup is None or found.ci is None:
                rows[name] = {"reason": found.reason}
                continue
            within, ratio = known[name]["speedup"], known[name]["speedup"] / found.speedup
            (low, high), (other_low, other_high) = known[name]["ci"], found.ci
            rows[name] = {"speedup": found.speedup, "ci": found.ci, "within": within}
            rows[name]["is_near"] = 1 / NEAR <= ratio <= NEAR
            rows[name]["agrees"] = rows[name]["is_near"] or (low <= other_high and other_low <= high)
        return {"arms": rows}

    def planted(self) -> Row:
        """Chosen or not, several times."""
        rows: Row = {}
        for kind, times in (("noise", self._asked.planted), ("wrong", 1)):
            with only([], {"planted": PLANTED}):
                runs = [
                    lowest_precision.boundary(
                        self._run("--planted", kind), self._progress, budget_s=self._asked.compare
                    )[0]
                    for _ in range(times)
                ]
            rows[kind] = [_arm(arm) for found in runs for arm in found.arms]
        return rows


@contextmanager
def only(names: Sequence[str], besides: dict[str, str] | None = None) -> Iterator[None]:
    """No other precisions are tried within it; no names stand for none, `all` for all."""
    before = lowest_precision.ARMS, lowest_precision.QUANTIZED
    if names != ["all"]:
        chosen = [{name: words for name, words in each.items() if name in names} for each in before]
        lowest_precision.ARMS, lowest_precision.QUANTIZED = chosen[0] | (besides or {}), chosen[1]
    try:
        yield
    finally:
        lowest_precision.ARMS, lowest_precision.QUANTIZED = before


def _arm(arm: PrecisionArm) -> Row:
    results, speed, metric = arm.results, arm.speed, arm.metric
    return {
        "settings": list(map(str, arm.settings)),
        "verdict": speed and speed.verdict,
        "speedup": speed and speed.speedup,
        "ci": speed and speed.ci,
        "within": speed and speed.within,
        "ok": results and results.ok,
        "no_worse": results and results.no_worse,
        "error": results and results.difference,
        "error_ci": results and results.error_ci,
        "baseline_error": results and results.baseline_error,
        "reason": without_places(" ".join([*([results.reason] if results else []), *arm.reasons])),
        "speed_reason": without_places(speed.reason) if speed else "",
        "blocks_s": [[pair.baseline_s, pair.candidate_s] for pair in speed.pairs] if speed else [],
        "metric": metric and {"mean": metric.mean, "ci": metric.ci, "num_samples": metric.num_samples},
        "band": arm.band
        and {"baseline": arm.band.baseline, "arm": arm.band.arm, "is_within": arm.band.is_within},
        "peak_bytes": arm.peak_bytes,
        "is_worth_it": arm.is_worth_it,
    }


def errors_of(exact: guard.Readings, mine: guard.Readings) -> list[float | None]:
    return differences.outputs_apart(exact[0].outputs, mine[0].outputs).signed


def table(asked: argparse.Namespace) -> None:
    names = [name for name in ITEMS if not asked.only or name in asked.only or name.split()[0] in asked.only]
    began_s = time.monotonic()

    def left_s() -> float:
        return asked.budget - (time.monotonic() - began_s)

    if asked.lanes > 1:
        in_lanes(names, asked.lanes, left_s)
    else:
        with tempfile.TemporaryDirectory() as base, Progress(Console(stderr=True, quiet=True)) as progress:
            for name in names:
                item = Item(name, asked, Path(base), progress)
                for part in PARTS:
                    if part in asked.skip or item.has(part) or left_s() <= 0:
                        continue
                    item.do(part)
    with result_file.opened(asked.out) as result:
        result["table_summary"] = summary(result.get("table", {}))
        show(result)


def in_lanes(names: Sequence[str], num_lanes: int, left_s: Callable[[], float]) -> None:
    """Each GPU takes the next model once it is done with one; what infers and what trains share weights."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for model in dict.fromkeys(name.split()[0] for name in names):
        waiting.put(model)

    def lane(number: int) -> None:
        while left_s() > 0:
            try:
                model = waiting.get_nowait()
            except queue.Empty:
                return
            words = [
                *without(sys.argv, ("--lanes", "--only", "--budget")),
                "--only",
                model,
                "--budget",
                str(left_s()),
            ]
            env = os.environ | {"CUDA_VISIBLE_DEVICES": str(number)}
            subprocess.run([sys.executable, *words], env=env, check=False)

    lanes = [threading.Thread(target=lane, args=(number,)) for number in range(num_lanes)]
    for one in lanes:
        one.start()
    for one in lanes:
        one.join()


def without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    return [
        word
        for at, word in enumerate(words)
        if word not in options
        and (at == 0 or words[at - 1] not in options)
        and not word.startswith(tuple(f"{o}=" for o in options))
    ]


def summary(rows: dict[str, Row]) -> Row:
    truths = [one for row in rows.values() for one in row.get("truth", {}).get("arms", {}).values()]
    fresh = [
        one
        for row in rows.values()
        for one in row.get("fresh", {}).get("arms", {}).values()
        if "agrees" in one
    ]
    planted = {
        kind: [one for row in rows.values() for one in row.get("planted", {}).get(kind, ())]
        for kind in ("noise", "wrong")
    }
    return {
        "error_intervals": len(truths),
        "hold_the_truth": sum(one["is_inside"] for one in truths),
        "fresh": len(fresh),
        "within_3_percent": sum(one["is_near"] for one in fresh),
        "agree": sum(one["agrees"] for one in fresh),
        "judgement_s": {
            name: row["judgement"].get("first_s") for name, row in rows.items() if "judgement" in row
        },
        "planted_noise": len(planted["noise"]),
        "noise_chosen": sum(one["is_worth_it"] for one in planted["noise"]),
        "planted_wrong": len(planted["wrong"]),
        "wrong_refused": sum(one["ok"] is False and not one["is_worth_it"] for one in planted["wrong"]),
    }


def show(result: Row) -> None:
    print("\n| model | arm | speed | fresh | error | results | metric |\n|" + " --- |" * 7)
    for name, row in result.get("table", {}).items():
        for arm, one in row.get("precision", {}).get("arms", {}).items():
            fresh = row.get("fresh", {}).get("arms", {}).get(arm, {}).get("speedup")
            results = (
                "no worse"
                if one["no_worse"]
                else {True: "bits", False: "wrong", None: one["reason"][:60]}[one["ok"]]
            )
            metric = f"{one['metric']['mean']:+.3f}" if one["metric"] else ""
            speed, ratio = (f"{value:.2f}" if value else "-" for value in (one["speedup"], fresh))
            error = f"{one['error']:.2g}" if one["error"] is not None else "-"
            print(f"| {name} | {arm} | {speed} | {ratio} | {error} | {results} | {metric} |")
    print(result.get("table_summary"))
