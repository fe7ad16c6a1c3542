"""Train one of the nets: python train.py gpt|bert|resnet50|vit|starved|mlp --size small|large --device
cpu|cuda

As written nothing is tuned; see asked.py.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from asked import Asked, asked
from nets import TRAININGS, Training
from torch.nn import functional
from torch.utils.data import DataLoader

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def batches(training: Training, how: Asked, device: str) -> Iterator[Any]:
    """Of all epochs."""
    workers = training.workers if how.workers is None else how.workers
    loader = DataLoader(
        training.samples,
        batch_size=training.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        pin_memory=how.pin and device == "cuda",
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def loss_of(net: Callable[..., Any], batch: Any) -> torch.Tensor:
    if isinstance(batch, dict):
        return net(**batch).loss
    inputs, labels = batch
    return functional.cross_entropy(net(inputs), labels)


def on_device(batch: Any, device: str, how: Asked) -> Any:
    if isinstance(batch, dict):
        return {name: value.to(device, non_blocking=how.pin) for name, value in batch.items()}
    inputs, labels = (value.to(device, non_blocking=how.pin) for value in batch)
    if how.channels_last and inputs.dim() == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    return inputs, labels


def optimizer_of(training: Training, how: Asked) -> torch.optim.Optimizer:
    more = {"fused": True} if how.fused else {}
    if training.optimizer == "sgd":
        return torch.optim.SGD(training.net.parameters(), lr=training.lr, momentum=0.9)
    return torch.optim.AdamW(training.net.parameters(), lr=training.lr, **more)


def stepping(training: Training, device: str, how: Asked) -> Callable[[Any], torch.Tensor]:
    """A function that trains on one batch, and gives the loss."""
    if how.tf32:
        torch.set_float32_matmul_precision("high")
    if how.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    training.net.to(device).train()
    if how.channels_last:
        training.net.to(memory_format=torch.channels_last)
    net: Callable[..., Any] = training.net
    if how.compile:
        net = torch.compile(net, mode=None if how.compile == "default" else how.compile)
    optimizer = optimizer_of(training, how)
    scaler = torch.amp.GradScaler(device, enabled=how.amp == "fp16")

    def half() -> contextlib.AbstractContextManager[None]:
        return torch.autocast(device, HALVES[how.amp]) if how.amp else contextlib.nullcontext()

    def step(batch: Any) -> torch.Tensor:
        batch = on_device(batch, device, how)
        with half():
            loss = loss_of(net, batch)
        optimizer.zero_grad()
        if scaler.is_enabled():
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        return loss

    return step


def steps(name: str, size: str, device: str) -> Callable[[int], None]:
    """A function that makes some steps of the training, as written."""
    training, how = TRAININGS[name](size == "large"), asked("")
    step, drawn = stepping(training, device, how), batches(training, how, device)

    def run(num: int) -> None:
        for _ in range(num):
            step(next(drawn))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("net", choices=TRAININGS)
    parser.add_argument("--size", choices=("small", "large"), default="large")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    how = asked()
    training = TRAININGS[args.net](args.size == "large")
    step = stepping(training, args.device, how)
    for number, batch in enumerate(batches(training, how, args.device)):
        loss = step(batch)
        if number % 100 == 0:
            print(number, loss.item(), flush=True)
        if number >= args.steps:
            break


if __name__ == "__main__":
    main()
