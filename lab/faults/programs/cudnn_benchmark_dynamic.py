"""Trains on images whose size changes at every step; with a dose cuDNN tries its algorithms out for each new
size.

With the dose the part of the step that is not convolution, blocks of linear layers, gets shorter
(`--blocks`).
"""

import argparse
import time

import torch
from torch import nn

BATCH = 64
TOKENS = 16
WIDTH = 2048


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Model(nn.Module):
    def __init__(self, num_blocks):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3), nn.ReLU()
        )
        self.pool = nn.AdaptiveAvgPool2d(TOKENS)
        self.embed = nn.Linear(128, WIDTH)
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(num_blocks)])

    def forward(self, images):
        tokens = self.pool(self.stem(images)).flatten(2).transpose(1, 2)
        return self.blocks(self.embed(tokens))


def sizes(step):
    """Height and width of a step's images; a pair comes again after 128 * 129 steps."""
    return 128 + step % 128, 128 + step % 129


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--blocks", type=int, default=12)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = args.dose > 0

    model = Model(args.blocks).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    largest = torch.randn(BATCH, 64, 256, 256, device=device).to(memory_format=torch.channels_last)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        height, width = sizes(step)
        images = largest[:, :, :height, :width].contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
