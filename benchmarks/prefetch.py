"""How much of the upload a Prefetcher hides, on a trainer that moves a lot: the same steps fed in five ways.

    python benchmarks/prefetch.py [--device cuda] [--rounds 12] [--trace FILE]

`resident` finds its batches on the device: the floor. `blocking` uploads pageable batches with `.to(device)`,
`in-line` pinned ones with `non_blocking=True` on the computing stream; `prefetched` and `prefetched pageable`
go through `dynotune.runtime.Prefetcher`. Each round runs every way once, in random order. What is hidden is 1
- (step - resident step) / upload, the upload timed alone from pinned memory; and, in a profiler's trace, the
share of the copies' time in which kernels run. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from dynotune.runtime import Prefetcher
from lab.provenance import RESULTS, describe

NUM_BATCHES = 8
WAYS = ("resident", "blocking", "in-line", "prefetched", "prefetched pageable")


class Trainer:
    """A multilayer perceptron on batches of float32 rows; `num_blocks` sets what a step costs."""

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        torch.manual_seed(0)
        self.device = device
        self.width = 4096 if device.type == "cuda" else 256
        num_rows = max(num_bytes // (4 * self.width), 1)
        self.pageable = [torch.randn(num_rows, self.width) for _ in range(NUM_BATCHES)]
        self.pinned = (
            [batch.pin_memory() for batch in self.pageable] if device.type == "cuda" else self.pageable
        )
        self.resident = [batch.to(device) for batch in self.pageable]
        self.build(1)

    def build(self, num_blocks: int) -> None:
        layers = [torch.nn.Linear(self.width, self.width, bias=False) for _ in range(num_blocks)]
        self.model = torch.nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-6)

    def build_for(self, ratio: float) -> int:
        """As many blocks as make a step `ratio` times as long as its upload."""
        wanted_s = ratio * self.upload_s()
        for num_blocks in range(1, 64):
            self.build(num_blocks)
            if self.step_s("resident", 20, 10) >= wanted_s:
                return num_blocks
        raise SystemExit("no step is long enough to hide an upload: use --ratio or --megabytes")

    def feed(self, way: str, num_steps: int) -> Iterable[torch.Tensor]:
        """`num_steps` batches on the device."""
        pageable, pinned = (islice(cycle(batches), num_steps) for batches in (self.pageable, self.pinned))
        feeds: dict[str, Callable[[], Iterable[torch.Tensor]]] = {
            "resident": lambda: islice(cycle(self.resident), num_steps),
            "blocking": lambda: (batch.to(self.device) for batch in pageable),
            "in-line": lambda: (batch.to(self.device, non_blocking=True) for batch in pinned),
            "prefetched": lambda: Prefetcher(pinned, self.device),
            "prefetched pageable": lambda: Prefetcher(pageable, self.device),
        }
        return feeds[way]()

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step_s(self, way: str, num_steps: int, num_warmup: int) -> float:
        """Seconds a step, `num_steps` timed as a whole.

        More batches follow: what was uploaded ahead at the start is paid for by what is uploaded ahead at the
        end.
        """
        batches: Iterator[torch.Tensor] = iter(self.feed(way, num_warmup + num_steps + 5))
        for batch in islice(batches, num_warmup):
            self.step(batch)
        self.wait()
        started_s = time.perf_counter()
        for batch in islice(batches, num_steps):
            self.step(batch)
        self.wait()
        return (time.perf_counter() - started_s) / num_steps

    def upload_s(self) -> float:
        """Seconds an upload from pinned memory takes, alone; 0 on the CPU."""
        if self.device.type != "cuda":
            return 0.0
        into = torch.empty_like(self.resident[0])
        took_s = []
        for batch in self.pinned * 4:
            self.wait()
            started_s = time.perf_counter()
            into.copy_(batch, non_blocking=True)
            self.wait()
            took_s.append(time.perf_counter() - started_s)
        return statistics.median(took_s)


def overlap(trainer: Trainer, way: str, trace: Path | None) -> dict[str, float]:
    """Share of the time of uploads in which kernels run, from a profiler's trace of steps in the middle."""
    num_steps = 20
    schedule = torch.profiler.schedule(wait=5, warmup=5, active=num_steps, repeat=1)
    with tempfile.TemporaryDirectory() as folder:
        file = trace or Path(folder) / "trace.json"
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA],
            schedule=schedule,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
        ) as profiler:
            for batch in trainer.feed(way, 10 + num_steps + 5):
                trainer.step(batch)
                profiler.step()
        events = json.loads(file.read_text())["traceEvents"]
    uploads = spans(events, lambda event: event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"])
    kernels = joined(spans(events, lambda event: event.get("cat") == "kernel"))
    uploading_us = sum(end - start for start, end in uploads)
    hidden_us = sum(
        max(0.0, min(end, kernel_end) - max(start, kernel_start))
        for start, end in uploads
        for kernel_start, kernel_end in kernels
    )
    return {
        "num_uploads": len(uploads),
        "uploading_s": round(uploading_us / 1e6, 6),
        "share_under_kernels": round(hidden_us / uploading_us, 4),
    }


def spans(
    events: list[dict[str, Any]], wanted: Callable[[dict[str, Any]], bool]
) -> list[tuple[float, float]]:
    found = [event for event in events if event.get("ph") == "X" and wanted(event)]
    return sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in found)


