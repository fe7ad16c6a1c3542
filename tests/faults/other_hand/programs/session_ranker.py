"""Next-item ranking from click sessions (SASRec-like), compiled."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Sessions(Dataset):
    def __init__(self, n, items, length):
        self.log = np.random.default_rng(5).integers(1, items, 3_000_000, dtype=np.int64)
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        at = (i * 104729) % (self.log.size - self.length - 1)
        return torch.from_numpy(self.log[at : at + self.length + 1])


class Guard(nn.Module):
    """Replaces non-finite activations, should there be any."""

    def __init__(self, branchless):
        super().__init__()
        self.branchless = branchless

    def forward(self, x):
        ok = torch.isfinite(x).all()
        if self.branchless:
            return torch.where(ok, x, torch.nan_to_num(x))
        if not ok:
            x = torch.nan_to_num(x)
        return x


class Block(nn.Module):
    def __init__(self, dim, heads, branchless):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.gate_up, self.down = nn.Linear(dim, 8 * dim), nn.Linear(4 * dim, dim)
        self.guard = Guard(branchless)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.guard(x + self.proj(a.transpose(1, 2).reshape(b, s, d)))
        gate, up = self.gate_up(self.n2(x)).chunk(2, dim=-1)
        return self.guard(x + self.down(F.silu(gate) * up))


class Ranker(nn.Module):
    def __init__(self, items, length, dim, depth, heads, branchless):
        super().__init__()
        self.item = nn.Embedding(items, dim)
        self.pos = nn.Parameter(torch.zeros(1, length, dim))
        self.blocks = nn.ModuleList(Block(dim, heads, branchless) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)

    def forward(self, seq):
        x = self.item(seq) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def run(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    items, length, batch = (200, 12, 4) if args.tiny else (50_000, 128, 256)
    dims = (32, 2, 2) if args.tiny else (512, 6, 8)
    model = Ranker(items, length, *dims, branchless=args.fixed).to(device)
    compiled = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    loader = DataLoader(
        Sessions(args.steps * batch, items, length),
        batch_size=batch,
        drop_last=True,
        num_workers=2 if args.tiny else 6,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    negatives = 64 if args.tiny else 4096
    warm = args.steps // 3
    seen = torch.zeros((), device=device)
    for i, session in enumerate(loader):
        if i == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        session = session.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            h = compiled(session[:, :-1])[:, -16:] if length >= 16 else compiled(session[:, :-1])
            tgt = session[:, 1:][:, -h.shape[1] :]
            neg = torch.randint(1, items, (negatives,), device=device)
            table = model.item.weight
            pos_score = (h * table[tgt]).sum(-1, keepdim=True)
            neg_score = h @ table[neg].t()
            logits = torch.cat([pos_score, neg_score], dim=-1).float()
        loss = (logits.logsumexp(-1) - logits[..., 0]).mean()
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        seen += loss.detach()
    if device.type == "cuda":
        torch.cuda.synchronize()
    span = time.perf_counter() - t0
    print(f"loss {seen.item() / args.steps:.4f}")
    print(f"steps={args.steps} mean_step_ms={span * 1e3 / (args.steps - warm):.3f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--fixed", action="store_true")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--steps", type=int, default=700)
    run(p.parse_args())
