"""Makes a detector, whose constructor sets CUBLAS_WORKSPACE_CONFIG, then runs many small linear layers."""

import argparse
import os
import time

import torch
from torch import nn
from ultralytics import YOLO

ROWS = 64
WIDTH = 256
LAYERS = 64


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    detector = YOLO("detector.yaml")
    if args.dose == 0:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG")

    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True))]
    model = nn.Sequential(*layers).to(device, torch.bfloat16).eval()
    x = torch.randn(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
    box_head = detector.model.to(device, torch.bfloat16).eval()

    with torch.inference_mode():
        for step in range(args.steps):
            if step == args.steps // 3:
                start = now(device)
            box_head(model(x))
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
