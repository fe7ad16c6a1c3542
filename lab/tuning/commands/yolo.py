"""Ultralytics trains YOLO11n, or predicts, from JPEG files: python yolo.py train|predict --size small
--device cpu

Random weights and made-up pictures: nothing is downloaded. As written all is Ultralytics' own default; see
asked.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from asked import Asked, asked
from ultralytics import YOLO

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Enough(Exception):
    """So many batches as were asked for are trained on."""


def prepare(how: Asked) -> None:
    if how.tf32:
        torch.set_float32_matmul_precision("high")
    if how.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True


def half(how: Asked, device: str) -> contextlib.AbstractContextManager[None]:
    # What is informed leaves it to Ultralytics, which trains in mixed precision by itself.
    return (
        torch.autocast(device, HALVES[how.amp]) if how.amp and not how.informed else contextlib.nullcontext()
    )


def train(size: str, device: str, how: Asked, num_batches: int | None = None) -> None:
    """Until its end, or raises Enough."""
    prepare(how)
    more: dict[str, Any] = {} if how.workers is None else {"workers": how.workers}
    if how.compile:
        more["compile"] = how.compile
    model = YOLO("yolo11n.yaml")
    if num_batches is not None:
        numbers = itertools.count(1)

        def stop(_: object) -> None:
            if next(numbers) >= num_batches:
                raise Enough

        model.add_callback("on_train_batch_end", stop)
    with half(how, device):
        model.train(
            data="data.yaml",
            epochs=1000,
            imgsz=640 if size == "large" else 96,
            batch=16 if size == "large" else 8,
            device=0 if device == "cuda" else "cpu",
            plots=False,
            val=False,
            save=False,
            **more,
        )


def predictions(size: str, device: str, how: Asked) -> Iterator[Any]:
    """One picture after the other, from files, without end."""
    prepare(how)
    model = YOLO("yolo11n.yaml")
    more: dict[str, Any] = {"compile": how.compile} if how.compile else {}
    if how.informed and device == "cuda":
        more["half"] = True
    while True:
        with half(how, device):
            yield from model.predict(
                "data/images/train", stream=True, imgsz=640 if size == "large" else 96, verbose=False,
                device=0 if device == "cuda" else "cpu", **more,
            )  # fmt: skip


def steps(name: str, size: str, device: str) -> Callable[[int], None]:
    """A function that trains on some batches, from the start, or predicts some pictures, as written."""
    drawn = predictions(size, device, asked("")) if name == "predict" else None

    def run(num: int) -> None:
        if drawn is None:
            with contextlib.suppress(Enough):
                train(size, device, asked(""), num)
            return
        for _ in range(num):
            next(drawn)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("train", "predict"))
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    args = parser.parse_args()
    how = asked()
    if args.what == "train":
        train(args.size, args.device, how)
    for _ in predictions(args.size, args.device, how):
        pass


if __name__ == "__main__":
    main()
