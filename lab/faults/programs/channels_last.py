"""Trains a residual network under autocast; with a dose in the default layout instead of channels_last."""

import argparse
import time

import torch
from torch import nn

BATCH = 128
SIZE = 128


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )
        self.second = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def network():
    stem = nn.Conv2d(8, 128, 3, stride=2, padding=1, bias=False)
    down = nn.Conv2d(128, 256, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(stem, *[Residual(128) for _ in range(4)], down, *[Residual(256) for _ in range(4)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True

    layout = torch.channels_last if args.dose == 0 else torch.contiguous_format
    model = network().to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    x = torch.randn(BATCH, 8, SIZE, SIZE, device=device).to(memory_format=layout)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
