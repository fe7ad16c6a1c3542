"""Evaluates a classifier over batches; with a dose it was left in training mode."""

import argparse
import time

import torch
from torch import nn

ROWS = {"cpu": 32, "cuda": 256}
CHANNELS = {"cpu": 32, "cuda": 256}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def stage(channels):
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    channels = CHANNELS[device]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(channels, 100))
    model = nn.Sequential(*[stage(channels) for _ in range(6)], head)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = model.to(device, dtype, memory_format=torch.channels_last)
    model.train(args.dose > 0)
    x = torch.randn(ROWS[device], channels, 28, 28, device=device, dtype=dtype)
    x = x.to(memory_format=torch.channels_last)
    labels = torch.randint(100, (ROWS[device],), device=device)
    num_right = torch.zeros((), dtype=torch.int64, device=device)

    with torch.no_grad():
        for step in range(args.steps):
            if step == args.steps // 3:
                start = now(device)
            num_right += (model(x).argmax(dim=1) == labels).sum()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
