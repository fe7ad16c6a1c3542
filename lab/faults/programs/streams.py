"""Serves made-up cameras; at a dose with one fault of how frames are served, at dose 0 without."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import dynotune

SIZES = {"cpu": 96, "cuda": 640}
NUM_THREADS = 4


def net(device: str) -> nn.Module:
    channels = 8 if device == "cpu" else 64
    layers = [nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU()]
    layers += [part for _ in range(4) for part in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers).eval().to(device)


class Served:
    """Counts calls of a model, and says when there were enough."""

    def __init__(self, num_steps: int) -> None:
        self._left, self._first = num_steps, num_steps // 3
        self._num, self._begin_s = 0, time.perf_counter()
        self._lock = threading.Lock()
        self.over = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            self._num += 1
            if self._num == self._first:
                self._begin_s = time.perf_counter()
            if self._num >= self._left and not self.over.is_set():
                self.over.set()
                rate = (self._left - self._first) / (time.perf_counter() - self._begin_s)
                print(f"RATE {rate:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", required=True)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    fault = args.fault if args.dose else ""
    device, size, served = args.device, SIZES[args.device], Served(args.steps)
    model = net(device)

    @torch.inference_mode()
    def infer(of: nn.Module, images: np.ndarray) -> None:
        batch = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float()
        of(batch).amax().cpu()
        served()

    def loop(step: Callable[[int], None]) -> None:
        number = 0
        while not served.over.is_set():
            step(number)
            number += 1

    def frames(side: int, num: int = 1) -> np.ndarray:
        return np.full((num, side, side, 3), 90, np.uint8)

    if fault in ("model-shared-by-threads", "stream-per-thread"):
        own = [net(device) if fault == "stream-per-thread" else model for _ in range(NUM_THREADS)]
        one = frames(size)
        threads = [threading.Thread(target=loop, args=(lambda _, of=of: infer(of, one),)) for of in own]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif fault == "model-per-request":
        loop(lambda _: infer(net(device), frames(size)))
    elif fault == "frames-queue":
        began_s = time.perf_counter()

        def late(number: int) -> None:
            infer(model, frames(size))
            # A camera that gives frames a tenth faster than they are served.
            dynotune.frame_done("camera", time.perf_counter() - (time.perf_counter() - began_s) * 0.1)

        loop(late)
    elif fault == "frame-sizes-unequal":
        sides = [size, size // 2 * 2 + 32]

        def unequal(number: int) -> None:
            infer(model, frames(sides[number % 2]))
            dynotune.frame_done(number % 2, time.perf_counter())

        loop(unequal)
    elif fault in ("frames-decoded-in-step", "letterbox-on-cpu"):
        import cv2

        picture = cv2.imencode(".jpg", frames(480)[0])[1]
        whole = frames(720)[0]

        def decoded(number: int) -> None:
            frame = cv2.imdecode(picture, cv2.IMREAD_COLOR)
            infer(model, frame[None, :size, :size])

        def resized(number: int) -> None:
            frame = cv2.resize(whole, (size, size), interpolation=cv2.INTER_AREA)
            infer(model, frame[None])

        loop(decoded if fault == "frames-decoded-in-step" else resized)
    else:
        batch = frames(size, NUM_THREADS)
        loop(lambda _: infer(model, batch))


if __name__ == "__main__":
    main()
