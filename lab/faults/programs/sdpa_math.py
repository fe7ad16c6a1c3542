"""Trains a transformer; with the dose more of its blocks keep scaled_dot_product_attention to the math
backend."""

import argparse
import time

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BATCH = 16
LENGTH = 1024
WIDTH = 1024
HEADS = 16
BLOCKS = 16
BLOCKS_MATH = {0: 0, 10: 1, 30: 3, 60: 12}


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self, width, heads, math):
        super().__init__()
        self.heads = heads
        self.math = math
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, q, k, v):
        if self.math:
            with sdpa_kernel(SDPBackend.MATH):
                return nn.functional.scaled_dot_product_attention(q, k, v)
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

    num_math = BLOCKS_MATH[args.dose]
    model = nn.Sequential(*[Block(WIDTH, HEADS, i < num_math) for i in range(BLOCKS)]).to(device)
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
