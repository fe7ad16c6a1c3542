"""CenterNet-like vehicle detector: heat-map and size regression at stride 2."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

MAX_BOXES = 64


class Scenes(Dataset):
    def __init__(self, length, size, classes, pool):
        rng = np.random.default_rng(3)
        self.images = rng.integers(0, 256, (pool, 3, size, size), dtype=np.uint8)
        self.boxes = []
        for _ in range(pool):
            n = int(rng.integers(20, MAX_BOXES))
            wh = rng.uniform(6, size / 4, (n, 2))
            c = rng.uniform(0.1 * size, 0.9 * size, (n, 2))
            k = rng.integers(0, classes, (n, 1))
            self.boxes.append(np.concatenate([c, wh, k], 1).astype(np.float32))
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        i = i % len(self.images)
        return self.images[i], self.boxes[i]


def jitter_np(image, rng):
    """Brightness, contrast, saturation, gamma and noise."""
    x = image.astype(np.float64) / 255
    x = x * rng.uniform(0.7, 1.3)
    x = (x - x.mean()) * rng.uniform(0.7, 1.3) + x.mean()
    grey = (x * np.array([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdims=True)
    x = np.clip(grey + (x - grey) * rng.uniform(0.5, 1.5), 0, 1)
    x = x ** rng.uniform(0.8, 1.25)
    x = x + rng.normal(0, 0.01, x.shape)
    return np.clip(x * 255, 0, 255).astype(np.uint8)


def jitter_on_device(x):
    """The same on a batch of floats from 0 to 1."""

    def u(lo, hi):
        return torch.empty(x.shape[0], 1, 1, 1, device=x.device).uniform_(lo, hi)

    x = x * u(0.7, 1.3)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x = (x - mean) * u(0.7, 1.3) + mean
    grey = 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
    x = (grey + (x - grey) * u(0.5, 1.5)).clamp(0, 1)
    return (x ** u(0.8, 1.25) + 0.01 * torch.randn_like(x)).clamp(0, 1)


class PadCollate:
    """Images and boxes padded to MAX_BOXES; class -1 is padding."""

    def __call__(self, items):
        images = torch.from_numpy(np.stack([im for im, _ in items]))
        boxes = np.full((len(items), MAX_BOXES, 5), -1, dtype=np.float32)
        for row, (_, b) in zip(boxes, items):
            row[: len(b)] = b
        return images, torch.from_numpy(boxes)


class TargetCollate:
    """Augmented images, the heat map and the size map."""

    def __init__(self, size, classes, stride=2):
        self.hw, self.classes, self.stride = size // stride, classes, stride

    def __call__(self, items):
        n, hw = len(items), self.hw
        rng = np.random.default_rng()
        images = torch.from_numpy(np.stack([jitter_np(im, rng) for im, _ in items]))
        heat = np.zeros((n, self.classes, hw, hw), dtype=np.float32)
        size = np.zeros((n, 2, hw, hw), dtype=np.float32)
        yy, xx = np.mgrid[0:hw, 0:hw]
        for i, (_, boxes) in enumerate(items):
            for cx, cy, w, h, k in boxes:
                gx, gy = cx / self.stride, cy / self.stride
                sigma = max(1.0, (w * h) ** 0.5 / self.stride / 6)
                blob = np.exp(-((xx - gx) ** 2 + (yy - gy) ** 2) / (2 * sigma**2))
                heat[i, int(k)] = np.maximum(heat[i, int(k)], blob)
                size[i, 0, int(gy), int(gx)] = w
                size[i, 1, int(gy), int(gx)] = h
        return images, torch.from_numpy(heat), torch.from_numpy(size)


def targets_on_device(boxes, hw, classes, stride=2):
    b, m, _ = boxes.shape
    cx, cy, w, h, k = boxes.unbind(-1)
    valid = k >= 0
    gx, gy = cx / stride, cy / stride
    sigma = ((w * h).clamp_min(0).sqrt() / stride / 6).clamp_min(1.0)
    grid = torch.arange(hw, device=boxes.device, dtype=torch.float32)
    denom = (2 * sigma**2)[..., None]
    ex = torch.exp(-((grid - gx[..., None]) ** 2) / denom)
    ey = torch.exp(-((grid - gy[..., None]) ** 2) / denom)
    blob = ey[..., :, None] * ex[..., None, :]
    heat = torch.stack([(blob * (valid & (k == c)).float()[..., None, None]).amax(1) for c in range(classes)], 1)
    pos = gy.long().clamp(0, hw - 1) * hw + gx.long().clamp(0, hw - 1)
    src = torch.stack([w, h], 1) * valid.float()[:, None]
    size = torch.zeros(b, 2, hw * hw, device=boxes.device)
    size.scatter_reduce_(2, pos[:, None].expand(-1, 2, -1), src, "amax")
    return heat, size.view(b, 2, hw, hw)


def cbr(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Detector(nn.Module):
    def __init__(self, classes, c=64):
        super().__init__()
        self.stem = nn.Sequential(cbr(3, c, 2), cbr(c, c))
        self.d1 = nn.Sequential(cbr(c, 2 * c, 2), cbr(2 * c, 2 * c), cbr(2 * c, 2 * c))
        self.d2 = nn.Sequential(cbr(2 * c, 4 * c, 2), cbr(4 * c, 4 * c), cbr(4 * c, 4 * c))
        self.l2, self.l1 = nn.Conv2d(4 * c, c, 1), nn.Conv2d(2 * c, c, 1)
        self.neck = cbr(c, c)
        self.heat, self.size = nn.Conv2d(c, classes, 1), nn.Conv2d(c, 2, 1)
        nn.init.constant_(self.heat.bias, -2.19)

    def forward(self, x):
        s = self.stem(x)
        a = self.d1(s)
        b = self.d2(a)
        p = self.l1(a) + F.interpolate(self.l2(b), scale_factor=2.0, mode="nearest")
        p = self.neck(s + F.interpolate(p, scale_factor=2.0, mode="nearest"))
        return self.heat(p), self.size(p)


def focal(logits, heat):
    p = torch.sigmoid(logits).clamp(1e-4, 1 - 1e-4)
    pos = (heat > 0.99).float()
    loss = -(pos * (1 - p) ** 2 * p.log() + (1 - pos) * (1 - heat) ** 4 * p**2 * (1 - p).log())
    return loss.sum() / pos.sum().clamp_min(1)


def main(opt):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    size, classes, batch, pool, width = (64, 3, 4, 16, 8) if opt.tiny else (256, 6, 64, 1024, 96)
    collate = PadCollate() if opt.fixed else TargetCollate(size, classes)
    loader = DataLoader(
        Scenes(opt.steps * batch, size, classes, pool),
        batch_size=batch,
        shuffle=True,
        num_workers=2 if opt.tiny else 12,
        collate_fn=collate,
        pin_memory=True,
        persistent_workers=True,
        drop_last=True,
    )
    model = Detector(classes, width).to(device, memory_format=torch.channels_last)
    optim = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    loss_sum = torch.zeros((), device=device)
    start_at = opt.steps // 3
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    for it, batch_data in enumerate(loader):
        if it == start_at:
            sync()
            tic = time.perf_counter()
        batch_data = [t.to(device, non_blocking=True) for t in batch_data]
        x = batch_data[0].float().div_(255)
        if opt.fixed:
            x = jitter_on_device(x)
            heat, wh = targets_on_device(batch_data[1], size // 2, classes)
        else:
            heat, wh = batch_data[1], batch_data[2]
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out_heat, out_size = model(x)
        mask = (wh > 0).float()
        l1 = ((out_size.float() - wh).abs() * mask).sum() / mask.sum().clamp_min(1)
        loss = focal(out_heat.float(), heat) + 0.1 * l1
        loss.backward()
        optim.step()
        optim.zero_grad(set_to_none=True)
        loss_sum += loss.detach()
    sync()
    took = time.perf_counter() - tic
    print(f"loss {loss_sum.item() / opt.steps:.3f}")
    print(f"steps={opt.steps} mean_step_ms={took / (opt.steps - start_at) * 1e3:.3f}")


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int, default=380)
    main(cli.parse_args())
