"""Trains under autocast with a loss kept in float32; with a dose its products may not use TF32."""

import argparse
import time

import torch
from torch import nn

ROWS = 8192
FEATURES = 1024
WIDTH = 4096
LAYERS = 8


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Correlation(nn.Module):
    """How much features that should differ agree. It stays in float32: squared sums of bf16 are too
    coarse."""

    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, 2 * width)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            z = self.project(x.float())
            z = z - z.mean(dim=0)
            return (z.T @ z / len(z)).square().mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--heads", type=int, default=1)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if args.dose == 0 else "highest")

    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, FEATURES)).to(device)
    heads = nn.ModuleList([Correlation(FEATURES) for _ in range(args.heads)]).to(device)
    optimizer = torch.optim.AdamW([*model.parameters(), *heads.parameters()], lr=1e-4, fused=True)
    x = torch.randn(ROWS, WIDTH, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16):
            features = model(x)
            loss = sum(head(features) for head in heads)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
