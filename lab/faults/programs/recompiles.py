"""Trains compiled blocks; some count their calls in a Python int, so each call compiles anew until it is
given up.

More blocks count so with the dose; the others count in a tensor.
"""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 2048, "cuda": 65536}
WIDTH = {"cpu": 512, "cuda": 4096}
BLOCKS = {"cpu": 8, "cuda": 8}
BLOCKS_WITH_INT = {"cpu": {0: 0, 10: 1, 30: 5}, "cuda": {0: 0, 10: 1, 30: 4}}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def squash(x, gain, bias):
    return x + ((x * gain + bias).clamp(-3, 3) * 0.5).relu() * 0.1


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.num_calls += 1
        return squash(x, self.gain, self.bias)


class CountedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        return squash(x, self.gain, self.bias)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    width = WIDTH[device]
    num_with_int = BLOCKS_WITH_INT[device][args.dose]
    blocks = [CountedBlock(width) if i < num_with_int else Block(width) for i in range(BLOCKS[device])]
    model = nn.Sequential(nn.Linear(width, width), *blocks, nn.Linear(width, 64)).to(device)
    for block in blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS[device], width, device=device)
    y = torch.randn(ROWS[device], 64, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
