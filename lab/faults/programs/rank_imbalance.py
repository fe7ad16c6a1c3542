"""Trains on two ranks; with the dose the second rank's batches grow, and the first waits for it."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS = {"cpu": 768, "cuda": 16384}
WIDTH = {"cpu": 384, "cuda": 4096}
LAYERS = {"cpu": 3, "cuda": 6}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


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
    rows = ROWS[args.device]
    if dist.get_rank() == 1:
        rows = round(rows * 100 / (100 - args.dose))
    layers = [layer for _ in range(LAYERS[args.device]) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(args.device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(rows, width, device=args.device)
    y = torch.randn(rows, width, device=args.device)

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
