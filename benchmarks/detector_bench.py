"""What the measurements of the detector stand on: frames, a model that finds boxes in them, and both sides
built.

Weights are YOLO11n's shape with random values, its BatchNorms fitted to the frames and its class biases moved
until about 300 boxes a frame score above 0.25: so suppression has work, and both sides have the same.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynotune.runtime import Engine
from dynotune.runtime.vision import Detector
from dynotune.runtime.vision.letterbox import Letterbox, place
from dynotune.runtime.vision.network import OneOutput

NUM_CANDIDATES = 300


class Bench:
    """Frames, the planted model, and what runs it, each built once."""

    def __init__(self, device: str, sizes: dict[str, Any]) -> None:
        self.device, self.sizes = device, sizes
        self.cuda = device == "cuda"
        torch.manual_seed(0)
        self.frames = make_frames(sizes["num_frames"], sizes["frame"])
        self.model = planted(self.frames[:8], sizes["imgsz"], device)
        self._detectors: dict[Any, Detector] = {}
        self._yolos: dict[Any, Any] = {}
        self._forwards: dict[int, Callable[[], Any]] = {}

    def detector(self, batch: int | tuple[int, ...], half: bool | None = None) -> Detector:
        half = self.cuda if half is None else half
        if (batch, half) not in self._detectors:
            started_s = time.perf_counter()
            detector = Detector(
                self.model, self.sizes["imgsz"], batch=batch, dtype=torch.float16 if half else torch.float32,
                channels_last=half, max_frame=self.sizes["frame"],
                # Random weights amplify rounding as trained ones do not; the error is in the result.
                tolerance=0.1,
            )  # fmt: skip
            detector.prepare(self.sizes["frame"])
            print(f"  built for {batch} in {time.perf_counter() - started_s:.0f} s", flush=True)
            self._detectors[batch, half] = detector
        return self._detectors[batch, half]

    def forward(self, batch: int) -> Callable[[], Any]:
        """One captured forward alone of the same model, shape and precision as the detector's, its output
        lent."""
        if batch not in self._forwards:
            at = place(self.sizes["frame"], (self.sizes["imgsz"], self.sizes["imgsz"]))
            engine = Engine(
                OneOutput(self.model).eval(), [(batch, 3, at.height, at.width)], channels_last=self.cuda,
                dtype=torch.float16 if self.cuda else torch.float32, borrow=True, tolerance=0.1,
            )  # fmt: skip
            images = torch.rand(batch, 3, at.height, at.width, device=self.device).to(engine.dtype)
            if self.cuda:
                images = images.to(memory_format=torch.channels_last)
            self._forwards[batch] = lambda: engine(images)
        return self._forwards[batch]

    def forget(self) -> None:
        """Drops what was built."""
        for detector in self._detectors.values():
            detector.close()
        self._detectors.clear()
        self._forwards.clear()
        self._yolos.clear()

    def ultralytics(self, batch: int, half: bool) -> Callable[[list[np.ndarray]], Any]:
        """`predict` of Ultralytics with the planted weights."""
        if (batch, half) not in self._yolos:
            from ultralytics import YOLO

            yolo = YOLO("yolo11n.yaml", verbose=False)
            yolo.model.load_state_dict(self.model.state_dict())
            yolo.model.eval()
            self._yolos[batch, half] = yolo
        yolo = self._yolos[batch, half]
        options = {
            "imgsz": self.sizes["imgsz"],
            "device": 0 if self.cuda else "cpu",
            "batch": batch,
            "verbose": False,
        }
        if half:
            options["half"] = True
        return lambda frames: yolo.predict(frames, **options)


def make_frames(num: int, size: tuple[int, int]) -> list[np.ndarray]:
    """Distinct frames, each its own memory: blocks of colour under noise."""
    rng = np.random.default_rng(0)
    block = max(8, size[1] // 60)
    made = []
    for _ in range(num):
        coarse = rng.integers(0, 224, (-(-size[0] // block), -(-size[1] // block), 3), dtype=np.uint8)
        frame = coarse.repeat(block, 0).repeat(block, 1)[: size[0], : size[1]]
        made.append(frame + rng.integers(0, 32, frame.shape, dtype=np.uint8))
    return made


@torch.no_grad()
def planted(frames: list[np.ndarray], imgsz: int, device: str) -> torch.nn.Module:
    """YOLO11n with random weights that finds about `NUM_CANDIDATES` boxes in a frame."""
    from ultralytics import YOLO

    model = YOLO("yolo11n.yaml", verbose=False).model.to(device)
    at = place(frames[0].shape[:2], (imgsz, imgsz))
    images = torch.empty(len(frames), 3, at.height, at.width, device=device)
    Letterbox(at, torch.device(device), swap_channels=True)(
        torch.from_numpy(np.stack(frames)).to(device), images
    )
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    for _ in range(2):
        model(images)
    model.eval().requires_grad_(False)
    scores = model(images)[0][:, 4:].double().clamp(1e-12, 1 - 1e-12)
    best = scores.logit().amax(1)
    wanted = best.sort(dim=1, descending=True).values[:, min(NUM_CANDIDATES, best.shape[1] // 4)].mean()
    for branch in model.model[-1].cv3:
        branch[-1].bias += math.log(0.25 / 0.75) - wanted.item()
    return model


def groups(frames: list[np.ndarray], batch: int) -> Iterator[list[np.ndarray]]:
    return (frames[at : at + batch] for at in range(0, len(frames) - batch + 1, batch))


def per_second(work: Callable[[], int]) -> float:
    started_s = time.perf_counter()
    num = work()
    return num / (time.perf_counter() - started_s)


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"p{share:g}_s": ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))]
        for share in (50, 99, 99.9)
    }


def memory(bench: Bench) -> dict[str, int]:
    """What grows where something leaks."""
    found = {"rss_bytes": rss_bytes()}
    if bench.cuda:
        stats = torch.cuda.memory_stats()
        found |= {
            "cuda_mallocs": stats["num_device_alloc"],
            "allocated_bytes": stats["allocated_bytes.all.current"],
            "reserved_bytes": stats["reserved_bytes.all.current"],
        }
        if hasattr(torch.cuda, "host_memory_stats"):
            found["pinned_allocs"] = torch.cuda.host_memory_stats().get("num_host_alloc", 0)
    return found


def rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def stats_of(detector: Detector) -> dict[str, Any]:
    stats = detector.stats()
    engines = {
        name: {"mode": [bucket.mode for bucket in one.buckets], "way": [b.way for b in one.buckets],
               "error": [b.error for b in one.buckets], "build_s": [b.build_s for b in one.buckets],
               "fallbacks": one.fallbacks, "p50_s": one.p50_s, "p99_s": one.p99_s}
        for name, one in stats.engines.items()
    }  # fmt: skip
    return {
        "num_frames": stats.num_frames,
        "candidates_per_frame": stats.num_candidates / max(1, stats.num_frames),
        "num_cut": stats.num_cut,
        "unsettled_share": stats.num_unsettled / max(1, stats.num_batches),
        "num_lanes": stats.num_lanes,
        "engines": engines,
    }
