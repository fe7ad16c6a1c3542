"""Train a small DiT on pre-computed VAE latents (rectified flow objective)."""

import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    ang = t[:, None] * 1000 * freqs
    return torch.cat([ang.cos(), ang.sin()], dim=-1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.n2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.ada = nn.Linear(dim, 6 * dim)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(F.silu(c))[:, None].chunk(6, dim=-1)
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x) * (1 + s1) + b1).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + g1 * self.proj(a)
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, dim, depth, heads, size, patch, classes=1000):
        super().__init__()
        self.patch, self.grid, self.dim = patch, size // patch, dim
        self.inp = nn.Linear(4 * patch * patch, dim)
        self.pos = nn.Parameter(torch.randn(1, self.grid**2, dim) * 0.02)
        self.tmlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.cls = nn.Embedding(classes + 1, dim)
        self.blocks = nn.ModuleList(DiTBlock(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, 4 * patch * patch)

    def forward(self, x, t, y):
        b, p, g = x.shape[0], self.patch, self.grid
        x = x.view(b, 4, g, p, g, p).permute(0, 2, 4, 1, 3, 5).reshape(b, g * g, -1)
        x = self.inp(x) + self.pos
        c = self.tmlp(timestep_embedding(t, self.dim)) + self.cls(y)
        for blk in self.blocks:
            x = blk(x, c)
        x = self.out(x).view(b, g, g, 4, p, p).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(b, 4, g * p, g * p)


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true", help="draw the random numbers where they are used")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=280)
    return ap.parse_args()


args = get_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")

batch, size, pool = (4, 16, 16) if args.tiny else (96, 64, 2048)
model = DiT(*((64, 2, 4) if args.tiny else (768, 12, 12)), size=size, patch=4).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
latents = torch.randn(pool, 4, size, size, device=device)
labels = torch.randint(0, 1000, (pool,), device=device)


def draw(shape):
    """t, noise, the input perturbation and the label-dropping mask of one step."""
    b = shape[0]
    if args.fixed:
        t = torch.sigmoid(torch.randn(b, device=device))
        noise = torch.randn(shape, device=device)
        perturb = torch.randn(shape, device=device)
        drop = torch.rand(b, device=device) < 0.1
    else:
        t = torch.sigmoid(torch.randn(b)).to(device)
        noise = torch.randn(shape).to(device)
        perturb = torch.randn(shape).to(device)
        drop = (torch.rand(b) < 0.1).to(device)
    return t, noise, perturb, drop


def train_step():
    idx = torch.randint(0, pool, (batch,), device=device)
    x0, y = latents[idx], labels[idx]
    t, noise, perturb, drop = draw(x0.shape)
    y = torch.where(drop, 1000, y)
    tt = t.view(-1, 1, 1, 1)
    xt = (1 - tt) * x0 + tt * (noise + 0.1 * perturb)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        v = model(xt, t, y)
    loss = F.mse_loss(v.float(), noise - x0)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    return loss.detach()


skip = args.steps // 3
for _ in range(skip):
    train_step()
if device.type == "cuda":
    torch.cuda.synchronize()
t0 = time.perf_counter()
for _ in range(args.steps - skip):
    loss = train_step()
if device.type == "cuda":
    torch.cuda.synchronize()
dt = time.perf_counter() - t0
print(f"loss={loss.item():.4f}")
print(f"steps={args.steps} mean_step_ms={1e3 * dt / (args.steps - skip):.3f}")
