#!/usr/bin/env python3
"""3-D U-Net for liver segmentation in CT, random crops, soft Dice + cross entropy."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class DoubleConv(nn.Sequential):
    def __init__(self, cin, cout):
        super().__init__(
            nn.Conv3d(cin, cout, 3, padding=1, bias=False),
            nn.BatchNorm3d(cout),
            nn.ReLU(inplace=True),
            nn.Conv3d(cout, cout, 3, padding=1, bias=False),
            nn.BatchNorm3d(cout),
            nn.ReLU(inplace=True),
        )


class UNet3D(nn.Module):
    def __init__(self, base, levels, classes=2):
        super().__init__()
        ch = [base * 2**i for i in range(levels)]
        self.enc = nn.ModuleList([DoubleConv(1 if i == 0 else ch[i - 1], c) for i, c in enumerate(ch)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(ch[i + 1], ch[i], 2, 2) for i in range(levels - 1)])
        self.dec = nn.ModuleList([DoubleConv(ch[i] * 2, ch[i]) for i in range(levels - 1)])
        self.out = nn.Conv3d(ch[0], classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.enc):
            if i:
                x = F.max_pool3d(x, 2)
            x = block(x)
            skips.append(x)
        for i in reversed(range(len(self.dec))):
            x = self.dec[i](torch.cat([self.up[i](x), skips[i]], dim=1))
        return self.out(x)


class CropQueue:
    """Pre-extracted Hounsfield crops in host memory, handed out round robin."""

    def __init__(self, n, batch, side, device):
        self.device, self.k = device, 0
        self.items = []
        for _ in range(n):
            hu = torch.randint(-1000, 1000, (batch, 1, side, side, side), dtype=torch.int16)
            mask = (hu[:, 0] > 300).to(torch.uint8)
            if device.type == "cuda":
                hu, mask = hu.pin_memory(), mask.pin_memory()
            self.items.append((hu, mask))

    def next(self):
        hu, mask = self.items[self.k % len(self.items)]
        self.k += 1
        hu = hu.to(self.device, non_blocking=True)
        mask = mask.to(self.device, non_blocking=True)
        x = hu.to(torch.bfloat16).clamp_(-200, 300).div_(250)
        return x.to(memory_format=torch.channels_last_3d), mask.long()


def seg_loss(logits, target):
    logits = logits.float()
    ce = F.cross_entropy(logits, target)
    p = logits.softmax(1)[:, 1]
    t = target.float()
    dice = (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    return ce + 1 - dice


def release(device, step, every):
    if every and step % every == 0 and device.type == "cuda":
        torch.cuda.empty_cache()


def fit(net, queue, device, steps, tidy_every):
    cuda = device.type == "cuda"
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5, fused=cuda)
    poly = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=steps, power=0.9)
    avg = torch.zeros((), device=device)
    t0 = None
    for step in range(steps):
        if step == steps // 3:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        x, target = queue.next()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = net(x)
        loss = seg_loss(logits, target)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        poly.step()
        avg.lerp_(loss.detach(), 0.05)
        del x, target, logits, loss
        release(device, step, tidy_every)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - t0) / (steps - steps // 3), avg.item()


def main():
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--fixed", action="store_true")
    cli.add_argument("--tiny", action="store_true")
    cli.add_argument("--steps", type=int, default=0)
    args = cli.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(5)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    batch, side, base, levels = (1, 16, 4, 2) if args.tiny else (2, 128, 32, 4)
    steps = args.steps or (6 if args.tiny else 200)
    net = UNet3D(base, levels).to(device, memory_format=torch.channels_last_3d)
    queue = CropQueue(3, batch, side, device)
    sec, avg = fit(net, queue, device, steps, tidy_every=0 if args.fixed else 4)
    print(f"loss {avg:.4f}")
    print(f"steps={steps} mean_step_ms={sec * 1e3:.3f}")


if __name__ == "__main__":
    main()
