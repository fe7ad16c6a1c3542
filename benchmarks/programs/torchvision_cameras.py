"""Torchvision's SSDLite over a wall of cameras: one loop takes a frame of each and gives all to the model.

python benchmarks/programs/torchvision_cameras.py --streams 4 [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import torch
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.transforms.functional import convert_image_dtype


def grab(streams: int, size: tuple[int, int], tick: int) -> list[torch.Tensor]:
    """One picture of each camera: a gradient that moves."""
    rows = torch.arange(size[0], dtype=torch.int32)[:, None]
    columns = torch.arange(size[1], dtype=torch.int32)[None]
    return [
        ((rows + columns + 7 * number + 3 * tick) % 256).to(torch.uint8).expand(3, -1, -1)
        for number in range(streams)
    ]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--fps", type=float, default=25.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, nargs=2, default=[720, 1280])
    parser.add_argument("--threshold", type=float, default=0.3)
    opt = parser.parse_args()

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, score_thresh=opt.threshold)
    model = model.to(opt.device).eval()
    tick, start = 0, time.perf_counter()
    found = 0
    while True:
        pictures = [
            convert_image_dtype(picture.to(opt.device), torch.float32)
            for picture in grab(opt.streams, tuple(opt.size), tick)
        ]
        for answer in model(pictures):
            keep = answer["scores"] > opt.threshold
            found += len(answer["boxes"][keep].cpu())
        tick += 1
        wait = start + tick / opt.fps - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        else:
            start -= wait  # late: do not hurry to catch up


if __name__ == "__main__":
    main()
