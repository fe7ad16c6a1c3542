"""Fine-grained plant species classifier, trained straight from a folder of camera JPEGs."""

import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset


def make_photo_folder(root, n, size):
    rng = np.random.default_rng(5)
    paths = []
    for i in range(n):
        coarse = rng.integers(0, 256, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
        path = os.path.join(root, f"sp{i % 10:03d}_{i:05d}.jpg")
        Image.fromarray(coarse).resize(size, Image.BILINEAR).save(path, quality=90)
        paths.append(path)
    return paths


class Photos(Dataset):
    def __init__(self, paths, n_items, side, thrifty):
        self.paths, self.n_items, self.side, self.thrifty = paths, n_items, side, thrifty

    def __len__(self):
        return self.n_items

    def __getitem__(self, i):
        path = self.paths[i % len(self.paths)]
        with Image.open(path) as im:
            if self.thrifty:
                im.draft("RGB", (self.side, self.side))
            im = im.convert("RGB").resize((self.side, self.side), Image.BILINEAR)
        if random.random() < 0.5:
            im = im.transpose(Image.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(im)), int(os.path.basename(path)[2:5])


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim * 4)
        self.fc2 = nn.Linear(dim * 4, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class ViT(nn.Module):
    def __init__(self, side, patch, dim, depth, heads, classes):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, dim)
        self.pos = nn.Parameter(torch.randn(1, (side // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*[EncoderLayer(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        B, H, W, C = x.shape
        p = self.patch
        x = x.view(B, H // p, p, W // p, p, C).transpose(2, 3).reshape(B, -1, p * p * C)
        x = self.blocks(self.embed(x) + self.pos)
        return self.head(self.norm(x).mean(1))


def train(args, root):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.set_float32_matmul_precision("high")
    if args.tiny:
        cfg = dict(side=32, patch=16, dim=32, depth=1, heads=2)
        batch, workers, size, n_files, steps = 4, 1, (160, 120), 4, args.steps or 6
    else:
        cfg = dict(side=224, patch=16, dim=1024, depth=16, heads=16)
        batch, workers, size, n_files, steps = 64, 14, (1600, 1200), 40, args.steps or 160
    paths = make_photo_folder(root, n_files, size)
    loader = DataLoader(
        Photos(paths, steps * batch, cfg["side"], args.fixed),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=cuda,
        prefetch_factor=4,
        drop_last=True,
    )
    model = ViT(classes=10, **cfg).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=cuda)
    running = torch.zeros((), device=device)
    start = 0.0
    for step, (img, y) in enumerate(loader):
        if step == steps // 3:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        img = img.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(img.to(torch.bfloat16).sub_(127.0).div_(64.0))
            loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.05)
    if cuda:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print("smoothed loss: %.3f" % running.item())
    print("steps=%d mean_step_ms=%.3f" % (steps, 1e3 * elapsed / (steps - steps // 3)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    with tempfile.TemporaryDirectory() as tmp:
        train(parser.parse_args(), tmp)
