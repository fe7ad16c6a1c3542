"""Pretrain a small GPT on a token stream of source code (synthetic here)."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 16384
    block: int = 1024
    layers: int = 10
    heads: int = 16
    dim: int = 1024
    batch: int = 20
    steps: int = 180
    lr: float = 6e-4
    warmup: int = 30


class Attention(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.n = cfg.heads
        self.c_attn = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.c_proj = nn.Linear(cfg.dim, cfg.dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n, C // self.n).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(cfg.dim)
        self.attn = Attention(cfg)
        self.ln_2 = nn.LayerNorm(cfg.dim)
        self.fc = nn.Linear(cfg.dim, 4 * cfg.dim)
        self.proj = nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab, cfg.dim)
        self.wpe = nn.Parameter(torch.zeros(cfg.block, cfg.dim))
        self.h = nn.ModuleList([Block(cfg) for _ in range(cfg.layers)])
        self.ln_f = nn.LayerNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class TokenStream:
    def __init__(self, cfg: Config, device, n_tokens):
        rng = np.random.default_rng(99)
        self.tokens = torch.from_numpy(rng.zipf(1.3, n_tokens).clip(max=cfg.vocab) - 1)
        self.cfg, self.device, self.rng = cfg, device, rng
        self.span = torch.arange(cfg.block + 1)

    def batch(self):
        starts = torch.from_numpy(self.rng.integers(0, len(self.tokens) - self.cfg.block - 1, self.cfg.batch))
        chunk = self.tokens[starts[:, None] + self.span]
        if self.device.type == "cuda":
            chunk = chunk.pin_memory().to(self.device, non_blocking=True)
        return chunk[:, :-1], chunk[:, 1:]


def learning_rate(it, cfg: Config):
    if it < cfg.warmup:
        return cfg.lr * (it + 1) / cfg.warmup
    ratio = (it - cfg.warmup) / max(1, cfg.steps - cfg.warmup)
    return cfg.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * ratio)))


def train(cfg: Config, n_tokens: int):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model = GPT(cfg)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=cfg.lr,
        betas=(0.9, 0.95),
        fused=cuda,
    )
    stream = TokenStream(cfg, device, n_tokens)
    loss_sum = torch.zeros((), device=device)
    x, y = stream.batch()
    for it in range(cfg.steps):
        if it == cfg.steps // 3:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        for g in optimizer.param_groups:
            g["lr"] = learning_rate(it, cfg)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(x, y)
        x, y = stream.batch()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss_sum += loss.detach()
    if cuda:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / (cfg.steps - cfg.steps // 3)
    print(f"mean loss {loss_sum.item() / cfg.steps:.4f}")
    print(f"steps={cfg.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int)
    ns = cli.parse_args()
    config = Config(vocab=64, block=16, layers=2, heads=2, dim=32, batch=2, steps=6) if ns.tiny else Config()
    if ns.steps:
        config.steps = ns.steps
    train(config, 2_000 if ns.tiny else 4_000_000)
