"""Train a patch transformer on three-component seismograms (P / S / noise)."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

p = argparse.ArgumentParser()
p.add_argument("--fixed", action="store_true")
p.add_argument("--tiny", action="store_true")
p.add_argument("--steps", type=int)
opt = p.parse_args()

CUDA = torch.cuda.is_available()
DEV = torch.device("cuda" if CUDA else "cpu")
WIN, PATCH, BATCH, DIM, DEPTH, WORKERS = 12000, 60, 512, 512, 8, 8
RECORD = 4_000_000
if opt.tiny:
    WIN, PATCH, BATCH, DIM, DEPTH, WORKERS, RECORD = 240, 60, 4, 32, 1, 1, 20_000
STEPS = opt.steps or (6 if opt.tiny else 220)


class Continuous(Dataset):
    """Random windows out of a long continuous record kept in memory."""

    def __init__(self, n_items):
        rng = np.random.default_rng(11)
        self.trace = rng.standard_normal((3, RECORD), dtype=np.float32)
        self.starts = rng.integers(0, RECORD - WIN, n_items)
        self.labels = rng.integers(0, 3, n_items)

    def __len__(self):
        return len(self.starts)

    def __getitems__(self, idx):
        wave = torch.empty(len(idx), 3, WIN)
        out = wave.numpy()
        for row, i in enumerate(idx):
            s = self.starts[i]
            out[row] = self.trace[:, s : s + WIN]
        return wave, torch.from_numpy(self.labels[idx])


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.heads = max(1, d // 64)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class SeisFormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3 * PATCH, DIM)
        self.pos = nn.Parameter(torch.randn(1, WIN // PATCH, DIM) * 0.02)
        self.layers = nn.ModuleList(Layer(DIM) for _ in range(DEPTH))
        self.head = nn.Linear(DIM, 3)

    def forward(self, w):
        b = w.shape[0]
        tok = w.view(b, 3, -1, PATCH).transpose(1, 2).reshape(b, -1, 3 * PATCH)
        x = self.embed(tok) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    loader = DataLoader(
        Continuous(STEPS * BATCH),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        prefetch_factor=2,
        collate_fn=lambda b: b,
        pin_memory=CUDA and opt.fixed,
        drop_last=True,
    )
    model = SeisFormer().to(DEV)
    optim = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=CUDA)
    total = torch.zeros((), device=DEV)
    began = None
    for n, (wave, label) in enumerate(loader):
        if n == STEPS // 3:
            if CUDA:
                torch.cuda.synchronize()
            began = time.perf_counter()
        wave = wave.to(DEV, non_blocking=True)
        label = label.to(DEV, non_blocking=True)
        with torch.autocast(DEV.type, torch.bfloat16):
            loss = F.cross_entropy(model(wave), label)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        total += loss.detach()
    if CUDA:
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    print(f"avg loss {total.item() / STEPS:.4f}")
    print(f"steps={STEPS} mean_step_ms={took / (STEPS - STEPS // 3) * 1e3:.3f}")


if __name__ == "__main__":
    main()
