"""Finds objects in many cameras in real time: files as cameras, several sizes, stalls, ends, reconnects.

    python examples/many_cameras.py street.mp4 hall.mp4 --cameras 16 --weights yolo11n.pt --device cuda --half
    python examples/many_cameras.py --cameras 6 --stalls 1 --ends 2 --garbage 3      # made-up cameras

A camera that gives nothing for a while is opened anew; one that cannot be opened any more has ended, and the
others do not notice. Each camera has a short queue: when the model is late, its oldest frame is dropped and
counted, so that results are late by a few frames at most. How many cameras fit:

    dynotune plan streams --fps 25 --deadline 80ms -- python examples/many_cameras.py --cameras {streams}
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from detect_video import frames_of, model_of

import dynotune
from dynotune.runtime import SourceError
from dynotune.runtime.vision import Detector

SIZES = (720, 1280), (1080, 1920), (480, 640)
MOST_FAILURES = 3
"""Openings in a row without a frame after which a camera has ended."""

Open = Callable[[], Iterator[np.ndarray]]


class Camera:
    """The frames of one source at the rate of a camera. `counts`: what happened, by name.

    Args:
        open_source: opens the source and gives its frames; a file that ends is opened again.
        stall_s: time without a frame after which the source is opened anew.
    """

    def __init__(self, open_source: Open, fps: float, *, stall_s: float, most: int | None) -> None:
        self._open, self._fps, self._stall_s, self._most = open_source, fps, stall_s, most
        self.counts: Counter[str] = Counter()

    def __iter__(self) -> Iterator[np.ndarray]:
        failures = 0
        while failures < MOST_FAILURES:
            before = self.counts["frames"]
            for frame in self._until_stalled():
                if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3):
                    self.counts["bad frames"] += 1
                    continue
                self.counts["frames"] += 1
                yield frame
                if self.counts["frames"] == self._most:
                    return
            self.counts["reconnects"] += 1
            failures = 0 if self.counts["frames"] > before else failures + 1
        self.counts["ended"] = 1

    def _until_stalled(self) -> Iterator[np.ndarray]:
        """Give frames until the source ends or stalls. A read that hangs is left behind with its thread."""
        read: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=1)
        over = threading.Event()
        threading.Thread(target=self._read, args=(read, over), daemon=True).start()
        try:
            while (frame := read.get(timeout=self._stall_s)) is not None:
                yield frame
        except queue.Empty:
            self.counts["stalls"] += 1
        finally:
            over.set()

    def _read(self, read: queue.Queue[np.ndarray | None], over: threading.Event) -> None:
        start_s = time.monotonic()
        try:
            for number, frame in enumerate(self._open()):
                time.sleep(max(0.0, start_s + number / self._fps - time.monotonic()))
                if over.is_set():
                    return
                read.put(frame)
        except Exception as error:  # a source of any library
            self.counts[f"errors: {type(error).__name__}"] += 1
        read.put(None)


def made_up(size: tuple[int, int], fault: str) -> Open:
    """Return how to open a white square that moves over grey; `fault`: what goes wrong at the 5th frame."""
    openings = iter(range(10**9))

    def open_source() -> Iterator[np.ndarray]:
        is_first = next(openings) == 0
        for number, frame in enumerate(frames_of(None, size)):
            if fault == "ends" and (number == 5 or not is_first):
                return
            if fault == "stalls" and number == 5 and is_first:
                threading.Event().wait()
            yield frame[..., 0] if fault == "garbage" and number % 5 == 4 else frame

    return open_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("videos", nargs="*", help="Files, read again and again; taken in turn.")
    parser.add_argument("--cameras", type=int, default=4)
    parser.add_argument("--fps", type=float, default=25.0)
    parser.add_argument("--frames", type=int, help="Of each camera.")
    parser.add_argument("--weights", help="Of a YOLO model, for Ultralytics to load.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--half", action="store_true", help="Compute in float16.")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="Batch sizes to build."
    )
    parser.add_argument("--max-wait-ms", type=float, default=5.0, help="For a batch to fill.")
    parser.add_argument("--queue", type=int, default=2, help="Frames of a camera that may wait.")
    parser.add_argument(
        "--stall-s", type=float, default=2.0, help="Without a frame, until it is opened anew."
    )
    parser.add_argument("--scale", type=float, default=1.0, help="Of the made-up cameras' sizes.")
    for fault in ("stalls", "ends", "garbage"):
        parser.add_argument(f"--{fault}", type=int, nargs="*", default=[], help="Made-up cameras that do so.")
    args = parser.parse_args()

    sizes = [tuple(int(side * args.scale) for side in SIZES[n % len(SIZES)]) for n in range(args.cameras)]
    cameras = {}
    for number, size in enumerate(sizes):
        fault = next((name for name in ("stalls", "ends", "garbage") if number in getattr(args, name)), "")
        opens = made_up(size, fault)
        if args.videos:
            video = args.videos[number % len(args.videos)]
            opens = lambda video=video: frames_of(video, (0, 0))  # noqa: E731
        cameras[f"camera {number}"] = Camera(opens, args.fps, stall_s=args.stall_s, most=args.frames)
    with Detector(
        model_of(args.weights),
        args.imgsz,
        conf=0.6 if args.weights is None else 0.25,
        batch=args.batch,
        dtype=torch.float16 if args.half else torch.float32,
        channels_last=args.half,
        device=args.device,
    ) as detector:
        # Cameras do not wait while something is built.
        for size in dict.fromkeys(sizes if not args.videos else []):
            detector.prepare(size)
        serve(detector, cameras, args)


def serve(detector: Detector, cameras: dict[str, Camera], args: argparse.Namespace) -> None:
    """Serve the cameras until all have ended, and print what each got."""
    late_s: dict[str, list[float]] = {name: [] for name in cameras}
    options = {"max_wait_s": args.max_wait_ms / 1000, "drop": "oldest", "queue": args.queue}
    with detector.serve(cameras, **options) as server:
        try:
            for served in server:
                age_s = time.monotonic() - served.arrived_s
                dynotune.frame_done(served.source, time.perf_counter() - age_s)
                late_s[served.source].append(age_s)
        except SourceError as error:
            print(error)
        for name, stats in server.stats().items():
            times_s = sorted(late_s[name]) or [0.0]
            p50, p99 = (times_s[int(share * (len(times_s) - 1))] * 1000 for share in (0.5, 0.99))
            counts = {key: num for key, num in cameras[name].counts.items() if num and key != "frames"}
            what = "".join(f", {num} {key}" for key, num in sorted(counts.items()))
            print(
                f"{name}  {stats.num_served} served, {stats.num_dropped} dropped, p50 {p50:.1f} ms, "
                f"p99 {p99:.1f} ms{what}"
            )


if __name__ == "__main__":
    main()
