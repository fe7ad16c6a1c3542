"""Two-fold super-resolution of microscope images with an EDSR network."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class ResBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, c, 3, padding=1)
        self.b = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + 0.1 * self.b(F.relu(self.a(x), inplace=True))


class EDSR(nn.Module):
    def __init__(self, c, blocks):
        super().__init__()
        self.head = nn.Conv2d(3, c, 3, padding=1)
        self.body = nn.Sequential(*[ResBlock(c) for _ in range(blocks)], nn.Conv2d(c, c, 3, padding=1))
        self.up = nn.Conv2d(c, c // 2, 3, padding=1)
        self.tail = nn.Conv2d(c // 2, 3, 3, padding=1)

    def forward(self, x):
        x = self.head(x)
        x = x + self.body(x)
        x = F.relu(self.up(F.interpolate(x, scale_factor=2.0, mode="nearest")), inplace=True)
        return self.tail(x)


class SuperResTask:
    def __init__(self, tiny):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.patch, self.batch, pool, c, blocks = (16, 2, 4, 8, 2) if tiny else (96, 48, 1024, 128, 16)
        # the whole set of high-resolution patches fits on the device
        self.high = torch.randint(
            0, 256, (pool, 3, 2 * self.patch, 2 * self.patch), dtype=torch.uint8, device=self.device
        )
        self.model = EDSR(c, blocks).to(self.device, memory_format=torch.channels_last)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)

    def step(self):
        idx = torch.randint(0, len(self.high), (self.batch,), device=self.device)
        hr = self.high[idx].contiguous(memory_format=torch.channels_last).float().div_(255)
        lr = F.avg_pool2d(hr, 2)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            sr = self.model(lr)
        loss = F.l1_loss(sr.float(), hr)
        loss.backward()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return loss.detach()


def timed(task, n):
    if task.device.type == "cuda":
        torch.cuda.synchronize()
    t0 = time.perf_counter()
    for _ in range(n):
        loss = task.step()
    if task.device.type == "cuda":
        torch.cuda.synchronize()
    return loss, 1e3 * (time.perf_counter() - t0) / n


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--fixed", action="store_true", help="no effect")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int, default=400)
    args = cli.parse_args()
    task = SuperResTask(args.tiny)
    for _ in range(args.steps // 3):
        task.step()
    loss, ms = timed(task, args.steps - args.steps // 3)
    print(f"l1 {loss.item():.4f}")
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")
