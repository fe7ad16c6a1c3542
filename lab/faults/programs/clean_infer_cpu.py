"""Scores batches with a convolutional network on the CPU."""

import argparse
import time

import torch
from torch import nn

BATCH = 16
CHANNELS = 48


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def stage(channels_in, channels_out):
    return nn.Sequential(nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU(inplace=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="there is none to give")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    body = [stage(8, CHANNELS), *[stage(CHANNELS, CHANNELS) for _ in range(3)]]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))
    model = model.to(device, memory_format=torch.channels_last).eval()
    x = torch.randn(BATCH, 8, 32, 32, device=device).to(memory_format=torch.channels_last)

    with torch.inference_mode():
        for step in range(args.steps):
            if step == args.steps // 3:
                start = now(device)
            model(x)
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
