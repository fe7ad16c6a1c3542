"""A thread per camera, as loops around a detector are often written: each with its own model, or one for all.

    python benchmarks/programs/camera_threads.py --cameras 4 [--shared] [--weights yolo11n.pt] [--device cuda]

Nothing in it knows dynotune. With weights, each frame is handed to Ultralytics' `predict`, which brings it to
the network's size and reads the boxes; without, to a small network of torch that does as much by itself.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def network(imgsz: int, device: str) -> Callable[[np.ndarray], object]:
    """Return a function that brings a frame to the network's size, calls the network and reads its answer."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1)
    )
    net.eval().to(device)

    @torch.inference_mode()
    def detect(frame: np.ndarray) -> object:
        image = torch.from_numpy(frame).to(device).permute(2, 0, 1)[None].float().div(255)
        return net(functional.interpolate(image, (imgsz, imgsz))).flatten(1).topk(100).indices.cpu()

    return detect


def ultralytics(weights: str, imgsz: int, device: str) -> Callable[[np.ndarray], object]:
    from ultralytics import YOLO

    model = YOLO(weights)
    return lambda frame: model.predict(frame, imgsz=imgsz, device=device, verbose=False)[0].boxes.xyxy.cpu()


def serve(
    detect: Callable[[np.ndarray], object], frames: list[np.ndarray], fps: float, begin_s: float
) -> None:
    """Handle frames as a camera gives them, for ever; frames that came meanwhile are left out."""
    number = 0
    while True:
        time.sleep(max(0.0, begin_s + number / fps - time.monotonic()))
        detect(frames[number % len(frames)])
        number = max(number + 1, int((time.monotonic() - begin_s) * fps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cameras", type=int, default=4)
    parser.add_argument("--fps", type=float, default=25.0)
    parser.add_argument("--shared", action="store_true", help="One model for all threads.")
    parser.add_argument("--weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--size", type=int, nargs=2, default=(1080, 1920))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (*args.size, 3), dtype=np.uint8) for _ in range(4)]

    def made() -> Callable[[np.ndarray], object]:
        if args.weights:
            return ultralytics(args.weights, args.imgsz, args.device)
        return network(args.imgsz, args.device)

    models = [made()] * args.cameras if args.shared else [made() for _ in range(args.cameras)]
    for detect in models[: 1 if args.shared else None]:
        detect(frames[0])
    begin_s = time.monotonic() + 0.5
    threads = [
        threading.Thread(
            target=serve,
            args=(detect, frames, args.fps, begin_s + number / args.fps / args.cameras),
            daemon=True,
        )
        for number, detect in enumerate(models)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
