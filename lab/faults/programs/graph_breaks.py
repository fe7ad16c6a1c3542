"""Runs a model of compiled blocks, which may note what they did; each note breaks the compiled graph.

More blocks note with the dose.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

ROWS = {"cpu": 4096, "cuda": 131072}
WIDTH = {"cpu": 128, "cuda": 2048}
BLOCKS = {"cpu": 12, "cuda": 8}
BLOCKS_NOTED = {"cpu": {0: 0, 10: 3, 30: 10}, "cuda": {0: 0, 10: 2, 30: 7}}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = self.linear(x) * self.gain + self.bias
        return x + (y.clamp(-3, 3) * 0.5).relu()


class NotedBlock(Block):
    def __init__(self, width, log):
        super().__init__(width)
        self.log = log

    def forward(self, x):
        y = self.linear(x) * self.gain
        print("scaled", file=self.log)
        y = y + self.bias
        print("shifted", file=self.log)
        y = y.clamp(-3, 3)
        print("clamped", file=self.log)
        y = y * 0.5
        print("halved", file=self.log)
        return x + y.relu()


class Model(nn.Module):
    def __init__(self, width, num_blocks, num_noted, log):
        super().__init__()
        self.embed = nn.Linear(width, width)
        blocks = [NotedBlock(width, log) if i < num_noted else Block(width) for i in range(num_blocks)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, 64)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with Path(os.devnull).open("w") as log:
        model = Model(WIDTH[device], BLOCKS[device], BLOCKS_NOTED[device][args.dose], log)
        model = model.to(device, dtype).eval()
        for block in model.blocks:
            block.compile()
        x = torch.randn(ROWS[device], WIDTH[device], device=device, dtype=dtype)
        with torch.inference_mode():
            model(x)
            for step in range(args.steps):
                if step == args.steps // 3:
                    start = now(device)
                model(x)
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
