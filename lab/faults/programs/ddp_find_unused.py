"""Trains a deep network on several ranks; with a dose DDP looks for unused parameters, of which there are
none."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS = {"cpu": 256, "cuda": 8192}
WIDTH = {"cpu": 64, "cuda": 1024}
BLOCKS = {"cpu": 60, "cuda": 60}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    if args.device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    torch.manual_seed(0)

    width = WIDTH[args.device]
    model = nn.Sequential(*[Block(width) for _ in range(BLOCKS[args.device])]).to(args.device)
    model = DistributedDataParallel(model, find_unused_parameters=args.dose > 0, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS[args.device], width, device=args.device)
    y = torch.randn(ROWS[args.device], width, device=args.device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(args.device)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = now(args.device) - start
    if dist.get_rank() == 0:
        print(f"RATE {(args.steps - args.steps // 3) / seconds:.3f}")
    dist.barrier()
    dist.destroy_process_group()
    # Gloo's threads outlive their group (torch 2.13) and abort the process where Python ends under the last
    # gradient that one of them lets go of.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
