"""Trains until told to end; a file says what goes wrong in it, from its next step on.

For `watch_faults` and `watch_overhead`. Words of the file: `input=S` a sample takes so long, `compute=S` the
host sleeps so long in a step, `busy=S` it computes, `leak=BYTES` a step keeps so much, `stall=1` no step
ends, `end=1`. With `--ranks`, `rank=S` delays the input of rank 1. With `--seconds` it reads no file, and
prints the seconds of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def asked(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return dict(word.split("=") for word in file.read().split())


class Rows(Dataset):
    def __init__(self, path: str | None, rank: int) -> None:
        self.path, self.rank = path, rank

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, at: int) -> torch.Tensor:
        now = asked(self.path)
        delay_s = float(now.get("input", 0)) + (self.rank == 1) * float(now.get("rank", 0))
        if delay_s:
            time.sleep(delay_s)
        return torch.ones(256)


def train(rank: int, args: argparse.Namespace) -> None:
    device = args.device if args.ranks == 1 or args.device == "cpu" else f"{args.device}:{rank}"
    net: nn.Module = nn.Sequential(*(nn.Linear(args.width, args.width) for _ in range(args.layers))).to(
        device
    )
    if args.ranks > 1:
        where = f"file://{args.control}.{os.getppid()}"
        backend = "gloo" if args.device == "cpu" else "nccl"
        torch.distributed.init_process_group(backend, init_method=where, rank=rank, world_size=args.ranks)
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    kept: list[bytes] = []
    begun_s, blocks, ends_s, num = time.perf_counter(), [], [], 0
    loader = DataLoader(Rows(args.control, rank), batch_size=args.batch, num_workers=args.workers)
    block_s = time.perf_counter()
    for batch in loader:
        net(batch.to(device, non_blocking=True).repeat(1, args.width // 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        num += 1
        if args.seconds:
            if num % args.block == 0:
                if args.device != "cpu":
                    torch.cuda.synchronize()
                now_s = time.perf_counter()
                blocks.append((now_s - block_s) / args.block)
                block_s = now_s
                ends_s.append(now_s)
                if now_s - begun_s > args.seconds:
                    break
            continue
        now = asked(args.control)
        time.sleep(float(now.get("compute", 0)))
        until_s = time.perf_counter() + float(now.get("busy", 0))
        while time.perf_counter() < until_s:
            pass
        kept.append(b"x" * int(now.get("leak", 0)))
        while "stall" in asked(args.control):
            time.sleep(0.1)
        if "end" in now:
            os._exit(0)
    if args.seconds:
        found = {"step_s": statistics.median(blocks[len(blocks) // 3 :]), "num_steps": num}
        print(json.dumps(found | ({"blocks": list(zip(ends_s, blocks, strict=True))} if args.blocks else {})))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--block", type=int, default=50)
    parser.add_argument("--blocks", action="store_true", help="tell when each block ended, and its step")
    parser.add_argument("--seconds", type=float, default=0.0)
    args = parser.parse_args()
    if args.ranks == 1:
        train(0, args)
    else:
        mp.start_processes(
            train, (args,), nprocs=args.ranks, start_method="spawn" if args.device != "cpu" else "fork"
        )


if __name__ == "__main__":
    main()
