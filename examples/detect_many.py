"""Finds objects in many live sources at once, in batches of the frames that are there.

    python examples/detect_many.py cam1.mp4 cam2.mp4 --weights yolo11n.pt --device cuda --half \\
        --batch 1 2 4 8 16
    python examples/detect_many.py --cameras 8 --fps 30        # made-up cameras

What a video and weights need stands in detect_video.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from detect_video import frames_of, model_of

from dynotune.runtime import SourceError
from dynotune.runtime.vision import Detector


def live(frames: Iterator[np.ndarray], fps: float) -> Iterator[np.ndarray]:
    """Frames at the rate of a camera."""
    start_s = time.monotonic()
    for number, frame in enumerate(frames):
        time.sleep(max(0.0, start_s + number / fps - time.monotonic()))
        yield frame


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="*", help="Files, or numbers of cameras.")
    parser.add_argument("--cameras", type=int, default=4, help="Made-up ones, where no videos are given.")
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--frames", type=int, help="Of each source.")
    parser.add_argument("--weights", help="Of a YOLO model, for Ultralytics to load.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--half", action="store_true", help="Compute in float16.")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="Batch sizes to build.")
    parser.add_argument("--max-wait-ms", type=float, default=5.0, help="For a batch to fill.")
    parser.add_argument("--drop", choices=["never", "oldest", "newest"], default="oldest")
    parser.add_argument("--size", type=int, nargs=2, default=(720, 1280), metavar=("HEIGHT", "WIDTH"))
    args = parser.parse_args()

    names = args.videos or [f"camera {number}" for number in range(args.cameras)]
    videos = args.videos or [None] * args.cameras
    sources = {
        name: live(islice(frames_of(video, tuple(args.size)), args.frames), args.fps)
        for name, video in zip(names, videos, strict=True)
    }
    dtype = torch.float16 if args.half else torch.float32
    with Detector(
        model_of(args.weights),
        args.imgsz,
        conf=0.6 if args.weights is None else 0.25,
        batch=args.batch,
        dtype=dtype,
        channels_last=args.half,
        device=args.device,
    ) as detector:
        # Cameras do not wait while something is built.
        detector.prepare(tuple(args.size))
        late_s = []
        with detector.serve(sources, max_wait_s=args.max_wait_ms / 1000, drop=args.drop) as server:
            try:
                late_s.extend(served.latency_s for served in server)
            except SourceError as error:
                print(error)
            for name, stats in server.stats().items():
                print(f"{name}  {stats.num_served} served, {stats.num_dropped} dropped")
        late_s.sort()
        if late_s:
            p50, p99 = (late_s[int(share * (len(late_s) - 1))] * 1000 for share in (0.5, 0.99))
            print(
                f"{len(late_s)} frames in {detector.stats().num_batches} batches, p50 {p50:.1f} ms, p99 "
                f"{p99:.1f} ms"
            )


if __name__ == "__main__":
    main()
