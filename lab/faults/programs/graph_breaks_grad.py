"""Scores batches with a compiled model that may note what it did and may run with gradients on.

At a dose its blocks note, which breaks the compiled graph, and nothing turns gradients off; at dose 0 neither
holds.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

ROWS = 4096
WIDTH = 128
BLOCKS = 12


class Block(nn.Module):
    def __init__(self, width, log=None):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)
        self.log = log

    def note(self, text):
        if self.log is not None:
            print(text, file=self.log)

    def forward(self, x):
        y = self.norm(x)
        self.note("normalized")
        y = self.linear(y).clamp(-3, 3)
        self.note("clamped")
        return x + y * 0.5


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is both faults")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)

    with Path(os.devnull).open("w") as log, torch.inference_mode(args.dose == 0):
        blocks = [Block(WIDTH, log if args.dose > 0 else None) for _ in range(BLOCKS)]
        model = torch.compile(nn.Sequential(*blocks, nn.Linear(WIDTH, 16)).eval())
        x = torch.randn(ROWS, WIDTH)
        for step in range(args.steps):
            if step == args.steps // 3:
                start = time.perf_counter()
            scores = model(x)
    seconds = time.perf_counter() - start
    print(f"RATE {(args.steps - args.steps // 3) / seconds:.3f}")
    assert scores.shape == (ROWS, 16)


if __name__ == "__main__":
    main()
