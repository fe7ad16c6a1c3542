"""Trains a compiled network; the environment (TORCHINDUCTOR_FORCE_DISABLE_CACHES) makes every start compile
anew."""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 1024, "cuda": 32768}
WIDTH = {"cpu": 256, "cuda": 4096}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dose", type=int, default=0, help="nothing here depends on it: the fault is set outside"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    width = WIDTH[device]
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    model = nn.Sequential(*layers).to(device)
    model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS[device], width, device=device)
    y = torch.randn(ROWS[device], width, device=device)

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
