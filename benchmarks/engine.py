"""The engine against eager and torch.compile, side by side on the same model, weights and inputs.

    python benchmarks/engine.py [--device cuda|cpu] [--only MODEL:BATCH]… [--out DIR]

Each cell (a model and a batch) runs in a process of its own, because torch.compile clears workspaces that
other graphs of the process may use when it captures its own. In it the arms take turns, in an order drawn
anew each round; every arm gets the same dtype, layout and inputs, and cuDNN may try its algorithms for all.
What is compared is the time of a call, many calls one after the other, the device synchronised at both ends;
latency, one call at a time, stands beside.

The engine appears twice: with copied outputs, and with lent ones as reduce-overhead has them. It must be at
least as fast as the best of the others, with 1% slack. `--restart` builds one engine in a fresh process
twice: with an empty compile cache, and with the one that the first left.

A cell's result is written when it is done; cells that are there are not run again without --again. YOLO11n
needs ultralytics (AGPL-3.0), which this benchmark imports where it is installed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.provenance import RESULTS, describe, without_places

SLACK = 0.01
ENGINES = ("engine", "engine, lent")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", action="append", metavar="MODEL:BATCH")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--window-s", type=float, default=0.25, help="Length of one arm's window in a round.")
    parser.add_argument("--again", action="store_true", help="Run cells whose result is there, too.")
    parser.add_argument(
        "--restart", metavar="MODEL:BATCH", help="Time a cold and a warm start of this cell's engine."
    )
    parser.add_argument(
        "--precompile", action="store_true", help="First fill the compile cache, all cells at once."
    )
    parser.add_argument("--cache", type=Path, help="Compile cache of all cells; a temporary one by default.")
    parser.add_argument("--timeout-s", type=float, default=570.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        model, batch = args.child.rsplit("/", 1)[-1].split(":")
        work = {"measure": measure, "compile": lambda *a: measure(*a, only_compile=True), "build": build}
        answer = work[args.child.split("/")[0]](model, int(batch), args)
        args.answer.write_text(json.dumps(answer))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        return run(args, Path(scratch))


def run(args: argparse.Namespace, scratch: Path) -> int:
    from engine_models import MODELS

    batches = args.batches or ([1, 16] if args.device == "cuda" else [1, 4])
    cells = args.only or [f"{model}:{batch}" for model in MODELS[args.device] for batch in batches]
    target = args.out / f"engine_{args.device}.json"
    before = target if target.exists() else RESULTS / target.name
    document: dict[str, Any] = json.loads(before.read_text()) if before.exists() and not args.again else {}
    told = describe()
    # Cells are kept between runs, so are the commands that measured them.
    told["command"] = [*document.get("command", []), told["command"]]
    document = {**told, "cells": document.get("cells", {}), "restart": document.get("restart", {})}
    cache = args.cache or scratch / "cache"
    todo = [cell for cell in cells if "arms" not in document["cells"].get(cell, {})]
    for cell in list(todo):
        missing = [
            name
            for name in MODELS[args.device][cell.split(":")[0]].needs
            if not importlib.util.find_spec(name)
        ]
        if missing:
            document["cells"][cell] = {"left_out": f"needs {', '.join(missing)}"}
            todo.remove(cell)
    if args.precompile:
        started = time.perf_counter()
        children = [
            start(args, f"compile/{cell}", scratch / f"compile-{n}", cache) for n, cell in enumerate(todo)
        ]
        for child in children:
            child.wait()
        print(
            f"compiled {len(children)} cells in {time.perf_counter() - started:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    if args.restart:
        document["restart"] = {"cell": args.restart}
        for number, name in enumerate(("cold_s", "warm_s")):
            built = finish(
                args, f"build/{args.restart}", scratch / f"restart-{number}", scratch / "restart-cache"
            )
            document["restart"][name] = built
    for number, cell in enumerate(todo):
        document["cells"][cell] = finish(args, f"measure/{cell}", scratch / f"cell-{number}", cache)
        write(target, document)
    write(target, document)
    show(document)
    return 0 if all("arms" in document["cells"].get(cell, {}) for cell in todo) else 1


def start(args: argparse.Namespace, child: str, answer: Path, cache: Path) -> subprocess.Popen[bytes]:
    cache.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, __file__, "--child", child, "--answer", str(answer), "--device", args.device,
         "--rounds", str(args.rounds), "--window-s", str(args.window_s)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")},
    )  # fmt: skip


def finish(args: argparse.Namespace, child: str, answer: Path, cache: Path) -> dict[str, Any]:
    """The child's answer, or why there is none."""
    print(f"{child} …", file=sys.stderr, flush=True)
    process = start(args, child, answer, cache)
    try:
        code = process.wait(args.timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return {"failed": f"not done after {args.timeout_s:.0f} s"}
    return json.loads(answer.read_text()) if code == 0 else {"failed": f"exit code {code}"}


def write(target: Path, document: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(without_places(json.dumps(document, indent=1)) + "\n")


def make(name: str, batch: int, device: str) -> tuple[Any, Any, list[Any], Any]:
    """The float32 model, the model as every arm gets it, inputs for that, and what the first one makes of the
    first."""
    import copy

    import torch
    from engine_models import MODELS, calibrated

    torch.manual_seed(0)
    spec = MODELS[device][name]
    shape = (batch, *spec.shape)
    if spec.num_words:
        inputs = [torch.randint(spec.num_words, shape, device=device) for _ in range(4)]
    else:
        inputs = [torch.rand(shape, device=device) for _ in range(4)]
    calibration = [*inputs, *([torch.rand(8, *spec.shape, device=device)] if not spec.num_words else [])]
    reference = calibrated(spec.make().to(device), calibration)
    with torch.no_grad():
        expected = reference(inputs[0])
    dtype = torch.float16 if device == "cuda" else torch.float32
    model = copy.deepcopy(reference).to(dtype)
    if spec.channels_last:
        model = model.to(memory_format=torch.channels_last)
        inputs = [tensor.to(memory_format=torch.channels_last) for tensor in inputs]
    inputs = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs]
    return reference, model, inputs, expected


def make_engine(reference: Any, name: str, inputs: list[Any], device: str, borrow: bool) -> Any:
    import torch
    from engine_models import MODELS

    from dynotune.runtime import Engine

    spec = MODELS[device][name]
    return Engine(
        reference,
        inputs[0],
        dtype=torch.float16 if device == "cuda" else None,
        channels_last=spec.channels_last,
        compile=spec.compile,
        borrow=borrow,
        # Random weights amplify rounding as trained ones do not; the error of every arm is in the result.
        tolerance=0.1,
    )


def build(name: str, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds from a model in memory to an engine that answers."""
    reference, _, inputs, _ = make(name, batch, args.device)
    started = time.perf_counter()
    engine = make_engine(reference, name, inputs, args.device, borrow=False)
    engine(inputs[0])
    synchronize(args.device)
    return {"build_s": time.perf_counter() - started, "mode": engine.stats().buckets[0].mode}


def measure(name: str, batch: int, args: argparse.Namespace, only_compile: bool = False) -> dict[str, Any]:
    """One cell."""
    import torch
    from engine_models import MODELS

    torch.backends.cudnn.benchmark = True
    reference, model, inputs, expected = make(name, batch, args.device)
    arms: dict[str, Callable[[Any], Any]] = {"eager": torch.inference_mode()(model)}
    modes = ["default", "reduce-overhead"] if args.device == "cuda" else []
    if MODELS[args.device][name].autotuned and args.device == "cuda":
        modes.append("max-autotune")
    for mode in modes:
        arms[mode] = torch.no_grad()(torch.compile(model, mode=mode, dynamic=False))
    report: dict[str, Any] = {"arms": {}, "order": []}
    for arm in list(arms):
        report["arms"][arm] = prepare(arms[arm], inputs, expected, args.device)
    # Last: capturing torch.compile's graphs clears workspaces that the engine's graphs would use.
    engines = {}
    for arm in ENGINES:
        started = time.perf_counter()
        engines[arm] = make_engine(reference, name, inputs, args.device, borrow=arm == "engine, lent")
        built = engines[arm].stats().buckets[0]
        arms[arm] = engines[arm]
        report["arms"][arm] = {
            **prepare(engines[arm], inputs, expected, args.device),
            "start_s": time.perf_counter() - started,
            "mode": built.mode,
            "way": built.way,
            "reason": built.reason,
            "num_folded": engines[arm].stats().num_folded,
        }
    if only_compile:
        return {}
    take_turns(arms, inputs, report, args)
    for arm, call in arms.items():
        # Also after all arms have run: a graph whose memory another one wrote would show here.
        report["arms"][arm]["error_at_end"] = error(call(inputs[0]), expected)
    report["engine_stats"] = {
        name: value
        for name in ("pool_bytes", "weight_bytes", "io_bytes", "p50_s", "p99_s")
        if (value := getattr(engines["engine"].stats(), name)) is not None
    }
    conclude(report)
    return report


def prepare(call: Callable[[Any], Any], inputs: list[Any], expected: Any, device: str) -> dict[str, Any]:
    started = time.perf_counter()
    for _ in range(3):
        for tensor in inputs:
            found = call(tensor)
    synchronize(device)
    taken = time.perf_counter() - started
    found = call(inputs[0])
    return {"start_s": taken, "error": error(found, expected)}


def error(found: Any, expected: Any) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def take_turns(
    arms: dict[str, Any], inputs: list[Any], report: dict[str, Any], args: argparse.Namespace
) -> None:
    rng = random.Random(0)
    lengths = {arm: num_calls(call, inputs, args) for arm, call in arms.items()}
    for arm in arms:
        report["arms"][arm].update(call_s=[], latency_s=[])
    gc.collect()
    for _ in range(args.rounds):
        order = rng.sample(list(arms), len(arms))
        report["order"].append(order)
        for arm in order:
            report["arms"][arm]["call_s"].append(window_s(arms[arm], inputs, lengths[arm], args.device))
        for arm in order:
            report["arms"][arm]["latency_s"] += latencies_s(
                arms[arm], inputs, min(100, lengths[arm]), args.device
            )


def num_calls(call: Callable[[Any], Any], inputs: list[Any], args: argparse.Namespace) -> int:
    return max(4, round(args.window_s / window_s(call, inputs, 8, args.device)))


def window_s(call: Callable[[Any], Any], inputs: list[Any], num: int, device: str) -> float:
    for index in range(4):
        call(inputs[index % len(inputs)])
    synchronize(device)
    started = time.perf_counter()
    for index in range(num):
        call(inputs[index % len(inputs)])
    synchronize(device)
    return (time.perf_counter() - started) / num


def latencies_s(call: Callable[[Any], Any], inputs: list[Any], num: int, device: str) -> list[float]:
    taken = []
    for index in range(num):
        started = time.perf_counter()
        call(inputs[index % len(inputs)])
        synchronize(device)
        taken.append(time.perf_counter() - started)
    return taken


def synchronize(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def conclude(report: dict[str, Any]) -> None:
    """Medians, and the engine's time over the best other arm's, round by round."""
    for arm in report["arms"].values():
        latencies = sorted(arm.pop("latency_s"))
        arm["latency_p50_s"] = latencies[len(latencies) // 2]
        arm["latency_p99_s"] = latencies[int(0.99 * len(latencies))]
        arm["median_call_s"] = statistics.median(arm["call_s"])
    others = [arm for arm in report["arms"] if arm not in ENGINES]
    best = min(others, key=lambda arm: report["arms"][arm]["median_call_s"])
    report["best_other"] = best
    report["over_best"] = {
        arm: statistics.median(
            mine / theirs
            for mine, theirs in zip(
                report["arms"][arm]["call_s"], report["arms"][best]["call_s"], strict=True
            )
        )
        for arm in ENGINES
    }
    report["at_least_as_fast"] = report["over_best"]["engine, lent"] <= 1 + SLACK


def show(document: dict[str, Any]) -> None:
    arms = ["eager", "default", "reduce-overhead", "max-autotune", *ENGINES]
    print(
        "ms a call"
        + " " * 9
        + "".join(f"{arm:>16}" for arm in arms)
        + f"{'engine/best':>13}{'lent/best':>11}"
    )
    for cell, report in document["cells"].items():
        if "arms" not in report:
            print(f"{cell:<18}{report}")
            continue
        times = "".join(
            f"{1e3 * report['arms'][arm]['median_call_s']:>16.3f}" if arm in report["arms"] else f"{'-':>16}"
            for arm in arms
        )
        over = report["over_best"]
        verdict = "" if report["at_least_as_fast"] else "  slower"
        print(f"{cell:<18}{times}{over['engine']:>13.3f}{over['engine, lent']:>11.3f}{verdict}")
    if document["restart"]:
        print(f"restart: {document['restart']}")


if __name__ == "__main__":
    sys.exit(main())
