"""How far answers from blocks within one process are off when launched, and whether recording changes the
baseline.

    python benchmarks/launched.py [--device cuda] [--only NET]… [--pairs 3] [--blocks-only] [--until-s S]
        [--out FILE]

One live run of each program is diagnosed as `tune` does it: the plain window is timed, steps are recorded,
and then each arm is compared in blocks. `shift` is the time of the baseline's step in these blocks over that
in the plain window. Then each arm runs in fresh pairs. `--table` writes the rows of `launched.toml` from the
file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from dynotune import knobs
from dynotune.diagnose import LiveDiagnosis
from dynotune.measure.bench import Journal, in_process, protocol
from dynotune.measure.live import CompareRequest, Live
from dynotune.report import Progress
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import DynotuneError
from dynotune.schema.events import TraceRecorded, Window
from dynotune.schema.run import RunSpec
from lab import result_file
from lab.provenance import RESULTS
from lab.tuning.programs import TRAIN, photographs

ARMS = {
    "cuda": {
        "gpt-small": ["compile.mode=default", "optimizer.fused=true"],
        "gpt": ["compile.mode=default", "precision.autocast=bf16"],
        "mlp": ["optimizer.fused=true", "compile.mode=default"],
        "bert": ["precision.autocast=bf16", "matmul.fp32_precision=high"],
        "resnet50": ["layout.channels_last=true", "matmul.fp32_precision=high"],
        "starved": ["loader.num_workers=4", "loader.num_workers=8"],
    },
    "cpu": {
        "gpt": ["optimizer.fused=true", "host.num_threads=1"],
        "mlp": ["optimizer.fused=true", "host.num_threads=1"],
        "bert": ["precision.autocast=bf16", "host.num_threads=1"],
        "starved": ["loader.num_workers=1", "loader.num_workers=2"],
    },
}
"""By device and program; several words are one arm."""
MOST_BLOCKS = 6
BUDGET_S = 150.0
"""Seconds for the blocks of an arm, and for its fresh pairs."""
SMALL = "-small"
"""Ending of a program's name: a small net on the device, whose steps wait for the host."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", action="append", choices=list(ARMS["cuda"]))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--blocks-only", action="store_true", help="no fresh pairs")
    parser.add_argument("--first-arm", action="store_true", help="only the first arm of each program")
    parser.add_argument("--until-s", type=float, default=math.inf, help="begin no arm after so many seconds")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="print the rows of launched.toml instead")
    given = parser.parse_args()
    out = given.out or RESULTS / f"launched_{given.device}.json"
    if given.table:
        print(table(), end="")
        return
    until_s = time.monotonic() + given.until_s
    with tempfile.TemporaryDirectory() as base, Progress(Console(stderr=True)) as progress:
        (Path(base) / "program").mkdir()
        photographs(Path(base) / "program")
        for net in given.only or ARMS[given.device]:
            if time.monotonic() > until_s:
                break
            run = run_of(net, given.device, Path(base))
            arms = ARMS[given.device][net][: 1 if given.first_arm else None]
            known = result_file.read(out).get("programs", {}).get(net, {})
            row = known if "arms" in known else within(run, arms, progress)
            keep(out, net, row)
            for words in [] if given.blocks_only else arms:
                if "fresh" not in row["arms"].get(words, {"fresh": None}) and time.monotonic() < until_s:
                    row["arms"][words]["fresh"] = fresh(run, words, given.pairs, progress)
                    keep(out, net, row)
            show(net, row)


