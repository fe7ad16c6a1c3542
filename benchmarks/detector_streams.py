"""The detector over many frames: cameras that are served together, and a soak."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from detector_bench import Bench, memory, quantiles, stats_of


def serve(bench: Bench) -> dict[str, Any]:
    """Cameras at a steady rate, one that stalls in the middle and one that dies; what is lost, late, out of
    order."""
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
