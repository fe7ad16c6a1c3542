"""Runs a model over batches; at a dose its first blocks run with gradients on, at dose 0 none does."""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 8, "cuda": 65536}
WIDTH = {"cpu": 64, "cuda": 4096}
BLOCKS = {"cpu": 300, "cuda": 8}
BLOCKS_WITH_GRAD = {"cpu": {0: 0, 10: 110, 30: 300}, "cuda": {0: 0, 1: 8}}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Hardswish(), nn.Hardtanh(-3, 3))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = nn.Sequential(*[block(WIDTH[device]) for _ in range(BLOCKS[device])]).to(device, dtype).eval()
    num_with_grad = BLOCKS_WITH_GRAD[device][args.dose]
    x = torch.randn(ROWS[device], WIDTH[device], device=device, dtype=dtype)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        features = x
        for layer in model[:num_with_grad]:
            features = layer(features)
        with torch.inference_mode():
            for layer in model[num_with_grad:]:
                features = layer(features)
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
