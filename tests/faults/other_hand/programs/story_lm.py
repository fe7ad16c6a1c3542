"""Decoder-only language model on stories, the token stream resident on the device."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads, self.hd = heads, dim // heads
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)
        inv = 10000 ** (-torch.arange(0, self.hd, 2).float() / self.hd)
        ang = torch.arange(length).float()[:, None] * inv
        self.register_buffer("cos", ang.cos(), persistent=False)
        self.register_buffer("sin", ang.sin(), persistent=False)

    def rope(self, x):
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1).to(x.dtype)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class StoryLM(nn.Module):
    def __init__(self, vocab, dim, depth, heads, length):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, length) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true", help="no effect")
parser.add_argument("--tiny", action="store_true")
parser.add_argument("--steps", type=int, default=340)
opt = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
vocab, dim, depth, heads, length, batch = (64, 32, 2, 2, 16, 2) if opt.tiny else (32_000, 1024, 8, 8, 1024, 16)

model = StoryLM(vocab, dim, depth, heads, length).to(device)
for block in model.blocks:  # one compilation serves all the blocks
    block.compile()
adam = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
stream = torch.randint(0, vocab, (2_000_000,), device=device)
window = torch.arange(length + 1, device=device)


def step():
    start = torch.randint(0, stream.numel() - length - 1, (batch, 1), device=device)
    ids = stream[start + window]
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adam.step()
    adam.zero_grad(set_to_none=True)
    return loss.detach()


def sync():
    if device.type == "cuda":
        torch.cuda.synchronize()


skip = opt.steps // 3
for _ in range(skip):
    step()
sync()
t0 = time.perf_counter()
for _ in range(opt.steps - skip):
    loss = step()
sync()
ms = (time.perf_counter() - t0) * 1000 / (opt.steps - skip)
print(f"final loss {loss.item():.3f}")
print(f"steps={opt.steps} mean_step_ms={ms:.3f}")
