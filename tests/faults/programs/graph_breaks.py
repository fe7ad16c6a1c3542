"""Runs a compiled model whose blocks may note what they did; each note breaks the compiled graph.

More blocks note with the dose.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

ROWS = {"cpu": 2048, "cuda": 65536}
WIDTH = {"cpu": 512, "cuda": 4096}
BLOCKS = {"cpu": 12, "cuda": 8}
BLOCKS_NOTED = {"cpu": {0: 0, 10: 1, 30: 4, 60: 12}, "cuda": {0: 0, 10: 1, 30: 4, 60: 8}}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width, log=None):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.log = log

    def note(self, text):
        if self.log is not None:
            print(text, file=self.log)

    def forward(self, x):
        y = x * self.gain
        self.note("scaled")
        y = y + self.bias
        self.note("shifted")
        y = y.clamp(-3, 3)
        self.note("clamped")
        y = y * 0.5
        self.note("halved")
        return x + y.relu()


class Model(nn.Module):
    def __init__(self, width, num_blocks, num_noted, log):
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.blocks = nn.Sequential(*[Block(width, log if i < num_noted else None) for i in range(num_blocks)])
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
        model = torch.compile(model.to(device, dtype).eval())
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
