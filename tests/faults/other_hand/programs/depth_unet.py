"""Monocular depth estimation: a U-Net on driving frames kept on the GPU."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class DepthUNet(nn.Module):
    def __init__(self, base=64, levels=4):
        super().__init__()
        widths = [base * 2**i for i in range(levels)]
        self.down = nn.ModuleList()
        cin = 3
        for w in widths:
            self.down.append(double_conv(cin, w))
            cin = w
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for w in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose2d(w * 2, w, 2, stride=2))
            self.merge.append(double_conv(w * 2, w))
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            if i:
                x = F.max_pool2d(x, 2)
            x = block(x)
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


class DepthTrainer:
    def __init__(self, opts):
        self.opts = opts
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(0)
        h, w, self.batch, pool, base = (32, 32, 2, 4, 8) if opts.tiny else (256, 512, 16, 64, 64)
        self.layout = torch.channels_last if opts.fixed else torch.contiguous_format
        self.net = DepthUNet(base).to(self.device, memory_format=self.layout)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-4, fused=True)
        self.frames = torch.randint(0, 256, (pool, 3, h, w), dtype=torch.uint8, device=self.device)
        self.depth = torch.rand(pool, 1, h, w, device=self.device) * 80 + 0.5
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=self.device).view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device=self.device).view(1, 3, 1, 1)

    def batch_at_random(self):
        idx = torch.randint(0, self.frames.shape[0], (self.batch,), device=self.device)
        x = (self.frames[idx].float() / 255 - self.mean) / self.std
        return x.contiguous(memory_format=self.layout), self.depth[idx]

    def step(self):
        x, y = self.batch_at_random()
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            pred = self.net(x)
        diff = pred.float() - y.log()
        loss = diff.square().mean() - 0.5 * diff.mean(dim=(1, 2, 3)).square().mean()
        loss.backward()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self):
        n, skip = self.opts.steps, self.opts.steps // 3
        for _ in range(skip):
            self.step()
        self.wait()
        begin = time.perf_counter()
        for _ in range(n - skip):
            loss = self.step()
        self.wait()
        ms = 1000 * (time.perf_counter() - begin) / (n - skip)
        print(f"last silog {loss.item():.4f}")
        print(f"steps={n} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=270)
    DepthTrainer(ap.parse_args()).run()
