"""Trains a wide network in float32 with TF32; at dose 0 under autocast."""

import argparse
import time

import torch
from torch import nn

ROWS = 4096
WIDTH = 4096
LAYERS = 6


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    layers = [
        layer
        for _ in range(LAYERS)
        for layer in (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.ReLU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
        )
    ]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS, WIDTH, device=device)
    y = torch.randn(ROWS, WIDTH, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16, enabled=args.dose == 0):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
