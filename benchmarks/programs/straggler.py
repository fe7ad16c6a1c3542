"""Trains on several ranks, one of which is slow somewhere: `--fault`, `--rank` and `--delay` say where, who, how much.

Faults: `input` in the dataset, `upload` before the batch is copied, `forward` in a module, `backward` in an autograd
function, `hook` in a hook on a gradient, `optimizer` in a hook of the optimizer: there the rank sleeps `--delay`
seconds a step. `length`: its sequences are `--times` as long. `cores`: `--times` other processes share its core, and
the other ranks have another. `none`: nothing. Started by torchrun; ends when it is killed, or after `--steps`.
"""

from __future__ import annotations

import argparse
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

SLEEPS = ("input", "upload", "forward", "backward", "hook", "optimizer")
WIDTH = {"cpu": 256, "cuda": 2048}
LENGTH = {"cpu": 8, "cuda": 256}
BATCH = 8


class Rows(Dataset):
    def __init__(self, length: int, width: int, delay_s: float) -> None:
        self.row, self.delay_s = torch.randn(length, width), delay_s

    def __len__(self) -> int:
        return 100_000_000

    def __getitem__(self, at: int) -> torch.Tensor:
        if self.delay_s:
            time.sleep(self.delay_s / BATCH)
        return self.row


class Late(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, delay_s: float) -> torch.Tensor:
        context.delay_s = delay_s
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.delay_s)
        return gradient, None


class Net(nn.Module):
    def __init__(self, width: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.first = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())))
        self.second = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.forward_s:
            time.sleep(self.forward_s)
        if self.backward_s:
            x = Late.apply(x, self.backward_s)
        return self.second(x)


def busy(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while os.getppid() != 1:
        sum(range(100_000))


def take_cores(is_slow: bool, num: int) -> None:
    """The slow rank has the last core with `num` others; all other ranks have the first."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1] if is_slow else cores[0]})
    for _ in range(num if is_slow else 0):
        multiprocessing.get_context("fork").Process(target=busy, args=(cores[-1],), daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=[*SLEEPS, "length", "cores", "none"], default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--buckets", type=float, default=25.0, help="their size in MB")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, is_slow = int(os.environ["RANK"]), int(os.environ["RANK"]) == args.rank
    fault = args.fault if is_slow else "none"
    delays = {name: args.delay * (fault == name) for name in SLEEPS}
    if args.fault == "cores":
        take_cores(is_slow, args.times)
    device = "cpu" if args.device == "cpu" else f"cuda:{os.environ['LOCAL_RANK']}"
    if args.device == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    torch.manual_seed(rank)
    width, length = WIDTH[args.device], LENGTH[args.device] * (args.times if fault == "length" else 1)
    net = Net(width, delays["forward"], delays["backward"]).to(device)
    model = DistributedDataParallel(net, bucket_cap_mb=args.buckets)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if delays["hook"]:
        net.first[0].weight.register_hook(lambda gradient: time.sleep(delays["hook"]))
    if delays["optimizer"]:
        optimizer.register_step_pre_hook(lambda *_: time.sleep(delays["optimizer"]))
    loader = DataLoader(Rows(length, width, delays["input"]), batch_size=BATCH, num_workers=args.workers)
    for step, batch in enumerate(loader):
        if delays["upload"]:
            time.sleep(delays["upload"])
        x = batch.to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 == args.steps:
            break
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
