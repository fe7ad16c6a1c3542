"""Road extraction from aerial images with Lightning."""

import argparse
import time

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Aerial(Dataset):
    def __init__(self, n, size, pool):
        rng = np.random.default_rng(9)
        self.images = rng.integers(0, 256, (pool, 3, size, size), dtype=np.uint8)
        self.roads = rng.integers(0, 2, (pool, size, size), dtype=np.uint8)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        i %= len(self.images)
        return torch.from_numpy(self.images[i]), torch.from_numpy(self.roads[i])


def unit(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class RoadNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.enc = nn.ModuleList(
            [
                nn.Sequential(unit(3, w), unit(w, w)),
                nn.Sequential(unit(w, 2 * w, 2), unit(2 * w, 2 * w)),
                nn.Sequential(unit(2 * w, 4 * w, 2), unit(4 * w, 4 * w)),
                nn.Sequential(unit(4 * w, 8 * w, 2), unit(8 * w, 8 * w)),
            ]
        )
        self.side = nn.ModuleList([nn.Conv2d(c * w, w, 1) for c in (8, 4, 2)])
        self.dec = nn.ModuleList([unit(w, w) for _ in range(3)])
        self.skip = nn.ModuleList([nn.Conv2d(c * w, w, 1) for c in (4, 2, 1)])
        self.head = nn.Conv2d(w, 1, 1)

    def forward(self, x):
        feats = []
        for stage in self.enc:
            x = stage(x)
            feats.append(x)
        y = self.side[0](feats[3])
        for dec, skip, f in zip(self.dec, self.skip, (feats[2], feats[1], feats[0])):
            y = dec(F.interpolate(y, scale_factor=2.0, mode="nearest") + skip(f))
        return self.head(y)[:, 0]


class RoadModule(L.LightningModule):
    def __init__(self, width, steps):
        super().__init__()
        self.net = RoadNet(width).to(memory_format=torch.channels_last)
        self.steps, self.begin, self.ms = steps, steps // 3, float("nan")

    def training_step(self, batch, batch_idx):
        image, road = batch
        x = image.contiguous(memory_format=torch.channels_last).float().div_(127.5).sub_(1.0)
        logits = self.net(x).float()
        target = road.float()
        p = logits.sigmoid()
        dice = 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, target) + dice

    def on_train_batch_end(self, outputs, batch, batch_idx):
        done = batch_idx + 1
        if done in (self.begin, self.steps):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            if done == self.begin:
                self.t0 = now
            else:
                self.ms = (now - self.t0) * 1e3 / (self.steps - self.begin)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-4, fused=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true", help="no effect")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=500)
    args = ap.parse_args()
    L.seed_everything(5, verbose=False)
    torch.set_float32_matmul_precision("high")
    size, batch, pool, width = (32, 4, 16, 8) if args.tiny else (256, 48, 1024, 64)
    loader = DataLoader(
        Aerial(args.steps * batch, size, pool),
        batch,
        shuffle=True,
        drop_last=True,
        pin_memory=True,
        num_workers=2 if args.tiny else 8,
        persistent_workers=True,
    )
    module = RoadModule(width, args.steps)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        max_steps=args.steps,
        precision="bf16-mixed",
        benchmark=True,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    print(f"steps={args.steps} mean_step_ms={module.ms:.3f}")


if __name__ == "__main__":
    main()
