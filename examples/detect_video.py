"""Finds objects in a video or in what a camera sees, while the next frames are read and uploaded.

    python examples/detect_video.py VIDEO --weights yolo11n.pt --device cuda --half
    python examples/detect_video.py  # a white square on grey, and a network that finds white

A video needs OpenCV (`pip install opencv-python-headless`), weights need Ultralytics (AGPL-3.0, `pip install
ultralytics`); dynotune needs neither.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from torch import nn

from dynotune.runtime.vision import Detector


class FindsWhite(nn.Module):
    """A stand-in for a detector, with a YOLO model's output: a box around every bright cell of 32 by 32
    pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.brightness = nn.Conv2d(3, 1, 32, stride=32, bias=False)
        nn.init.constant_(self.brightness.weight, 1 / (3 * 32 * 32))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        score = self.brightness(images)
        rows, columns = score.shape[2:]
        y = torch.arange(rows, device=images.device).repeat_interleave(columns)
        x = torch.arange(columns, device=images.device).repeat(rows)
        centre = (torch.stack([x, y]).to(images.dtype) + 0.5) * 32
        boxes = torch.cat([centre, torch.full_like(centre, 64)])
        return torch.cat([boxes.expand(len(images), -1, -1), score.flatten(2)], 1)


def model_of(weights: str | None) -> nn.Module:
    """YOLO weights, or the stand-in."""
    if weights is None:
        return FindsWhite().eval()
    from ultralytics import YOLO

    return YOLO(weights).model.eval()


def frames_of(video: str | None, size: tuple[int, int]) -> Iterator[np.ndarray]:
    """Frames of a file or a camera (its number), or of a white square that moves over grey."""
    if video is None:
        for at in range(0, 10**9, 4):
            frame = np.full((*size, 3), 90, np.uint8)
            x, y = at % (size[1] - 96), at % (size[0] - 96)
            frame[y : y + 96, x : x + 96] = 255
            yield frame
    else:
        import cv2

        capture = cv2.VideoCapture(int(video) if video.isdigit() else video)
        if not capture.isOpened():
            raise SystemExit(f"{video} cannot be opened.")
        try:
            while (read := capture.read())[0]:
                yield read[1]
        finally:
            capture.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", nargs="?", help="A file, or a camera's number.")
    parser.add_argument("--weights", help="Of a YOLO model, for Ultralytics to load.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--half", action="store_true", help="Compute in float16.")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument(
        "--batch", type=int, default=1, help="Frames at once: more throughput, later results."
    )
    parser.add_argument("--frames", type=int, help="Stop after so many.")
    parser.add_argument("--size", type=int, nargs=2, default=(720, 1280), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--log-every", type=int, default=30)
    args = parser.parse_args()

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
        num, started_s = 0, time.perf_counter()
        for found in detector.stream(islice(frames_of(args.video, tuple(args.size)), args.frames)):
            num += 1
            if num % args.log_every == 0:
                best = [round(value) for value in found.xyxy[0].tolist()] if len(found) else "nothing"
                print(f"frame {num}  {len(found)} found, the best at {best}")
        rate = num / (time.perf_counter() - started_s)
        print(f"{num} frames, {rate:.1f}/s with the start; {detector.stats().num_candidates} candidates")


if __name__ == "__main__":
    main()
