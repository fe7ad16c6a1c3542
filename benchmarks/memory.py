"""How near `dynotune memory` comes to what NVML counts: batches that were not run, terms that add up, largest
batches.

    python benchmarks/memory.py [--limit-s 540] [--only NAME]… [--lanes 1] [--gpus 1] [--fill NAME]…

Each case is a program of benchmarks/programs/memory_point.py. `dynotune memory --values arg.batch=A,B` runs
it with two batches. Then it is run plainly with others, and the reference is what NVML counts for its process
after the last step, with what its allocator had given back before. Other processes on the GPU are left out:
NVML lists them apart. Where it lists none, what the device has more in use counts, and a point is dropped if
more or less is in use after the run. Of each point the error of the prediction is kept (below 0: predicted
too little), and of each calibrated run how far its terms are from NVML's count and how large the unknown one
is.

Then the command is run with the larger of the two batches as on a GPU that is pretended (`--gpu`, with none
visible), and that prediction is held against the plain run of this batch, too; beside it what FakeTensor
alone tells, which is the bytes that the program asks for.

`--again FILE` only repeats the predictions without a GPU, against the plain runs in FILE; no GPU is needed
for that.

`--fill` also runs the largest batch of these cases, and the next one. `--lanes` needs as many `--gpus`:
programs that share a GPU leave each other less. What is in FILE already is not run again; `--limit-s` starts
no further case once so much time has passed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dynotune import probe
from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.facts import Unknown
from dynotune.schema.memory import Moment
from lab.provenance import RESULTS, describe

PROGRAM = Path(__file__).parent / "programs" / "memory_point.py"
POLL_S = 0.02
MOST_CHANGE_BYTES = 64 << 20
DEADLINE_S = 400
PLAIN_STEPS = 12
BLOCKS = ("weights", "gradients", "optimizer", "buffers", "inputs", "activations", "temporary", "workspaces")
"""Terms that the program and its kernels ask for; others depend on the allocator, the driver and torch's
version."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A program, the two batches that it is calibrated with, and those that are predicted."""

    model: str
    options: tuple[str, ...]
    calibrated: tuple[int, int]
    predicted: tuple[int, ...]

    @property
    def name(self) -> str:
        return " ".join((self.model, *self.options))


CASES = (
    Case("resnet50", (), (16, 32), (64, 128)),
    Case("gpt2-small", ("--bf16",), (2, 4), (8, 16)),
    Case("unet", (), (4, 8), (16, 32)),
    Case("vit_b_16", ("--bf16",), (16, 32), (64, 128)),
    Case("gnn", ("--optimizer", "SGD"), (16, 32), (64, 128)),
    Case("resnet50", ("--infer",), (16, 32), (64, 256)),
    Case("bert-base", (), (4, 8), (16, 32)),
    Case("gpt2-medium", ("--bf16", "--checkpoint"), (2, 4), (8, 16)),
    Case("resnet50", ("--bf16", "--optimizer", "SGD"), (32, 64), (128, 256)),
    Case("gpt2-small", ("--bf16", "--compile"), (2, 4), (8, 16)),
    Case("timm-convnext_tiny", (), (16, 32), (64, 96)),
    Case("vit_b_16", ("--infer",), (16, 32), (128, 256)),
    Case("timm-efficientnet_b0", ("--bf16",), (32, 64), (128, 256)),
    Case("bert-base", ("--bf16",), (8, 16), (32, 64)),
    Case("gpt2-medium", (), (1, 2), (4, 8)),
    Case("unet", ("--bf16",), (8, 16), (32, 64)),
    Case("gnn", ("--bf16",), (32, 64), (128, 256)),
    Case("timm-swin_tiny_patch4_window7_224", ("--bf16",), (16, 32), (64, 128)),
    Case("gpt2-small", ("--infer", "--bf16"), (4, 8), (16, 64)),
    Case("resnet50", ("--optimizer", "SGD", "--compile"), (16, 32), (64, 128)),
)


