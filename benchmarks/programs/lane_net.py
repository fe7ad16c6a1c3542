"""Train one net on one device, endlessly: lane_net.py resnet|gpt|many|few|unet [--device cuda] [--large]

Its inputs lie on the device, so that a GPU and one thread of Python are all that it needs. Nothing is tuned.
"""

from __future__ import annotations

import argparse

import ddp_net
import torch
from torch import nn


def unet(large: bool) -> tuple[nn.Module, torch.Tensor]:
    """Down and up again, without the bridges between."""
    width, size = (64, 128) if large else (4, 16)
    down = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU()]
    middle = [ddp_net.Residual(2 * width) for _ in range(6 if large else 1)]
    up = [nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1)]
    return nn.Sequential(*down, *middle, *up), torch.randn(32 if large else 2, 3, size, size)


NETS = {**ddp_net.NETS, "unet": unet}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("net", choices=list(NETS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000_000)
    asked = parser.parse_args()
    torch.manual_seed(0)
    net, inputs = NETS[asked.net](asked.large)
    net, inputs = net.to(asked.device), inputs.to(asked.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for _ in range(asked.steps):
        loss = net(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
