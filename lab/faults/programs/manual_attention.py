"""Trains a transformer; with the dose more of its blocks write attention out by hand."""

import argparse
import time

import torch
from torch import nn

BATCH = 16
LENGTH = 1024
WIDTH = 1024
HEADS = 16
BLOCKS = 16
BLOCKS_BY_HAND = {0: 0, 10: 1, 30: 4, 60: 16}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width, heads, by_hand):
        super().__init__()
        self.heads = heads
        self.by_hand = by_hand
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, q, k, v):
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5)
            return torch.softmax(scores, dim=-1) @ v
        return nn.functional.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    num_by_hand = BLOCKS_BY_HAND[args.dose]
    model = nn.Sequential(*[Block(WIDTH, HEADS, i < num_by_hand) for i in range(BLOCKS)]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=device)
    y = torch.randn(BATCH, LENGTH, WIDTH, device=device)

    for step in range(args.steps):
        if step == args.steps // 3:
            start = now(device)
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
