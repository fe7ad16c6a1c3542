"""`dynotune.runtime.vision.Detector` beside Ultralytics' predict: throughput, latency, many sources, memory.

    python benchmarks/detector.py --device cuda [--only throughput latency serve soak agreement] [--again]

Needs ultralytics (from the registry; AGPL-3.0, which is why only benchmarks name it). Sections that stand in
the result are not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from detector_bench import Bench, groups, memory, per_second, quantiles, stats_of
from detector_streams import serve, soak

from dynotune.runtime.vision import Detector
from dynotune.runtime.vision.letterbox import place, rows_read
from lab.provenance import RESULTS, describe, without_places

SIZES = {
    "cuda": {
        "imgsz": 640, "frame": (1080, 1920), "num_frames": 256, "batches": (1, 16), "rounds": 5, "passes": 4,
        "latency": 5000, "blocks": (100, 1000), "sources": 32, "fps": 30.0, "serve_s": 120.0, "soak": 10000,
        "max_batch": 16,
    },
    "cpu": {
        "imgsz": 160, "frame": (240, 320), "num_frames": 16, "batches": (1, 4), "rounds": 3, "passes": 1,
        "latency": 100, "blocks": (20, 100), "sources": 4, "fps": 5.0, "serve_s": 5.0, "soak": 10000,
        "max_batch": 4,
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
    document = json.loads(target.read_text()) if target.exists() else {}
    kept = document.get("sections", {})
    sizes = {**SIZES[args.device]}
    sizes.update({name: value for name in ("soak", "serve_s") if (value := getattr(args, name)) is not None})
    bench: Bench | None = None
    for name in args.only:
        if name in kept and not args.again:
            continue
        bench = bench or Bench(args.device, sizes)
        print(f"{name} …", flush=True)
        kept[name] = {"command": describe()["command"], **SECTIONS[name](bench)}
        # What else stands there, by hand, stays.
        text = json.dumps({**document, **describe(), "sizes": sizes, "sections": kept}, indent=1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(without_places(text) + "\n")
    show(kept)


def throughput(bench: Bench) -> dict[str, Any]:
    """Images a second, side by side in turns of random order, with the limits beside them."""
    found: dict[str, Any] = {}
    for batch in bench.sizes["batches"]:
        detector = bench.detector(batch)

        def predict(detector: Detector = detector, batch: int = batch) -> int:
            return sum(len(detector.predict(part)) for part in groups(bench.frames, batch))

        # Several times over, as filling and draining the pipeline is no part of its rate.
        def stream(detector: Detector = detector) -> int:
            return sum(1 for _ in detector.stream(bench.frames * bench.sizes["passes"]))

        arms: dict[str, Callable[[], int]] = {"predict": predict, "stream": stream}
        for half in (False, True) if bench.cuda else (False,):
            ultralytics = bench.ultralytics(batch, half)
            arms[f"ultralytics {'half' if half else 'fp32'}"] = lambda ultralytics=ultralytics, batch=batch: (
                sum(len(ultralytics(part)) for part in groups(bench.frames, batch))
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
            "stream_over_limit": {
                kind: middle["stream"] / min(those.values()) for kind, those in bounds.items()
            },
            "detector": stats_of(detector),
        }
    return found


def limits(bench: Bench, batch: int) -> dict[str, dict[str, float]]:
    """What each part alone allows, images a second: with whole frames, and with the rows of them that are
    read."""
    whole = torch.from_numpy(bench.frames[0])
    rows = rows_read(place(tuple(whole.shape[:2]), (bench.sizes["imgsz"], bench.sizes["imgsz"])))
    kinds = {"whole frames": whole} | ({} if rows is None else {"rows that are read": whole[rows]})
    found = {}
    forward = forward_alone(bench, batch)
    for kind, frame in kinds.items():
        buffer = torch.empty(frame.shape, dtype=torch.uint8, pin_memory=bench.cuda)

        def copy(buffer: torch.Tensor = buffer, few: bool = kind != "whole frames") -> int:
            for one in map(torch.from_numpy, bench.frames):
                if few:
                    torch.index_select(one, 0, rows, out=buffer)
                else:
                    buffer.copy_(one)
            return len(bench.frames)

        copy()
        found[kind] = {"staging": max(per_second(copy) for _ in range(3)), "forward": forward}
        if bench.cuda:
            found[kind]["pcie"] = uploaded_bytes_per_s() / frame.numel()
    return found


def forward_alone(bench: Bench, batch: int) -> float:
    num, alone = 200 if bench.cuda else 10, bench.forward(batch)

    def forward() -> int:
        for _ in range(num):
            alone()
        if bench.cuda:
            torch.cuda.synchronize()
        return num * batch

    forward()
    return max(per_second(forward) for _ in range(3))


def uploaded_bytes_per_s() -> float:
    big = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty_like(big, device="cuda")

    def upload() -> int:
        for _ in range(4):
            on_device.copy_(big, non_blocking=True)
        torch.cuda.synchronize()
        return 4 * big.numel()

    upload()
    return max(per_second(upload) for _ in range(3))


def latency(bench: Bench) -> dict[str, Any]:
    """Each frame's time at batch 1 beside that of the bare forward, in alternating blocks; what it
    allocates."""
    detector, num, forward = bench.detector(1), bench.sizes["latency"], bench.forward(1)
    frames = [bench.frames[at % len(bench.frames)] for at in range(num)]

    def bare() -> None:
        forward()
        if bench.cuda:
            torch.cuda.current_stream().synchronize()

    def timed(work: Callable[[], Any]) -> float:
        started_s = time.perf_counter()
        work()
        return time.perf_counter() - started_s

    for frame in frames[: min(num, 200)]:
        detector.predict(frame)
        bare()
    before = memory(bench)
    blocks = {}
    for length in bench.sizes["blocks"]:
        ours, alone = [], []
        for at in range(0, num, length):
            block = frames[at : at + length]
            ours += [timed(lambda frame=frame: detector.predict(frame)) for frame in block]
            alone += [timed(bare) for _ in block]
        blocks[length] = beside(ours, alone, length)
    return {
        "num_frames": num,
        **blocks[max(blocks)],
        "shorter_blocks": [blocks[length] for length in sorted(blocks)[:-1]],
        "memory_before": before,
        "memory_after": memory(bench),
        "syncs_per_result": {
            "predict": syncs(bench, lambda: [detector.predict(frame) for frame in frames[:50]], 50),
            "stream": syncs(bench, lambda: deque(detector.stream(frames[:50]), maxlen=0), 50),
        },
    }


def beside(ours: list[float], alone: list[float], length: int) -> dict[str, Any]:
    """What is said of both, measured in alternating blocks of `length`.

    A block's first frame finds threads asleep and caches cold. It stands by itself: of blocks of a hundred it
    would be just the slowest hundredth, and p99 the time after a pause.
    """
    quantiles_of = {"predict": quantiles(ours), "bare_forward": quantiles(alone)}
    ratio = {name: q["p99_s"] / q["p50_s"] for name, q in quantiles_of.items()}
    first = {"predict": ours[::length], "bare_forward": alone[::length]}
    return {
        "block": length,
        **quantiles_of,
        "p99_over_p50": ratio,
        "p99_over_p50_against_bare": ratio["predict"] / ratio["bare_forward"],
        "first_of_a_block_s": {name: statistics.median(times) for name, times in first.items()},
    }


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


def agreement(bench: Bench) -> dict[str, Any]:
    """Boxes of both sides on the same frames in float32, without TF32: how many have a counterpart.

    Random weights amplify the least difference, so other precisions would say nothing here.
    """
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    frames = bench.frames[:16]
    try:
        theirs = [
            result.boxes.data.cpu() for frame in frames for result in bench.ultralytics(1, False)([frame])
        ]
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
        over = "  ".join(f"{ratio:.1f} x {name}" for name, ratio in one["over_ultralytics"].items())
        print(f"{batch:9} images/s ({one['precision']})  {rates}\n{'':9} best is {over}")
        for kind, those in one["limits_images_per_s"].items():
            bounds = "  ".join(f"{name} {rate:,.0f}" for name, rate in those.items())
            share = one["stream_over_limit"][kind]
            print(f"{'':9} limits of {kind}: {bounds}; stream is {share:.0%} of the lowest")
        print(f"{'':9} suppression unsettled in {one['detector']['unsettled_share']:.1%} of batches")
    if one := kept.get("latency"):
        for blocks in (one, *one.get("shorter_blocks", [])):
            ours, bare = blocks["predict"], blocks["bare_forward"]
            print(
                f"latency   p50 {ours['p50_s'] * 1e3:.3f} ms  p99 {ours['p99_s'] * 1e3:.3f} ms, "
                f"{one['num_frames']} frames, blocks of {blocks['block']}\n"
                f"{'':9} bare forward p50 {bare['p50_s'] * 1e3:.3f} ms  p99 {bare['p99_s'] * 1e3:.3f} ms\n"
                f"{'':9} p99/p50 is {blocks['p99_over_p50_against_bare']:.2f} times the bare forward's\n"
                f"{'':9} a block's first {blocks['first_of_a_block_s']['predict'] * 1e3:.3f} ms, "
                f"bare {blocks['first_of_a_block_s']['bare_forward'] * 1e3:.3f} ms"
            )
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
            f"agreement {one['num_matched']} of Ultralytics' {one['num_ultralytics']} boxes found in "
            "float32, "
            f"ours {one['num_ours']}"
        )


if __name__ == "__main__":
    main()
