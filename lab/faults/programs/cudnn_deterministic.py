"""Trains convolutions of unusual shapes; with a dose cuDNN may use deterministic algorithms only."""

import argparse
import time

import torch
from torch import nn

BATCH = 64
SIZE = 180


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def conv(channels_in, channels_out, size=3, **options):
    layer = nn.Conv2d(
        channels_in, channels_out, size, padding=size // 2 * options.get("dilation", 1), **options
    )
    return nn.Sequential(layer, nn.ReLU())


def network():
    return nn.Sequential(
        conv(8, 48, 7),
        conv(48, 96, 5, stride=2),
        conv(96, 96, 3, dilation=3),
        conv(96, 192, 5, stride=2),
        conv(192, 192, 3, groups=4),
        conv(192, 192, 3, dilation=2),
        nn.ConvTranspose2d(192, 96, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(96, 48, 4, stride=2, padding=1),
        nn.ReLU(),
        conv(48, 24, 5),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = args.dose > 0

    layout = torch.channels_last
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
