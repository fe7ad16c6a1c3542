"""Trains on a table; with the dose more of its columns have an embedding layer of their own, the others share
one.

A column of its own costs a handful of tiny kernels each way, and the GPU waits for the host to launch them.
"""

import argparse
import time

import torch
from torch import nn

ROWS = 8192
COLUMNS = 512
EMBEDDING = 16
WIDTH = 4096
LAYERS = 4


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Columns(nn.Module):
    def __init__(self, num_alone):
        super().__init__()
        self.alone = nn.ModuleList([nn.Linear(1, EMBEDDING) for _ in range(num_alone)])
        self.weight = nn.Parameter(torch.randn(COLUMNS - num_alone, EMBEDDING))
        self.bias = nn.Parameter(torch.zeros(COLUMNS - num_alone, EMBEDDING))

    def forward(self, x):
        first = [torch.relu(layer(x[:, i : i + 1])) for i, layer in enumerate(self.alone)]
        rest = torch.relu(x[:, len(first) :, None] * self.weight + self.bias)
        return torch.cat([*first, rest.flatten(1)], dim=1)


def seconds_of(call, device, tries=5, calls=10):
    """Least mean of `calls` calls."""
    means = []
    for _ in range(tries):
        start = now(device)
        for _ in range(calls):
            call()
        means.append((now(device) - start) / calls)
    return min(means)


def num_columns(dose, device):
    """How many columns alone make the host's share of the step so long that the GPU idles for the dose."""
    if dose == 0:
        return 0
    x = torch.randn(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
    w = torch.randn(WIDTH, WIDTH, device=device, dtype=torch.bfloat16)
    column = torch.randn(ROWS, COLUMNS, device=device, dtype=torch.bfloat16)
    weight = torch.randn(EMBEDDING, 1, device=device, dtype=torch.bfloat16, requires_grad=True)

    def embed():
        for i in range(50):
            torch.relu(nn.functional.linear(column[:, i : i + 1], weight)).sum().backward()

    column_s = seconds_of(embed, device, calls=2) / 50
    step_s = 3.8 * (LAYERS + COLUMNS * EMBEDDING / WIDTH) * seconds_of(lambda: x @ w, device)
    return min(COLUMNS, int((100 * step_s / (100 - dose) - 0.1 * step_s) / column_s))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    embedding = Columns(num_columns(args.dose, device))
    model = nn.Sequential(embedding, nn.Linear(COLUMNS * EMBEDDING, WIDTH), nn.ReLU(), *layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS, COLUMNS, device=device)
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
