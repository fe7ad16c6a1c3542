"""Trains on rows scaled by their own peak: the first rows one by one in Python, the others at once.

More rows go one by one with the dose.
"""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 2048, "cuda": 16384}
WIDTH = {"cpu": 128, "cuda": 4096}
LAYERS = {"cpu": 4, "cuda": 8}
# A training step in units of one layer's forward product: three products a layer, and the smaller operators.
PRODUCTS_A_STEP = {"cpu": 5.0 * 4, "cuda": 3.5 * 8}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(call, device, tries=5, calls=10):
    """Least mean of `calls` calls."""
    means = []
    for _ in range(tries):
        start = now(device)
        for _ in range(calls):
            call()
        means.append((now(device) - start) / calls)
    return min(means)


def scale(x, num_one_by_one):
    """Each row over its peak. x: (rows, width)."""
    scaled = torch.empty_like(x)
    for i in range(num_one_by_one):
        row = x[i]
        scaled[i] = row / (row.abs().max() + 1e-6)
    rest = x[num_one_by_one:]
    scaled[num_one_by_one:] = rest / (rest.abs().amax(dim=1, keepdim=True) + 1e-6)
    return scaled


def num_rows(dose, device):
    """How many rows, taken one by one, cost that share of a step."""
    if dose == 0:
        return 0
    x = torch.randn(
        ROWS[device], WIDTH[device], device=device, dtype=torch.bfloat16 if device == "cuda" else None
    )
    w = torch.randn(WIDTH[device], WIDTH[device], device=device, dtype=x.dtype)
    step_s = PRODUCTS_A_STEP[device] * seconds_of(lambda: x @ w, device)
    row_s = seconds_of(lambda: scale(x[:200], 200), device) / 200
    loop_s = step_s * dose / (100 - dose)
    if device == "cuda":  # what the host does while the GPU is at work costs nothing
        loop_s += 0.9 * step_s
    return min(int(loop_s / row_s), ROWS[device])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    num_one_by_one = num_rows(args.dose, device)
    width = WIDTH[device]
    layers = [layer for _ in range(LAYERS[device]) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS[device], width, device=device)
    y = torch.randn(ROWS[device], width, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.mse_loss(model(scale(x, num_one_by_one)), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