def run_of(net: str, device: str, base: Path) -> RunSpec:
    size = "large" if device == "cuda" and not net.endswith(SMALL) else "small"
    return RunSpec(
        command=[sys.executable, str(TRAIN), net.removesuffix(SMALL), "--size", size, "--device", device],
        cwd=base / "program",
        env=os.environ | ({} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
        base=base,
    )


def keep(out: Path, net: str, row: dict[str, Any]) -> None:
    with result_file.opened(out) as result:
        result.setdefault("programs", {})[net] = row


def within(run: RunSpec, arms: list[str], progress: Progress) -> dict[str, Any]:
    """Compare the arms in blocks of one live run that was recorded before."""
    began_s = time.monotonic()
    row: dict[str, Any] = {"arms": {}}
    with LiveDiagnosis(run, progress) as live:
        try:
            live.observe()
        except DynotuneError as error:
            return {"failed": error.message, "arms": {}}
        for words in arms:
            settings = list(map(knobs.parse, words.split()))
            request = CompareRequest(
                run=run, candidate=settings, max_pairs=MOST_BLOCKS, budget_s=90.0, in_process="only"
            )
            comparison = Comparison(
                id="", run=run, candidate_settings=settings, max_pairs=MOST_BLOCKS, facts=live.runner._facts
            )
            found, reason = in_process.compare_within(
                request,
                Journal(comparison),
                Live(run, run.base, comparison.facts, progress, runner=live.runner),
                progress,
            )
            row["arms"][words] = {
                "within": answer(found, found.pairs),
                "reason": reason,
                "shift": shift(live, [pair.baseline_s for pair in found.pairs], found.unit),
                "checked": getattr(found, "baseline_shift", None)
                and json.loads(json.dumps(shift_row(found))),
                "only_chooses": getattr(found, "only_chooses", None),
            }
        record = live.runner.live.records()[0] if live.runner.live is not None else None
        traces = record.all(TraceRecorded) if record is not None else []
        row["recordings"] = [
            {"num_steps": trace.num_steps, "cupti_stays": trace.cupti_stays} for trace in traces
        ]
        live.end()
    return {**row, "wall_s": round(time.monotonic() - began_s, 1)}


def shift_row(found: Comparison) -> dict[str, Any]:
    checked = found.baseline_shift
    return (
        {}
        if checked is None
        else {"ratio": checked.ratio, "ci": checked.ci, "num_blocks": checked.num_blocks}
    )


def shift(live: LiveDiagnosis, baseline_s: list[float], unit: str) -> float | None:
    """Return the time of the baseline's unit in the blocks over its time in the plain window."""
    if live.runner.live is None or not baseline_s:
        return None
    window = live.runner.live.records()[0].all(Window)[0]
    num_units = window.num_samples if unit == "sample" else window.num_steps
    assert num_units
    plain_s = (window.end_s - window.begin_s) / num_units
    return round(statistics.geometric_mean(baseline_s) / plain_s, 4)


def fresh(run: RunSpec, words: str, num_pairs: int, progress: Progress) -> dict[str, Any]:
    request = CompareRequest(
        run=run,
        candidate=list(map(knobs.parse, words.split())),
        max_pairs=num_pairs,
        budget_s=BUDGET_S,
        precision=1e-6,  # all pairs
        in_process="never",
    )
    try:
        found = protocol.compare(request, progress)
    except DynotuneError as error:
        return {"reason": error.message}
    return answer(found, found.pairs)


def answer(found: Comparison, pairs: list[Any]) -> dict[str, Any]:
    logs = [math.log(pair.baseline_s / pair.candidate_s) for pair in pairs]
    return {
        "verdict": found.verdict,
        "speedup": math.exp(statistics.fmean(logs)) if logs else None,
        "sd": statistics.stdev(logs) if len(logs) > 1 else None,
        "num": len(logs),
        "ratios": [round(math.exp(log), 4) for log in logs],
    }


def table() -> str:
    """Return `launched.toml`: the arms of all result files that have both answers."""
    files = sorted(RESULTS.glob("launched_*.json"))
    lines = [f"source = {json.dumps([f'benchmarks/results/{file.name}' for file in files])}"]
    for file in files:
        for net, row in result_file.read(file)["programs"].items():
            for words, arm in row["arms"].items():
                if arm["within"]["sd"] is not None and arm.get("fresh", {}).get("sd") is not None:
                    fields = launched_row(net, words, arm)
                    lines += [
                        "",
                        "[[rows]]",
                        *(f"{name} = {json.dumps(value)}" for name, value in fields.items()),
                    ]
    return "\n".join(lines) + "\n"


def launched_row(net: str, words: str, arm: dict[str, Any]) -> dict[str, Any]:
    return {
        "program": net,
        "arm": words,
        "within": round(arm["within"]["speedup"], 4),
        "within_se": round(arm["within"]["sd"] / math.sqrt(arm["within"]["num"]), 4),
        "fresh": round(arm["fresh"]["speedup"], 4),
        "pairs_sd": round(arm["fresh"]["sd"], 4),
        "num_pairs": arm["fresh"]["num"],
    }


def show(net: str, row: dict[str, Any]) -> None:
    for words, arm in row["arms"].items():
        both = [arm["within"].get("speedup"), arm.get("fresh", {}).get("speedup")]
        told = " ".join("none ".rjust(8) if value is None else f"{value:8.3f}" for value in both)
        print(f"{net:10} {words:32} within, fresh {told}  baseline/plain {arm['shift']}", flush=True)
    print(f"{net:10} {row.get('failed', '')} {row.get('wall_s')} s {row.get('recordings')}", flush=True)


if __name__ == "__main__":
    main()
