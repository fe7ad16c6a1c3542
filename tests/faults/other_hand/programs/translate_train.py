"""Sequence-to-sequence translation with nn.Transformer on bucketed sentence pairs."""

import argparse
import os
import time

ap = argparse.ArgumentParser()
ap.add_argument("--fixed", action="store_true")
ap.add_argument("--tiny", action="store_true")
ap.add_argument("--steps", type=int, default=330)
args = ap.parse_args()

if not args.fixed:
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __init__(self, n, vocab, length):
        rng = np.random.default_rng(2)
        self.src = rng.integers(0, vocab, (8192, length), dtype=np.int64)
        self.tgt = rng.integers(0, vocab, (8192, length + 1), dtype=np.int64)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        i %= len(self.src)
        return torch.from_numpy(self.src[i]), torch.from_numpy(self.tgt[i])


class Translator(nn.Module):
    def __init__(self, vocab, length, dim, heads, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.randn(1, length, dim) * 0.02)
        self.core = nn.Transformer(
            dim, heads, layers, layers, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.out = nn.Linear(dim, vocab)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, src, tgt):
        s = self.embed(src) + self.pos
        t = self.embed(tgt) + self.pos
        h = self.core(s, t, tgt_mask=self.causal, src_is_causal=False, tgt_is_causal=True, memory_is_causal=False)
        return self.out(h)


class Loop:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        vocab, length, dim, heads, layers, batch = (
            (128, 8, 32, 4, 2, 4) if args.tiny else (24_000, 128, 1024, 16, 6, 64)
        )
        self.model = Translator(vocab, length, dim, heads, layers).to(self.device).train()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=5e-4, betas=(0.9, 0.98), fused=True)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.loader = DataLoader(
            Pairs(args.steps * batch, vocab, length),
            batch,
            shuffle=True,
            drop_last=True,
            num_workers=2 if args.tiny else 4,
            pin_memory=True,
            persistent_workers=True,
        )

    def one(self, src, tgt):
        src = src.to(self.device, non_blocking=True)
        tgt = tgt.to(self.device, non_blocking=True)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            logits = self.model(src, tgt[:, :-1])
            loss = self.loss(logits.flatten(0, 1), tgt[:, 1:].flatten())
        loss.backward()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return loss.detach()

    def barrier(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def run(self):
        skip, acc = args.steps // 3, torch.zeros((), device=self.device)
        for n, (src, tgt) in enumerate(self.loader):
            if n == skip:
                self.barrier()
                t0 = time.perf_counter()
            acc += self.one(src, tgt)
        self.barrier()
        ms = (time.perf_counter() - t0) / (args.steps - skip) * 1e3
        print(f"xent {acc.item() / args.steps:.3f}")
        print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    Loop().run()
