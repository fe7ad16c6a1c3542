"""How fast frames are copied into pinned memory: by threads, and by what other threads do meanwhile; and what
of that a detector's stream makes.

    python benchmarks/frame_copies.py [--out DIR]

Needs a GPU and ultralytics (AGPL-3.0, which is why only benchmarks name it). Chunks of four 1080p frames go
through a ring of three: whole, one parallel copy a chunk, or the rows alone that a resize to 640 reads, one a
frame.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from detector import SIZES
from detector_bench import Bench

from dynotune.runtime.transfer import host_threads
from dynotune.runtime.vision.letterbox import place, rows_read
from lab.provenance import RESULTS, describe, without_places

NUM = 4  # frames a chunk
SHARES = (1.0, 0.875, 0.75, 0.625, 0.5, 0.375)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    bench = Bench("cuda", SIZES["cuda"])
    found = {**describe(), "frames_per_s": rates(bench), "stream_images_per_s": streams(bench)}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "frame_copies_cuda.json").write_text(without_places(json.dumps(found, indent=1)) + "\n")
    for name in ("frames_per_s", "stream_images_per_s"):
        for key, row in found[name].items():
            print(f"{name} {key:>18}  " + "  ".join(f"{what} {value:,.0f}" for what, value in row.items()))


def rates(bench: Bench) -> dict[str, dict[str, float]]:
    """Frames a second, the best of three rounds over all frames."""
    frames = [torch.from_numpy(frame) for frame in bench.frames]
    rows = rows_read(place(bench.sizes["frame"], (bench.sizes["imgsz"], bench.sizes["imgsz"])))
    assert rows is not None
    ring = torch.empty(3, NUM, *bench.frames[0].shape, dtype=torch.uint8, pin_memory=True)
    few = torch.empty(3, NUM, len(rows), *bench.frames[0].shape[1:], dtype=torch.uint8, pin_memory=True)
    openmp, most = host_threads._openmp(), torch.get_num_threads()
    assert openmp is not None

    def whole(some: list[torch.Tensor], chunk: int) -> None:
        torch.stack(some, out=ring[chunk])

    def read(some: list[torch.Tensor], chunk: int) -> None:
        for frame, into in zip(some, few[chunk], strict=True):
            torch.index_select(frame, 0, rows, out=into)

    def best(copy: Callable[[list[torch.Tensor], int], None]) -> float:
        rounds = []
        for _ in range(3):
            started_s = time.perf_counter()
            for at in range(0, len(frames), NUM):
                copy(frames[at : at + NUM], at // NUM % 3)
            rounds.append(len(frames) / (time.perf_counter() - started_s))
        return max(rounds)

    found = {}
    for share in SHARES:
        num = max(1, int(share * most))
        openmp.omp_set_num_threads(num)
        for kind, copy in {"whole": whole, "rows": read}.items():
            row = found[f"{num} threads, {kind}"] = {"alone": best(copy)}
            for name, job in COMPANY.items():
                with meanwhile(job):
                    row[name] = best(copy)
    openmp.omp_set_num_threads(most)
    return found


@contextmanager
def meanwhile(job: Callable[[Any], None]):
    """Another thread does `job` again and again, with a stream of its own."""
    stop, stream = threading.Event(), torch.cuda.Stream()

    def work() -> None:
        while not stop.is_set():
            with torch.cuda.stream(stream):
                job(stream)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def upload(stream: Any) -> None:
    host, there = buffers()
    for _ in range(20):
        there.copy_(host, non_blocking=True)
    reached(stream, spins=False)


@functools.cache
def buffers() -> tuple[torch.Tensor, torch.Tensor]:
    host = torch.empty(1 << 25, dtype=torch.uint8, pin_memory=True)
    return host, torch.empty_like(host, device="cuda")


def spin(stream: Any) -> None:
    torch.cuda._sleep(2_000_000)
    reached(stream, spins=True)


def launch(stream: Any) -> None:
    zeros = torch.zeros(64, device="cuda")
    for _ in range(50):
        zeros.add_(1)
    reached(stream, spins=False)


def reached(stream: Any, *, spins: bool) -> None:
    event = torch.cuda.Event(blocking=not spins)
    event.record(stream)
    event.synchronize()


COMPANY: dict[str, Callable[[Any], None]] = {
    "beside uploads": upload,
    "beside a thread that spins": spin,
    "beside a thread that launches": launch,
}


def streams(bench: Bench) -> dict[str, dict[str, float]]:
    """Images a second of `stream`, the median of five runs over all frames four times, by the share of
    cores."""
    found: dict[str, dict[str, float]] = {}
    kept = host_threads.SHARE
    for batch in bench.sizes["batches"]:
        for share in SHARES:
            # Its threads are counted when it is made.
            host_threads.SHARE = share
            bench.forget()
            detector = bench.detector(batch)
            runs = []
            for _ in range(6):
                started_s = time.perf_counter()
                num = sum(1 for _ in detector.stream(bench.frames * 4))
                runs.append(num / (time.perf_counter() - started_s))
            found.setdefault(f"{share:.1%}", {})[f"batch {batch}"] = statistics.median(runs[1:])
    host_threads.SHARE = kept
    return found


if __name__ == "__main__":
    main()
