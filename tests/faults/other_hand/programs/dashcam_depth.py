"""Monocular depth for dash-cam clips: nearest obstacle per frame, alarm when too close."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(i, o, k=3, s=1):
    return nn.Conv2d(i, o, k, s, k // 2)


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = conv(c, c), conv(c, c)

    def forward(self, x):
        return self.b(self.a(x).relu_()).add_(x).relu_()


class DepthNet(nn.Module):
    def __init__(self, base, blocks):
        super().__init__()
        chans = [base, base * 2, base * 4, base * 8]
        self.stem = conv(3, base, 5, 2)
        self.enc, self.down = nn.ModuleList(), nn.ModuleList()
        for i, c in enumerate(chans):
            self.enc.append(nn.Sequential(*[Res(c) for _ in range(blocks)]))
            if i < 3:
                self.down.append(conv(c, c * 2, 3, 2))
        self.up = nn.ModuleList(conv(chans[i + 1], chans[i], 1) for i in range(3))
        self.merge = nn.ModuleList(Res(chans[i]) for i in range(3))
        self.head = conv(base, 1)

    def forward(self, x):
        x = self.stem(x).relu_()
        skips = []
        for i, stage in enumerate(self.enc):
            x = stage(x)
            if i < 3:
                skips.append(x)
                x = self.down[i](x).relu_()
        for i in (2, 1, 0):
            x = F.interpolate(self.up[i](x), scale_factor=2, mode="nearest")
            x = self.merge[i](x + skips[i])
        return F.softplus(self.head(x))[:, 0].half()


class Uploader:
    def __init__(self, clips, device):
        self.clips, self.device, self.n = clips, device, 0
        self.side = torch.cuda.Stream() if device.type == "cuda" else None
        self.fetch()

    def fetch(self):
        clip = self.clips[self.n % len(self.clips)]
        self.n += 1
        if self.side is None:
            self.ready = clip
        else:
            with torch.cuda.stream(self.side):
                self.ready = clip.to(self.device, non_blocking=True)

    def take(self):
        out = self.ready
        if self.side is not None:
            main = torch.cuda.current_stream()
            main.wait_stream(self.side)
            out.record_stream(main)
        self.fetch()
        return out


def nearest(depth):
    lanes = depth[:, ::16, ::16].astype(np.float32)
    return lanes.reshape(len(lanes), -1).min(1)


class Pipeline:
    def __init__(self, net, device, shape, lag):
        self.net, self.device, self.lag = net, device, lag
        self.cuda = device.type == "cuda"
        self.slots = [torch.empty(shape, dtype=torch.float16, pin_memory=self.cuda) for _ in range(lag + 2)]
        self.queue, self.minima = [], []

    def step(self, n, frames):
        x = frames.to(torch.bfloat16).mul_(1 / 255)
        slot = self.slots[n % len(self.slots)]
        slot.copy_(self.net(x), non_blocking=True)
        mark = None
        if self.cuda and self.lag:
            mark = torch.cuda.Event()
            mark.record()
        self.queue.append((slot, mark))
        if len(self.queue) > self.lag:
            self.collect()

    def collect(self):
        slot, mark = self.queue.pop(0)
        if mark is not None:
            mark.synchronize()
        self.minima.append(nearest(slot.numpy()))


def main():
    ap = argparse.ArgumentParser()
    for flag in ("--fixed", "--tiny"):
        ap.add_argument(flag, action="store_true")
    ap.add_argument("--steps", type=int)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(7)
    torch.backends.cudnn.benchmark = True
    b, h, w, base, blocks = (2, 32, 48, 8, 1) if args.tiny else (32, 480, 640, 64, 3)
    steps = args.steps or (6 if args.tiny else 500)
    net = DepthNet(base, blocks).eval().to(device, torch.bfloat16, memory_format=torch.channels_last)
    clips = [
        torch.randint(0, 256, (b, 3, h, w), dtype=torch.uint8).to(memory_format=torch.channels_last) for _ in range(3)
    ]
    if device.type == "cuda":
        clips = [c.pin_memory() for c in clips]
    source = Uploader(clips, device)
    pipe = Pipeline(net, device, (b, h // 2, w // 2), lag=1 if args.fixed else 0)
    with torch.inference_mode():
        for n in range(steps):
            if n == steps // 3:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                tic = time.perf_counter()
            pipe.step(n, source.take())
        while pipe.queue:
            pipe.collect()
        if device.type == "cuda":
            torch.cuda.synchronize()
    ms = (time.perf_counter() - tic) * 1e3 / (steps - steps // 3)
    dist = np.concatenate(pipe.minima)
    print(f"alarms {(dist < 0.5).sum()} of {len(dist)} frames")
    print(f"steps={steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
