"""Profile some of the first steps with torch.profiler, then train for as long as somebody wants.

`python profiled.py WORKLOAD`. The workloads differ in what a step waits for:

    launches    many small layers: the GPU waits for the host, which launches their kernels
    products    few large layers: the host waits for the GPU
"""

from __future__ import annotations

import sys

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DEPTH, WIDTH, BATCH = {"launches": (160, 64, 16), "products": (6, 4096 if DEVICE == "cuda" else 512, 1024)}[sys.argv[1]]
FIRST = 5


def main() -> None:
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    net = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    batch = torch.ones(BATCH, WIDTH, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    step()
    with torch.profiler.profile():
        for _ in range(FIRST):
            step()
    while True:
        step()


if __name__ == "__main__":
    main()
