"""Generates tokens with a compiled model in reduce-overhead mode.

With a dose the key and value cache is an argument that the model writes into, so CUDA graphs are given up; at
dose 0 it is a buffer of the model, which CUDA graphs allow.
"""

import argparse
import time

import torch
from torch import nn

BATCH = 8
LENGTH = 512
WIDTH = 1024
HEADS = 16
BLOCKS = 24
WORDS = 8192


def now(device):
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, position, seen, cache):
        """x: (batch, 1, width); cache: (2, batch, heads, length, width of a head)."""
        q, k, v = self.qkv(self.norms[0](x)).view(BATCH, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        cache[0].index_copy_(2, position, k)
        cache[1].index_copy_(2, position, v)
        y = nn.functional.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, 1, WIDTH))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("cache", torch.zeros(BLOCKS, 2, BATCH, HEADS, LENGTH, WIDTH // HEADS))
        self.register_buffer("places", torch.arange(LENGTH))

    def forward(self, tokens, position, cache=None):
        """tokens: (batch, 1); position: (1,); answers the next tokens: (batch, 1)."""
        cache = self.cache if cache is None else cache
        seen = (self.places <= position).view(1, 1, 1, LENGTH)
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            x = block(x, position, seen, cache[i])
        return self.head(x).argmax(dim=-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dose", type=int, default=0, help="any dose is the whole fault")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    device = args.device
    torch.manual_seed(0)

    model = Decoder().to(device, torch.bfloat16).eval()
    arguments = (torch.zeros_like(model.cache),) if args.dose > 0 else ()
    decode = torch.compile(model, mode="reduce-overhead")
    tokens = torch.zeros(BATCH, 1, dtype=torch.int64, device=device)
    positions = torch.arange(LENGTH, device=device).view(-1, 1)

    with torch.no_grad():
        for step in range(args.steps):
            if step == args.steps // 3:
                start = now(device)
            tokens = decode(tokens, positions[step % LENGTH], *arguments).clone()
    print(f"RATE {(args.steps - args.steps // 3) / (now(device) - start):.3f}")


if __name__ == "__main__":
    main()