def plain_bytes(case: Case, batch: int, env: dict[str, str]) -> int | str:
    """NVML's count of a plain run at its peak, without other processes' memory; or why there is none."""
    before = probe.device_memory(env, 0)
    if isinstance(before, Unknown):
        return before.reason
    own, how = Unknown("it hangs"), ""
    given_back = 0
    with tempfile.TemporaryDirectory() as folder:
        hold = Path(folder) / "done"
        words = [sys.executable, str(PROGRAM), case.model, str(batch), *case.options]
        words += ["--steps", str(PLAIN_STEPS), "--hold", str(hold)]
        process = subprocess.Popen(
            words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        until_s = time.monotonic() + DEADLINE_S
        while process.poll() is None and not hold.exists() and time.monotonic() < until_s:
            time.sleep(POLL_S)
        is_done = hold.exists()
        if is_done:
            reserved, most = map(int, hold.read_text().split())
            given_back = most - reserved
            own, how = probe.own_bytes(probe.device_memory(env, 0), before, process.pid, reserved)
            hold.unlink()
        else:
            process.kill()
        error = process.communicate()[1]
    if not is_done:
        return (error.strip().splitlines() or ["it hangs"])[-1]
    after = probe.device_memory(env, 0)
    if isinstance(own, Unknown) or isinstance(after, Unknown):
        return own.reason if isinstance(own, Unknown) else after.reason
    if not before.by_pid and how and abs(after.used_bytes - before.used_bytes) > MOST_CHANGE_BYTES:
        return "other processes took or gave back memory meanwhile, and NVML does not list them"
    return own + given_back


def calibrate(case: Case, env: dict[str, str]) -> tuple[MemoryAccount | str, float]:
    """The account of a case, or why there is none; and the seconds that it took."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "memory.json"
        words = [
            sys.executable,
            "-m",
            "dynotune",
            "memory",
            "--json",
            str(out),
            "--no-lock",
            "--run-dir",
            folder,
        ]
        words += ["--values", f"arg.batch={case.calibrated[0]},{case.calibrated[1]}"]
        words += [
            "--predict",
            ",".join(map(str, case.predicted)),
            "--",
            sys.executable,
            str(PROGRAM),
            case.model,
            "{batch}",
            *case.options,
        ]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=3 * DEADLINE_S)
        if done.returncode:
            return done.stderr.strip()[-600:], time.monotonic() - begun_s
        return msgspec.json.decode(out.read_bytes(), type=MemoryAccount), time.monotonic() - begun_s


def without_gpu(case: Case, card: str, env: dict[str, str]) -> Row:
    """What is predicted where no GPU is visible."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "memory.json"
        words = [
            sys.executable,
            "-m",
            "dynotune",
            "memory",
            "--json",
            str(out),
            "--no-lock",
            "--run-dir",
            folder,
        ]
        words += [
            "--gpu",
            card,
            "--",
            sys.executable,
            str(PROGRAM),
            case.model,
            str(case.calibrated[1]),
            *case.options,
        ]
        nowhere = {**env, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(words, env=nowhere, capture_output=True, text=True, timeout=DEADLINE_S)
        row: Row = {"batch": case.calibrated[1], "took_s": time.monotonic() - begun_s}
        if done.returncode:
            return row | {"failed": done.stderr.strip()[-600:]}
        peak = msgspec.json.decode(out.read_bytes(), type=MemoryAccount).ranks[0].peak
    if isinstance(peak, Unknown):
        return row | {"failed": peak.reason}
    told = {term.name: term.num_bytes for term in peak.terms}
    return row | {"predicted_bytes": peak.total_bytes, "requested_bytes": peak.requested_bytes, "terms": told}


def repeated(case: Case, card: str, env: dict[str, str], before: Row) -> Row:
    """Predict without a GPU again; the reference is what an earlier result counted and recorded on the
    GPU."""
    row, earlier = without_gpu(case, card, env), before["without_gpu"]
    if "predicted_bytes" in row:
        held = earlier["predicted_bytes"] / (1 + earlier["error"])
        row |= {
            "error": row["predicted_bytes"] / held - 1,
            "error_of_requested": row["requested_bytes"] / held - 1,
        }
        recorded = [term["terms"] for term in before["terms"] if term["batch"] == row["batch"]]
        if recorded:
            real, then, now = (
                sum(terms.get(name, 0) for name in BLOCKS)
                for terms in (*recorded, earlier["terms"], row["terms"])
            )
            row |= {"error_of_blocks": now / real - 1, "error_of_blocks_before": then / real - 1}
    return {"name": case.name, "points": [], "terms": [], "without_gpu": row}


def measure(case: Case, card: str, env: dict[str, str], *, fill: bool) -> Row:
    """All points of a case."""
    account, took_s = calibrate(case, env)
    row: Row = {"name": case.name, "took_s": took_s, "points": [], "terms": []}
    row["without_gpu"] = without_gpu(case, card, env)
    held = plain_bytes(case, case.calibrated[1], env)
    for told, error in (("predicted_bytes", "error"), ("requested_bytes", "error_of_requested")):
        if told in row["without_gpu"] and isinstance(held, int):
            row["without_gpu"][error] = row["without_gpu"][told] / held - 1
    if isinstance(account, str):
        return row | {"failed": account}
    row["notes"] = account.notes + [note for rank in account.ranks for note in rank.notes]
    capacity = account.capacity
    if isinstance(capacity, Unknown):
        return row | {"failed": capacity.reason}
    for batch, peak in capacity.measured.items():
        row["terms"].append({"batch": batch, **_against(peak, plain_bytes(case, batch, env))})
    predicted = {fit.batch: fit.num_bytes for fit in capacity.fits}
    for batch in case.predicted:
        found = plain_bytes(case, batch, env)
        point: Row = {"batch": batch, "predicted_bytes": predicted[batch]}
        if isinstance(found, str):
            point["failed"] = found
        else:
            point |= {"nvml_bytes": found, "error": point["predicted_bytes"] / found - 1}
        row["points"].append(point)
    if fill and not isinstance(capacity.largest, Unknown):
        row["largest"] = {
            batch: plain_bytes(case, batch, env) for batch in (capacity.largest, capacity.largest + 1)
        }
    return row


def _against(peak: Moment, found: int | str) -> Row:
    """A measured run's terms against NVML's count of a plain run with the same batch."""
    told: Row = {term.name: term.num_bytes for term in peak.terms}
    if isinstance(found, str) or isinstance(peak.process_bytes, Unknown):
        return {"terms": told, "failed": found if isinstance(found, str) else peak.process_bytes.reason}
    return {
        "terms": told,
        "nvml_bytes": found,
        "error": peak.total_bytes / found - 1,
        "unknown_share": peak.of("unknown") / peak.total_bytes,
    }


def summary(rows: list[Row]) -> Row:
    """Over all points."""
    errors = [point["error"] for row in rows for point in row["points"] if "error" in point]
    terms = [term for row in rows for term in row["terms"] if "error" in term]
    without = [row["without_gpu"] for row in rows if "error" in row.get("without_gpu", {})]
    found: Row = {
        "without_gpu": {
            "num_points": len(without),
            "median_error": statistics.median(abs(one["error"]) for one in without) if without else None,
            "worst_under": min((one["error"] for one in without), default=None),
            "worst_over": max((one["error"] for one in without), default=None),
            "longest_s": max((one["took_s"] for one in without), default=None),
            "median_error_of_requested": statistics.median(one["error_of_requested"] for one in without)
            if without
            else None,
        },
        "num_points": len(errors),
    }
    if not errors:
        return found
    return found | {
        "median_error": statistics.median(map(abs, errors)),
        "worst_under": min(errors),
        "worst_over": max(errors),
        "worst_sum_of_terms": max((abs(term["error"]) for term in terms), default=None),
        "worst_unknown_share": max((term["unknown_share"] for term in terms), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit-s", type=float, default=1e9)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--fill", action="append", default=[])
    parser.add_argument("--again", type=Path, help="a result whose plain runs are the reference")
    parser.add_argument("--card", default="H200-141GB", help="the GPU, as --gpu names it")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "memory_calibrated.json")
    given = parser.parse_args()
    earlier = (
        {row["name"]: row for row in json.loads(given.again.read_text())["cases"]} if given.again else {}
    )
    if given.lanes > given.gpus:
        parser.error("lanes that share a GPU count each other: --lanes takes at most --gpus")
    kept: list[Row] = json.loads(given.out.read_text())["cases"] if given.out.exists() else []
    known = {row["name"] for row in kept}
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for lane in range(given.lanes):
        free.put(lane)
    begun_s, lock = time.monotonic(), threading.Lock()

    def run(case: Case) -> None:
        lane = free.get()
        try:
            if time.monotonic() - begun_s > given.limit_s:
                return
            env = dict(os.environ)
            if given.gpus > 1:
                env["CUDA_VISIBLE_DEVICES"] = str(lane)
            if given.again:
                row = repeated(case, given.card, env, earlier[case.name])
            else:
                row = measure(case, given.card, env, fill=case.name in given.fill)
            with lock:
                kept.append(row)
                given.out.write_text(
                    json.dumps({"hardware": describe(), "summary": summary(kept), "cases": kept}, indent=1)
                    + "\n"
                )
                errors = [point.get("error") for point in [*row["points"], row.get("without_gpu", {})]]
                print(case.name, row.get("failed", ""), errors, flush=True)
        finally:
            free.put(lane)

    known |= {
        case.name
        for case in CASES
        if given.again and "error" not in earlier.get(case.name, {}).get("without_gpu", {})
    }
    wanted = [
        case for case in CASES if case.name not in known and (not given.only or case.name in given.only)
    ]
    with ThreadPoolExecutor(given.lanes) as pool:
        list(pool.map(run, wanted))
    print(json.dumps(summary(kept), indent=1))


if __name__ == "__main__":
    main()
