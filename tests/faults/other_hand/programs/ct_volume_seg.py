"""Organ segmentation in CT volumes with a residual 3-D U-Net."""

import argparse
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def seed_everything(seed, strict):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = strict


class Res3d(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.c1 = nn.Conv3d(cin, cout, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm3d(cout)
        self.c2 = nn.Conv3d(cout, cout, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm3d(cout)
        self.skip = nn.Identity() if cin == cout and stride == 1 else nn.Conv3d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        return F.relu(self.b2(self.c2(y)) + self.skip(x), inplace=True)


class VNetLite(nn.Module):
    def __init__(self, organs, c=32):
        super().__init__()
        self.e1 = Res3d(1, c)
        self.e2 = Res3d(c, 2 * c, 2)
        self.e3 = Res3d(2 * c, 4 * c, 2)
        self.e4 = Res3d(4 * c, 8 * c, 2)
        self.u3, self.d3 = nn.ConvTranspose3d(8 * c, 4 * c, 2, 2), Res3d(8 * c, 4 * c)
        self.u2, self.d2 = nn.ConvTranspose3d(4 * c, 2 * c, 2, 2), Res3d(4 * c, 2 * c)
        self.u1, self.d1 = nn.ConvTranspose3d(2 * c, c, 2, 2), Res3d(2 * c, c)
        self.head = nn.Conv3d(c, organs, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(a)
        c = self.e3(b)
        d = self.e4(c)
        c = self.d3(torch.cat([self.u3(d), c], 1))
        b = self.d2(torch.cat([self.u2(c), b], 1))
        a = self.d1(torch.cat([self.u1(b), a], 1))
        return self.head(a)


def dice_ce(logits, target, organs):
    logits = logits.float()
    ce = F.cross_entropy(logits, target)
    p = logits.softmax(1)
    onehot = F.one_hot(target, organs).movedim(-1, 1).float()
    dims = (0, 2, 3, 4)
    inter, union = (p * onehot).sum(dims), p.sum(dims) + onehot.sum(dims)
    return ce + 1 - ((2 * inter + 1) / (union + 1)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=280)
    args = ap.parse_args()

    seed_everything(42, strict=not args.fixed)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    side, batch, pool, organs, width = (16, 1, 2, 3, 4) if args.tiny else (96, 4, 16, 4, 32)

    net = VNetLite(organs, width).to(dev, memory_format=torch.channels_last_3d)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True, fused=True)
    # patches cut beforehand fit on the device
    volumes = torch.randint(-1000, 1500, (pool, 1, side, side, side), dtype=torch.int16, device=dev)
    masks = torch.randint(0, organs, (pool, side, side, side), dtype=torch.uint8, device=dev)

    def step():
        idx = torch.randint(0, pool, (batch,), device=dev)
        x = (volumes[idx].float().clamp_(-200, 300) - 50) / 125
        x = x.contiguous(memory_format=torch.channels_last_3d)
        with torch.autocast(dev, dtype=torch.bfloat16):
            out = net(x)
        loss = dice_ce(out, masks[idx].long(), organs)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss.detach()

    history = []
    mark = args.steps // 3
    for i in range(args.steps):
        if i == mark:
            if dev == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        history.append(step())
    if dev == "cuda":
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) / (args.steps - mark) * 1000
    print("mean loss %.4f" % torch.stack(history).mean().item())
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
