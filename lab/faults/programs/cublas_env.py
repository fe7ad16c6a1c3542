"""Runs many small linear layers; the environment sets CUBLAS_WORKSPACE_CONFIG, which each product then reads
again."""

import argparse
import time

import torch
from torch import nn

ROWS = 64
WIDTH = 256
LAYERS = 64


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dose", type=int, default=0, help="nothing here depends on it: the fault is set outside"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))]
    model = nn.Sequential(*layers).to(device, torch.bfloat16).eval()
    x = torch.randn(ROWS, WIDTH, device=device, dtype=torch.bfloat16)

    with torch.inference_mode():
        for step in range(args.steps):
            if step == args.steps // 3:
                start = now(device)
            model(x)
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
