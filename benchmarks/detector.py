"""`dynotune.runtime.vision.Detector` beside Ultralytics' predict: throughput, latency, many sources, memory.

    python benchmarks/detector.py --device cuda [--only throughput latency serve soak agreement] [--again]

Needs ultralytics (from the registry; AGPL-3.0, which is why only benchmarks name it). Weights are YOLO11n's shape with
random values, its BatchNorms fitted to the frames and its class biases moved until about 300 boxes a frame score above
0.25: so suppression has work, and both sides have the same. Sections that stand in the result are not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import resource
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hardware import RESULTS, describe, without_places

from dynotune.runtime.vision import Detector

NUM_CANDIDATES = 300
SIZES = {
    "cuda": {
        "imgsz": 640, "frame": (1080, 1920), "num_frames": 256, "batches": (1, 16), "rounds": 5, "latency": 5000,
        "sources": 32, "fps": 30.0, "serve_s": 120.0, "soak": 10000, "max_batch": 16,
    },
    "cpu": {
        "imgsz": 160, "frame": (240, 320), "num_frames": 16, "batches": (1, 4), "rounds": 3, "latency": 100,
        "sources": 4, "fps": 5.0, "serve_s": 5.0, "soak": 10000, "max_batch": 4,
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--again", action="store_true", help="Run sections that stand in the result.")
    parser.add_argument("--soak", type=int, help="Frames of the soak.")
    parser.add_argument("--serve-s", type=float, help="Seconds of serving.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    target = args.out / f"detector_{args.device}.json"
    kept = json.loads(target.read_text()).get("sections", {}) if target.exists() else {}
    sizes = {**SIZES[args.device]}
    sizes.update({name: value for name in ("soak", "serve_s") if (value := getattr(args, name)) is not None})
    bench: Bench | None = None
    for name in args.only:
        if name in kept and not args.again:
            continue
        bench = bench or Bench(args.device, sizes)
        print(f"{name} …", flush=True)
        kept[name] = {"command": describe()["command"], **SECTIONS[name](bench)}
        text = json.dumps({**describe(), "sizes": sizes, "sections": kept}, indent=1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(without_places(text) + "\n")
    show(kept)


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

    def detector(self, batch: int | tuple[int, ...], half: bool | None = None) -> Detector:
        half = self.cuda if half is None else half
        if (batch, half) not in self._detectors:
            started_s = time.perf_counter()
            detector = Detector(
                self.model, self.sizes["imgsz"], batch=batch, dtype=torch.float16 if half else torch.float32,
                channels_last=half, max_frame=self.sizes["frame"],
            )  # fmt: skip
            detector.prepare(self.sizes["frame"])
            print(f"  built for {batch} in {time.perf_counter() - started_s:.0f} s", flush=True)
            self._detectors[batch, half] = detector
        return self._detectors[batch, half]

    def forget(self) -> None:
        """Drops what was built."""
        for detector in self._detectors.values():
            detector.close()
        self._detectors.clear()
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
        options = {"imgsz": self.sizes["imgsz"], "device": 0 if self.cuda else "cpu", "batch": batch, "verbose": False}
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

    from dynotune.runtime.letterbox import Letterbox, place

    model = YOLO("yolo11n.yaml", verbose=False).model.to(device)
    at = place(frames[0].shape[:2], (imgsz, imgsz))
    images = torch.empty(len(frames), 3, at.height, at.width, device=device)
    Letterbox(at, torch.device(device), swap_channels=True)(torch.from_numpy(np.stack(frames)).to(device), images)
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


def per_second(work: Callable[[], int]) -> float:
    started_s = time.perf_counter()
    num = work()
    return num / (time.perf_counter() - started_s)


def groups(frames: list[np.ndarray], batch: int) -> Iterator[list[np.ndarray]]:
    return (frames[at : at + batch] for at in range(0, len(frames) - batch + 1, batch))


def throughput(bench: Bench) -> dict[str, Any]:
    """Images a second, side by side in turns of random order, with the limits beside them."""
    found: dict[str, Any] = {}
    for batch in bench.sizes["batches"]:
        detector = bench.detector(batch)

        def predict(detector: Detector = detector, batch: int = batch) -> int:
            return sum(len(detector.predict(part)) for part in groups(bench.frames, batch))

        def stream(detector: Detector = detector) -> int:
            return sum(1 for _ in detector.stream(bench.frames))

        arms: dict[str, Callable[[], int]] = {"predict": predict, "stream": stream}
        for half in (False, True) if bench.cuda else (False,):
            ultralytics = bench.ultralytics(batch, half)
            arms[f"ultralytics {'half' if half else 'fp32'}"] = lambda ultralytics=ultralytics, batch=batch: sum(
                len(ultralytics(part)) for part in groups(bench.frames, batch)
            )
        values: dict[str, list[float]] = {name: [] for name in arms}
        for arm in arms.values():
            arm()
        for turn in range(bench.sizes["rounds"]):
            names = list(arms)
            random.Random(turn).shuffle(names)
            for name in names:
                gc.collect()
                values[name].append(per_second(arms[name]))
        middle = {name: statistics.median(those) for name, those in values.items()}
        best = max(middle["predict"], middle["stream"])
        others = {name: rate for name, rate in middle.items() if name.startswith("ultralytics")}
        bounds = limits(bench, batch)
        found[f"batch {batch}"] = {
            "precision": "float16" if bench.cuda else "float32",
            "images_per_s": middle,
            "rounds": values,
            "over_ultralytics": {name: best / rate for name, rate in others.items()},
            "limits_images_per_s": bounds,
            "stream_over_limit": middle["stream"] / min(bounds.values()),
            "detector": stats_of(detector),
        }
    return found


def limits(bench: Bench, batch: int) -> dict[str, float]:
    """What each part alone allows, images a second."""
    frame_bytes = bench.frames[0].nbytes
    buffer = torch.empty(frame_bytes, dtype=torch.uint8, pin_memory=bench.cuda).view(bench.frames[0].shape)

    def copy() -> int:
        for frame in bench.frames:
            buffer.copy_(torch.from_numpy(frame))
        return len(bench.frames)

    copy()
    found = {"staging": max(per_second(copy) for _ in range(3))}
    network = next(n for name, n in bench.detector(batch)._lanes.networks.items() if name.startswith(f"{batch}x"))
    images = network._new_images()
    num = 200 if bench.cuda else 10

    def forward() -> int:
        for _ in range(num):
            network.engine(images)
        if bench.cuda:
            torch.cuda.synchronize()
        return num * batch

    forward()
    found["forward"] = max(per_second(forward) for _ in range(3))
    if bench.cuda:
        big = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty_like(big, device="cuda")

        def upload() -> int:
            for _ in range(4):
                on_device.copy_(big, non_blocking=True)
            torch.cuda.synchronize()
            return 4 * big.numel() // frame_bytes

        upload()
        found["pcie"] = max(per_second(upload) for _ in range(3))
    return found


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"p{share:g}_s": ordered[min(len(ordered) - 1, int(share / 100 * len(ordered)))] for share in (50, 99, 99.9)
    }


def latency(bench: Bench) -> dict[str, Any]:
    """Each frame's time at batch 1 beside that of the bare forward, in alternating blocks; what it allocates."""
    detector, num = bench.detector(1), bench.sizes["latency"]
    network = next(iter(detector._lanes.networks.values()))
    images = network._new_images()
    frames = [bench.frames[at % len(bench.frames)] for at in range(num)]

    def bare() -> None:
        network.engine(images)
        if bench.cuda:
            torch.cuda.current_stream().synchronize()

    def timed(work: Callable[[], Any]) -> float:
        started_s = time.perf_counter()
        work()
        return time.perf_counter() - started_s

    for frame in frames[: min(num, 200)]:
        detector.predict(frame)
        bare()
    before, ours, alone = memory(bench), [], []
    for at in range(0, num, 100):
        ours += [timed(lambda frame=frame: detector.predict(frame)) for frame in frames[at : at + 100]]
        alone += [timed(bare) for _ in range(100)]
    after = memory(bench)
    ratio = {name: q["p99_s"] / q["p50_s"] for name, q in (("ours", quantiles(ours)), ("bare", quantiles(alone)))}
    return {
        "num_frames": num,
        "predict": quantiles(ours),
        "bare_forward": quantiles(alone),
        "p99_over_p50": ratio,
        "p99_over_p50_against_bare": ratio["ours"] / ratio["bare"],
        "memory_before": before,
        "memory_after": after,
        "syncs_per_result": {
            "predict": syncs(bench, lambda: [detector.predict(frame) for frame in frames[:50]], 50),
            "stream": syncs(bench, lambda: deque(detector.stream(frames[:50]), maxlen=0), 50),
        },
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


SYNCS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")


def syncs(bench: Bench, work: Callable[[], Any], num: int) -> dict[str, float]:
    """Waits of the host for the device, by call, for each of `num` results that `work` takes."""
    if not bench.cuda:
        return {}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    waits = []
    # The profiler waits at its end too: what it does around nothing does not count.
    for job in (lambda: None, work):
        with torch.profiler.profile(activities=activities) as profile:
            job()
        waits.append({event.key: event.count for event in profile.key_averages() if event.key in SYNCS})
    return {name: (count - waits[0].get(name, 0)) / num for name, count in waits[1].items()}


def serve(bench: Bench) -> dict[str, Any]:
    """Cameras at a steady rate, one that stalls in the middle and one that dies; what is lost, late, out of order."""
    sizes = bench.sizes
    powers = tuple(2**power for power in range(int(math.log2(sizes["max_batch"])) + 1))
    detector = bench.detector(powers if bench.cuda else sizes["max_batch"])
    num = int(sizes["serve_s"] * sizes["fps"])
    start_s = time.monotonic() + 0.5
    stop = threading.Event()

    def camera(number: int, frames: int) -> Iterator[np.ndarray]:
        # Cameras are not in step.
        offset_s = number / sizes["sources"] / sizes["fps"]
        for index in range(frames):
            time.sleep(max(0.0, start_s + offset_s + index / sizes["fps"] - time.monotonic()))
            yield bench.frames[(number * 7 + index) % len(bench.frames)]

    def stalls() -> Iterator[np.ndarray]:
        yield from camera(1, num // 4)
        stop.wait()

    def dies() -> Iterator[np.ndarray]:
        yield from camera(2, num // 4)
        raise OSError("unplugged, on purpose")

    sources = {f"camera {number}": camera(number, num) for number in range(sizes["sources"])}
    seen = dict.fromkeys(sources, 0)
    disordered, late, memories = 0, [], []
    server = detector.serve({**sources, "stalls": stalls(), "dies": dies()}, max_wait_s=0.005, queue=8)
    memory_every = max(1, num * sizes["sources"] // 8)
    for served in server:
        if served.source in seen:
            disordered += served.index != seen[served.source]
            seen[served.source] += 1
            late.append(served.latency_s)
            if len(late) % memory_every == 0:
                memories.append(memory(bench))
            if len(late) == num * sizes["sources"]:
                break
    stats = server.stats()
    stop.set()
    server.close()
    return {
        "num_sources": sizes["sources"],
        "fps": sizes["fps"],
        "seconds": sizes["serve_s"],
        "num_expected": num * sizes["sources"],
        "num_served": sum(seen.values()),
        "num_lost": num * sizes["sources"] - sum(seen.values()),
        "num_dropped": sum(one.num_dropped for one in stats.values()),
        "num_out_of_order": disordered,
        "latency": quantiles(late),
        "stalled_source": stats["stalls"].num_served,
        "dead_source": str(stats["dies"].error),
        "memory": memories,
        "detector": stats_of(detector),
    }


def soak(bench: Bench) -> dict[str, Any]:
    """Many frames through `stream`, and what memory does meanwhile."""
    detector, num = bench.detector(bench.sizes["batches"][-1]), bench.sizes["soak"]

    def source() -> Iterator[np.ndarray]:
        for at in range(num):
            yield bench.frames[at % len(bench.frames)]

    started_s, memories = time.perf_counter(), []
    for count, _ in enumerate(detector.stream(source()), 1):
        if count % max(1, num // 10) == 0:
            memories.append(memory(bench))
    # The first tenth fills caches.
    growth = memories[-1]["rss_bytes"] - memories[0]["rss_bytes"]
    return {
        "num_frames": num,
        "images_per_s": num / (time.perf_counter() - started_s),
        "rss_growth_bytes": growth,
        "memory": memories,
        "detector": stats_of(detector),
    }


def agreement(bench: Bench) -> dict[str, Any]:
    """Boxes of both sides on the same frames in float32, without TF32: how many have a counterpart.

    Random weights amplify the least difference, so other precisions would say nothing here.
    """
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    frames = bench.frames[:16]
    try:
        theirs = [result.boxes.data.cpu() for frame in frames for result in bench.ultralytics(1, False)([frame])]
        ours = [one.rows for one in bench.detector(1, False).predict(frames)]
    finally:
        torch.backends.cudnn.allow_tf32 = before
        bench.forget()
    both = sum(num_matched(a, b) for a, b in zip(theirs, ours, strict=True))
    return {"num_ultralytics": sum(map(len, theirs)), "num_ours": sum(map(len, ours)), "num_matched": both}


def num_matched(theirs: torch.Tensor, ours: torch.Tensor) -> int:
    """Boxes of one side with one of the other of the same class, within 2 pixels and 0.02 of score."""
    if not len(theirs) or not len(ours):
        return 0
    near = (theirs[:, None, :4] - ours[None, :, :4]).abs().amax(2) < 2
    near &= (theirs[:, None, 4] - ours[None, :, 4]).abs() < 0.02
    near &= theirs[:, None, 5] == ours[None, :, 5]
    return int(near.any(1).sum())


def stats_of(detector: Detector) -> dict[str, Any]:
    stats = detector.stats()
    engines = {
        name: {"mode": [bucket.mode for bucket in one.buckets], "compiled": [b.compiled for b in one.buckets],
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


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "agreement": agreement,
    "throughput": throughput,
    "latency": latency,
    "soak": soak,
    "serve": serve,
}


def show(kept: dict[str, Any]) -> None:
    print()
    for batch, one in kept.get("throughput", {}).items():
        if batch == "command":
            continue
        rates = "  ".join(f"{name} {rate:,.0f}" for name, rate in one["images_per_s"].items())
        bounds = "  ".join(f"{name} {rate:,.0f}" for name, rate in one["limits_images_per_s"].items())
        over = "  ".join(f"{ratio:.1f} x {name}" for name, ratio in one["over_ultralytics"].items())
        print(f"{batch:9} images/s ({one['precision']})  {rates}\n{'':9} limits  {bounds}")
        print(f"{'':9} best is {over}; stream is {one['stream_over_limit']:.0%} of the lowest limit")
        print(f"{'':9} suppression unsettled in {one['detector']['unsettled_share']:.1%} of batches")
    if one := kept.get("latency"):
        ours, bare = one["predict"], one["bare_forward"]
        print(
            f"latency   p50 {ours['p50_s'] * 1e3:.3f} ms  p99 {ours['p99_s'] * 1e3:.3f} ms, {one['num_frames']} frames"
        )
        print(f"{'':9} bare forward p50 {bare['p50_s'] * 1e3:.3f} ms  p99 {bare['p99_s'] * 1e3:.3f} ms")
        print(f"{'':9} p99/p50 is {one['p99_over_p50_against_bare']:.2f} times the bare forward's")
        grown = {k: one["memory_after"][k] - one["memory_before"][k] for k in one["memory_after"]}
        print(f"{'':9} grown by {grown}\n{'':9} syncs a result {one['syncs_per_result']}")
    if one := kept.get("soak"):
        print(
            f"soak      {one['num_frames']} frames, {one['images_per_s']:,.0f}/s, "
            f"memory grew {one['rss_growth_bytes']:,} bytes"
        )
    if one := kept.get("serve"):
        print(
            f"serve     {one['num_sources']} sources at {one['fps']:g}/s for {one['seconds']:g} s: "
            f"{one['num_lost']} lost, {one['num_out_of_order']} out of order, "
            f"p99 {one['latency']['p99_s'] * 1e3:.1f} ms"
        )
    if one := kept.get("agreement"):
        print(
            f"agreement {one['num_matched']} of Ultralytics' {one['num_ultralytics']} boxes found in float32, "
            f"ours {one['num_ours']}"
        )


if __name__ == "__main__":
    main()
