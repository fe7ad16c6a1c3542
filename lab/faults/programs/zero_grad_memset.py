"""Trains a wide network with small batches; some layers' gradients are filled with zeros instead of dropped.

More layers with the dose.
"""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 8, "cuda": 256}
WIDTH = {"cpu": 192, "cuda": 8192}
LAYERS = {"cpu": 60, "cuda": 8}
LAYERS_FILLED = {"cpu": {0: 0, 1: 60}, "cuda": {0: 0, 10: 2, 30: 8}}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    width = WIDTH[device]
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(LAYERS[device])]
    model = nn.Sequential(*blocks).to(device)
    num_filled = LAYERS_FILLED[device][args.dose]
    optimizers = [
        torch.optim.SGD(model[:num_filled].parameters(), lr=1e-3, fused=True) if num_filled else None,
        torch.optim.SGD(model[num_filled:].parameters(), lr=1e-3, fused=True)
        if num_filled < len(model)
        else None,
    ]
    optimizers = [optimizer for optimizer in optimizers if optimizer is not None]
    x = torch.randn(ROWS[device], width, device=device)
    y = torch.randn(ROWS[device], width, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for i, optimizer in enumerate(optimizers):
            optimizer.zero_grad(set_to_none=not (num_filled and i == 0))
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