def joined(ordered: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Intervals without overlaps that cover the same time."""
    whole: list[tuple[float, float]] = []
    for start, end in ordered:
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], end))
        else:
            whole.append((start, end))
    return whole


def summary(result: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Median step of each way, and the share of the upload that it hides, round by round."""
    shown: dict[str, dict[str, float | None]] = {}
    upload_s = result["upload_s"]
    for way in WAYS:
        steps_s = [one[way] for one in result["rounds"]]
        hidden = [1 - (one[way] - one["resident"]) / upload_s for one in result["rounds"]] if upload_s else []
        shown[way] = {
            "step_ms": round(1e3 * statistics.median(steps_s), 4),
            "hidden": round(statistics.median(hidden), 4) if hidden else None,
            "hidden_lowest": round(min(hidden), 4) if hidden else None,
        }
    return shown


def begun(file: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """A result of the same request on the same hardware that can go on."""
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    same = found.get("asked") == asked and found.get("hardware") == describe()["hardware"]
    return found if same else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--megabytes", type=int, help="of a batch; 64 on a GPU, 1 on the CPU")
    parser.add_argument("--ratio", type=float, default=1.5, help="of a step to its upload")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, help="timed in each round; 200 on a GPU, 5 on the CPU")
    parser.add_argument("--trace", type=Path, help="keep the Prefetcher's trace here")
    parser.add_argument("--again", action="store_true", help="begin anew")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    num_bytes = (arguments.megabytes or (64 if on_gpu else 1)) << 20
    num_steps = arguments.steps or (200 if on_gpu else 5)
    asked = {"device": device.type, "batch_bytes": num_bytes, "ratio": arguments.ratio, "steps": num_steps}
    file = RESULTS / f"prefetch_{device.type}.json"
    trainer = Trainer(device, num_bytes)
    result = None if arguments.again else begun(file, asked)
    if result is None:
        num_blocks = trainer.build_for(arguments.ratio) if on_gpu else 1
        result = {
            **describe(),
            "asked": asked,
            "num_blocks": num_blocks,
            "upload_s": None,
            "rounds": [],
            "traces": {},
        }
    trainer.build(result["num_blocks"])
    result["upload_s"] = result["upload_s"] or trainer.upload_s()
    while len(result["rounds"]) < arguments.rounds:
        order = random.sample(WAYS, len(WAYS))
        result["rounds"].append(
            {way: trainer.step_s(way, num_steps, max(num_steps // 10, 3)) for way in order}
        )
        file.write_text(json.dumps(result, indent=1) + "\n")
    if on_gpu:
        result["traces"] = {
            way: overlap(trainer, way, arguments.trace if way == "prefetched" else None)
            for way in ("in-line", "prefetched", "prefetched pageable")
        }
    result["summary"] = summary(result)
    file.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


def show(result: dict[str, Any]) -> None:
    upload_s, num_bytes = result["upload_s"], result["asked"]["batch_bytes"]
    if upload_s:
        print(
            f"upload alone {1e3 * upload_s:.3f} ms ({num_bytes / upload_s / 1e9:.1f} GB/s), "
            f"{num_bytes >> 20} MB"
        )
    print(f"{'batches':<22}{'step, ms':>10}{'hidden':>9}{'lowest':>9}{'under kernels':>15}")
    for way, row in result["summary"].items():
        traced = result["traces"].get(way, {}).get("share_under_kernels")
        cells = [
            f"{value:.1%}" if value is not None else ""
            for value in (row["hidden"], row["hidden_lowest"], traced)
        ]
        print(f"{way:<22}{row['step_ms']:>10.3f}{cells[0]:>9}{cells[1]:>9}{cells[2]:>15}")


if __name__ == "__main__":
    main()
