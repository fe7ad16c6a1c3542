"""Remaining-useful-life estimation from 64 machine sensors, one encoder per sensor."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class MachineLog(Dataset):
    def __init__(self, sensors, window, samples):
        rng = np.random.default_rng(1)
        self.readings = rng.standard_normal((20_000, sensors), dtype=np.float32)
        self.window, self.samples = window, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        start = (i * 977) % (len(self.readings) - self.window)
        part = self.readings[start : start + self.window]
        return {
            "signal": torch.from_numpy(np.ascontiguousarray(part.T)),
            "regime": torch.tensor(start % 6),
            "life": torch.tensor(1.0 - start / len(self.readings)),
        }


class Fusion(nn.Module):
    def __init__(self, sensors, window, dim, depth, heads):
        super().__init__()
        self.encoders = nn.ModuleList(
            nn.Sequential(nn.Linear(window, dim // 4), nn.GELU(), nn.Linear(dim // 4, dim)) for _ in range(sensors)
        )
        self.sensor_id = nn.Parameter(torch.randn(1, sensors, dim) * 0.02)
        self.regime = nn.Embedding(6, dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.trunk = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))

    def forward(self, signal, regime):
        tokens = [enc(s) for enc, s in zip(self.encoders, signal.unbind(1))]
        x = torch.stack(tokens, dim=1) + self.sensor_id + self.regime(regime)[:, None]
        return self.head(self.trunk(x).mean(1)).squeeze(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=480)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    sensors, window, dim, depth, heads, batch = (4, 16, 16, 2, 2, 4) if args.tiny else (64, 256, 768, 8, 12, 256)

    loader = DataLoader(
        MachineLog(sensors, window, args.steps * batch),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=2 if args.tiny else 8,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=3,
    )
    model = Fusion(sensors, window, dim, depth, heads).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    mae = torch.zeros((), device=device)
    skip = args.steps // 3

    for step, batch_dict in enumerate(loader):
        if step == skip:
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        b = {k: v.to(device, non_blocking=args.fixed) for k, v in batch_dict.items()}
        with torch.autocast(device.type, dtype=torch.bfloat16):
            life = model(b["signal"], b["regime"])
        loss = F.smooth_l1_loss(life.float(), b["life"])
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        mae += loss.detach()
    if device.type == "cuda":
        torch.cuda.synchronize()
    ended = time.perf_counter()
    print(f"mean loss {mae.item() / args.steps:.4f}")
    print(f"steps={args.steps} mean_step_ms={(ended - began) * 1e3 / (args.steps - skip):.3f}")


if __name__ == "__main__":
    main()
