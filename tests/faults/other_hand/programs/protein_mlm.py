"""Masked-residue pretraining of a protein language model on synthetic sequences."""

import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

AMINO, MASK_ID, VOCAB = 25, 30, 32


def rotary_tables(length, dim, device):
    inv = 1.0 / (10000 ** (torch.arange(0, dim, 2, device=device) / dim))
    ang = torch.outer(torch.arange(length, device=device).float(), inv)
    return ang.cos().to(torch.bfloat16), ang.sin().to(torch.bfloat16)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class ResidueAttention(nn.Module):
    def __init__(self, dim, heads, mode):
        super().__init__()
        self.heads, self.hd, self.mode = heads, dim // heads, mode
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def mix(self, q, k, v):
        if self.mode == "sdpa":
            return F.scaled_dot_product_attention(q, k, v)
        weights = torch.softmax((q * self.hd**-0.5) @ k.transpose(-2, -1), dim=-1)
        return weights @ v

    def forward(self, x, cos, sin):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.hd).permute(2, 0, 3, 1, 4)
        y = self.mix(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, dim, heads, mode):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = ResidueAttention(dim, heads, mode)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cos, sin):
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.ffn(self.norm2(x))


class ProteinLM(nn.Module):
    def __init__(self, dim, depth, heads, mode):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.layers = nn.ModuleList([Layer(dim, heads, mode) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB)

    def forward(self, ids, cos, sin):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def corrupt(ids, rate=0.15):
    chosen = torch.rand(ids.shape, device=ids.device) < rate
    return torch.where(chosen, MASK_ID, ids), torch.where(chosen, ids, -100)


def lr_at(step, peak, warmup, total):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def main(args):
    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    batch, length, dim, depth, heads = (2, 16, 32, 2, 2) if args.tiny else (16, 1024, 1024, 8, 16)
    steps = args.steps if args.steps else (6 if args.tiny else 180)
    model = ProteinLM(dim, depth, heads, "sdpa" if args.fixed else "dense").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.98), fused=device == "cuda")
    cos, sin = rotary_tables(length, dim // heads, device)
    proteome = torch.randint(0, AMINO, (4096 if not args.tiny else 32, length), device=device)

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    t_begin, history = None, []
    for step in range(steps):
        if step == steps // 3:
            wait()
            t_begin = time.perf_counter()
        rows = torch.randint(0, proteome.shape[0], (batch,), device=device)
        inputs, targets = corrupt(proteome[rows])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, 4e-4, 20, steps)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(inputs, cos, sin)
            loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-100)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append(loss.detach())
    wait()
    per_step = (time.perf_counter() - t_begin) / (steps - steps // 3)
    print("final loss", torch.stack(history[-5:]).mean().item())
    print(f"steps={steps} mean_step_ms={per_step * 1000:.3f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int, default=0)
    main(cli.parse_args())
