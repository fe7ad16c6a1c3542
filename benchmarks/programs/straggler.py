"""Trains on several ranks, some of which are slow somewhere: `--fault`, `--rank`, `--delay` say where, who,
how much.

Faults: `input` in the dataset, `upload` before the batch is copied, `forward` in a block of the net,
`backward` in an autograd function within it, `optimizer` in a hook of the optimizer: there these ranks wait
`--delay` seconds a step, on the host or, with `--spin`, on its device (forward, backward). `length`: its
samples are longer. `cores`: many processes share its one core. `none`: nothing. Nets: `resnet`, whose buffers
are broadcast, and `transformer`. Started by torchrun; it ends when it is killed, or after `--steps`. With
`--traceml` its steps are marked as TraceML asks.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

DELAYS = ("input", "upload", "forward", "backward", "optimizer")
BATCH = {"cpu": 4, "cuda": 32}
WIDTH = {"cpu": 8, "cuda": 64}
SIDE, LONGER_SIDE = 16, 64
LENGTH, LONGER = 16, 256
NUM_BUSY = 12
CYCLES_PER_S = 1.7e9


class Rows(Dataset):
    def __init__(self, shape: tuple[int, ...], delay_s: float) -> None:
        self.row, self.delay_s = torch.randn(shape), delay_s

    def __len__(self) -> int:
        return 100_000_000

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return self.row, at % 10


class Late(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, wait: Any) -> torch.Tensor:
        context.wait = wait
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.wait()
        return gradient, None


class Slow(nn.Module):
    """Passes its input on, late by a wait in either direction."""

    def __init__(self, forward: Any, backward: Any) -> None:
        super().__init__()
        self.ahead, self.back = forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ahead is not None:
            self.ahead()
        return x if self.back is None else Late.apply(x, self.back)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.one, self.two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.two(self.second(self.one(self.first(x)).relu()))).relu()


def resnet(width: int, slow: nn.Module) -> nn.Module:
    blocks = [Residual(width), Residual(width), slow, Residual(width), Residual(width)]
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *blocks, *ends)


class Transformer(nn.Module):
    def __init__(self, width: int, slow: nn.Module) -> None:
        super().__init__()
        layers = [
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(3)
        ]
        self.layers = nn.Sequential(layers[0], slow, *layers[1:])
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


def busy(core: int) -> None:
    os.sched_setaffinity(0, {core})
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))


def take_cores(is_slow: bool) -> None:
    """The slow rank shares the last core with many others; all other ranks have the others."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]} if is_slow else set(cores[:-1]))
    for _ in range(NUM_BUSY if is_slow else 0):
        multiprocessing.get_context("fork").Process(target=busy, args=(cores[-1],), daemon=True).start()


def waits(args: argparse.Namespace, fault: str) -> dict[str, Any]:
    """The wait of each phase; None where there is none."""

    def wait() -> None:
        if args.spin:
            torch.cuda._sleep(int(args.delay * CYCLES_PER_S))
        else:
            time.sleep(args.delay)

    return {name: wait if fault == name else None for name in DELAYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=[*DELAYS, "length", "cores", "none"], default="none")
    parser.add_argument("--net", choices=("resnet", "transformer"), default="resnet")
    parser.add_argument("--rank", type=int, nargs="+", default=[1])
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--spin", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--traceml", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    is_slow = rank in args.rank
    fault = args.fault if is_slow else "none"
    late = waits(args, fault)
    if args.fault == "cores":
        take_cores(is_slow)
    device = "cpu" if args.device == "cpu" else f"cuda:{os.environ['LOCAL_RANK']}"
    if args.device == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    torch.manual_seed(rank)
    width, slow = WIDTH[args.device], Slow(late["forward"], late["backward"])
    if args.net == "resnet":
        side = LONGER_SIDE if fault == "length" else SIDE
        net, shape = resnet(width, slow), (3, side, side)
    else:
        net, shape = Transformer(4 * width, slow), (LONGER if fault == "length" else LENGTH, 4 * width)
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if late["optimizer"]:
        optimizer.register_step_pre_hook(lambda *_: late["optimizer"]())
    size = BATCH[args.device]
    rows = Rows(shape, args.delay / size if fault == "input" else 0.0)
    loader = DataLoader(rows, batch_size=size, num_workers=args.workers, pin_memory=args.device == "cuda")
    marked: Any = lambda model: contextlib.nullcontext()  # noqa: E731
    if args.traceml:
        import traceml_ai

        traceml_ai.init(mode="auto")
        marked = traceml_ai.trace_step
    for step, batch in enumerate(loader):
        with marked(model):
            if late["upload"]:
                late["upload"]()
            x, y = (each.to(device, non_blocking=True) for each in batch)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step + 1 == args.steps:
            break
    dist.destroy_process_group()
    if args.traceml:
        return  # it writes its summary at the interpreter's end
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
