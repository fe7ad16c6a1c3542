"""Trains a network of wide blocks; with the dose more of them have an odd width, 4097 instead of 4096."""

import argparse
import time

import torch
from torch import nn

ROWS = 8192
WIDTH = 1024
BLOCKS = 12
BLOCKS_ODD = {0: 0, 10: 2, 30: 7}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(self.norm(x))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    num_odd = BLOCKS_ODD[args.dose]
    model = nn.Sequential(*[Block(WIDTH, 4097 if i < num_odd else 4096) for i in range(BLOCKS)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS, WIDTH, device=device)
    y = torch.randn(ROWS, WIDTH, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
