"""Audio spectrogram transformer: multi-label tagging from stored log-mel features."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class MelClips(Dataset):
    def __init__(self, n, mels, frames, tags, pool):
        rng = np.random.default_rng(6)
        self.mel = rng.standard_normal((pool, 1, mels, frames), dtype=np.float32).astype(np.float16)
        self.tags = (rng.random((pool, tags)) < 0.01).astype(np.float32)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        i %= len(self.mel)
        return self.mel[i], self.tags[i]


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ff(self.ln2(x))


class AST(nn.Module):
    def __init__(self, mels, frames, tags, dim, depth, heads, patch=16):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, (mels // patch) * (frames // patch), dim) * 0.02)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, tags)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        return self.head(self.norm(self.layers(x)).mean(1))


def setup(args):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    if not args.fixed:
        # the plain implementation, as in the reference code
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


def main(args):
    setup(args)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mels, frames, tags, dim, depth, heads, batch, pool = (
        (32, 64, 7, 32, 2, 4, 2, 8) if args.tiny else (128, 1024, 527, 768, 12, 12, 32, 512)
    )
    model = AST(mels, frames, tags, dim, depth, heads).to(device)
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=1e-4, fused=True
    )
    loader = DataLoader(
        MelClips(args.steps * batch, mels, frames, tags, pool),
        batch_size=batch,
        shuffle=True,
        num_workers=2 if args.tiny else 6,
        pin_memory=True,
        persistent_workers=True,
        drop_last=True,
    )
    losses = torch.zeros(args.steps, device=device)
    skip = args.steps // 3
    for i, (mel, target) in enumerate(loader):
        if i == skip:
            if device.type == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        mel, target = mel.to(device, non_blocking=True), target.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.binary_cross_entropy_with_logits(model(mel.float()).float(), target)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses[i] = loss.detach()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - t0
    print(f"mean bce {losses.mean().item():.4f}")
    print(f"steps={args.steps} mean_step_ms={elapsed / (args.steps - skip) * 1e3:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=400)
    main(ap.parse_args())
