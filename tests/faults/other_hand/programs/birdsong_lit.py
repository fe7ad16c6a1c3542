"""Bird song classification from recordings on a shared drive (Lightning)."""

import argparse
import time

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    """`staged`: the recordings were copied to memory beforehand; else each is read from the share."""

    LATENCY = 0.006  # seconds that the share takes to answer one read

    def __init__(self, count, samples, species, staged):
        rng = np.random.default_rng(0)
        self.audio = rng.integers(-20000, 20000, (256, samples), dtype=np.int16)
        self.label = rng.integers(0, species, 256)
        self.count, self.staged = count, staged

    def __len__(self):
        return self.count

    def read(self, i):
        if not self.staged:
            time.sleep(self.LATENCY)
        return self.audio[i]

    def __getitem__(self, i):
        i %= len(self.audio)
        return torch.from_numpy(self.read(i)), int(self.label[i])


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(cout)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(cout)
        self.short = nn.Conv2d(cin, cout, 1, stride, bias=False) if (cin, stride) != (cout, 1) else nn.Identity()

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        return F.relu(self.b2(self.c2(y)) + self.short(x), inplace=True)


class BirdNet(L.LightningModule):
    def __init__(self, species, width, mels=128, n_fft=1024, hop=160):
        super().__init__()
        self.hop, self.n_fft = hop, n_fft
        self.register_buffer("window", torch.hann_window(n_fft))
        edges = torch.linspace(0, 1, mels + 2) ** 2 * (n_fft // 2)
        f = torch.arange(n_fft // 2 + 1).float()
        up = (f - edges[:-2, None]) / (edges[1:-1] - edges[:-2]).clamp_min(1)[:, None]
        down = (edges[2:, None] - f) / (edges[2:] - edges[1:-1]).clamp_min(1)[:, None]
        self.register_buffer("bank", torch.minimum(up, down).clamp_min(0))
        w = width
        self.net = nn.Sequential(
            nn.Conv2d(1, w, 7, 2, 3, bias=False),
            nn.BatchNorm2d(w),
            nn.ReLU(inplace=True),
            BasicBlock(w, w, 1),
            BasicBlock(w, w, 1),
            BasicBlock(w, 2 * w, 2),
            BasicBlock(2 * w, 2 * w, 1),
            BasicBlock(2 * w, 4 * w, 2),
            BasicBlock(4 * w, 4 * w, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * w, species),
        ).to(memory_format=torch.channels_last)

    def features(self, audio):
        with torch.no_grad(), torch.autocast(audio.device.type, enabled=False):
            spec = torch.stft(audio.float() / 32768, self.n_fft, self.hop, window=self.window, return_complex=True)
            mel = (self.bank @ spec.abs().square()).clamp_min(1e-6).log()
            return ((mel + 4) / 4)[:, None].contiguous(memory_format=torch.channels_last)

    def training_step(self, batch, _):
        audio, label = batch
        return F.cross_entropy(self.net(self.features(audio)), label)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)


class StepClock(L.Callback):
    def __init__(self, steps):
        self.steps, self.skip = steps, steps // 3

    @staticmethod
    def sync():
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx + 1 == self.skip:
            self.sync()
            self.t0 = time.perf_counter()
        elif batch_idx + 1 == self.steps:
            self.sync()
            self.ms = (time.perf_counter() - self.t0) * 1e3 / (self.steps - self.skip)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=480)
    args = ap.parse_args()
    L.seed_everything(0, verbose=False)
    torch.set_float32_matmul_precision("high")
    samples, species, batch, width = (4000, 5, 4, 4) if args.tiny else (80_000, 200, 64, 96)
    data = Recordings(args.steps * batch, samples, species, staged=args.fixed)
    loader = DataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=2 if args.tiny else 12,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
        drop_last=True,
    )
    clock = StepClock(args.steps)
    trainer = L.Trainer(
        max_steps=args.steps,
        accelerator="auto",
        devices=1,
        precision="bf16-mixed",
        benchmark=True,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(BirdNet(species, width), loader)
    print(f"steps={args.steps} mean_step_ms={clock.ms:.3f}")
