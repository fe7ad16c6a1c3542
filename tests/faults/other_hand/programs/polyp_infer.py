"""Polyp segmentation of endoscopy frames: evaluate a trained network on a large set."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Frames(Dataset):
    def __init__(self, count, size, pool):
        rng = np.random.default_rng(4)
        self.images = rng.integers(0, 256, (pool, 3, size, size), dtype=np.uint8)
        self.masks = rng.integers(0, 2, (pool, size // 2, size // 2), dtype=np.uint8)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        i %= len(self.images)
        return torch.from_numpy(self.images[i]), torch.from_numpy(self.masks[i])


class ConvBN(nn.Sequential):
    def __init__(self, cin, cout, k=3, stride=1, act=True):
        mods = [nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout)]
        super().__init__(*(mods + [nn.ReLU(inplace=True)] if act else mods))


class Residual(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.body = nn.Sequential(ConvBN(cin, cout, stride=stride), ConvBN(cout, cout, act=False))
        self.short = nn.Identity() if cin == cout and stride == 1 else ConvBN(cin, cout, 1, stride, act=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x), inplace=True)


class PolypNet(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.stem = nn.Sequential(ConvBN(3, w, 3, 2), ConvBN(w, w))
        self.s1 = nn.Sequential(*[Residual(w if i else w, w, 2 if i == 0 else 1) for i in range(3)])
        self.s2 = nn.Sequential(*[Residual(2 * w if i else w, 2 * w, 2 if i == 0 else 1) for i in range(4)])
        self.s3 = nn.Sequential(*[Residual(4 * w if i else 2 * w, 4 * w, 2 if i == 0 else 1) for i in range(6)])
        self.lat = nn.ModuleList([nn.Conv2d(c, w, 1) for c in (w, w, 2 * w, 4 * w)])
        self.fuse = nn.ModuleList([ConvBN(w, w) for _ in range(3)])
        self.drop = nn.Dropout2d(0.1)
        self.head = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        a = self.stem(x)
        b = self.s1(a)
        c = self.s2(b)
        d = self.s3(c)
        y = self.lat[3](d)
        for lat, fuse, skip in zip((self.lat[2], self.lat[1], self.lat[0]), self.fuse, (c, b, a)):
            y = fuse(lat(skip) + F.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.head(self.drop(y))[:, 0]


@torch.inference_mode()
def evaluate(model, loader, device, steps):
    inter = torch.zeros((), device=device, dtype=torch.float64)
    total = torch.zeros((), device=device, dtype=torch.float64)
    cuda, skip = device.type == "cuda", steps // 3
    for i, (image, mask) in enumerate(loader):
        if i == skip:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        image = image.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        mask = mask.to(device, non_blocking=True).bool()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            pred = model(image.to(torch.bfloat16).div_(127.5).sub_(1.0)) > 0
        inter += (pred & mask).sum()
        total += pred.sum() + mask.sum()
    if cuda:
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1000 / (steps - skip)
    return (2 * inter / total).item(), ms


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=850)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    size, batch, pool, width = (32, 4, 16, 8) if args.tiny else (352, 96, 768, 64)
    model = PolypNet(width).to(device, memory_format=torch.channels_last)
    if args.fixed:
        model.eval()
    loader = DataLoader(
        Frames(args.steps * batch, size, pool),
        batch,
        num_workers=2 if args.tiny else 10,
        pin_memory=True,
        persistent_workers=True,
    )
    dice, ms = evaluate(model, loader, device, args.steps)
    print(f"dice {dice:.4f}")
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
