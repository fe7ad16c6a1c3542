"""Surface inspection line: classify sheet-metal tiles coming from four cameras."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Unit(nn.Module):
    def __init__(self, cin, mid, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, mid, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(mid)
        self.conv2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(mid)
        self.conv3 = nn.Conv2d(mid, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.proj = None
        if stride != 1 or cin != cout:
            self.proj = nn.Conv2d(cin, cout, 1, stride, bias=False)
            self.proj_bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        y = F.relu_(self.bn1(self.conv1(x)))
        y = F.relu_(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        r = x if self.proj is None else self.proj_bn(self.proj(x))
        return F.relu_(y.add_(r))


class TileNet(nn.Module):
    def __init__(self, width, depths, classes):
        super().__init__()
        self.conv0 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn0 = nn.BatchNorm2d(width)
        layers, cin = [], width
        for i, d in enumerate(depths):
            mid = width * 2**i
            for j in range(d):
                layers.append(Unit(cin, mid, mid * 4, 2 if j == 0 and i > 0 else 1))
                cin = mid * 4
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(cin, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu_(self.bn0(self.conv0(x))), 3, 2, 1)
        return self.head(self.body(x).mean((2, 3)))


def randomize_stats(net):
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.1)
            m.running_var.uniform_(0.7, 1.3)
            m.weight.data.uniform_(0.4, 0.6)


def for_deployment(net):
    pairs = [("conv0", "bn0"), ("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"), ("proj", "proj_bn")]
    for mod in list(net.modules()):
        for c, b in pairs:
            if getattr(mod, c, None) is not None and hasattr(mod, b):
                setattr(mod, c, fuse_conv_bn_eval(getattr(mod, c), getattr(mod, b)))
                setattr(mod, b, nn.Identity())
    return net


class TileFeed:
    """Rotating camera buffers; the next batch is uploaded while the current one is scored."""

    def __init__(self, batch, side, device, n_buffers=4):
        self.cuda = device.type == "cuda"
        self.device = device
        self.buffers = [
            torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8).contiguous(
                memory_format=torch.channels_last
            )
            for _ in range(n_buffers)
        ]
        if self.cuda:
            self.buffers = [b.pin_memory() for b in self.buffers]
            self.stream = torch.cuda.Stream()
        self.i = 0
        self._upload()

    def _upload(self):
        src = self.buffers[self.i % len(self.buffers)]
        self.i += 1
        if not self.cuda:
            self.nxt = src
            return
        with torch.cuda.stream(self.stream):
            self.nxt = src.to(self.device, non_blocking=True)

    def get(self):
        if self.cuda:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.nxt.record_stream(torch.cuda.current_stream())
        cur = self.nxt
        self._upload()
        return cur


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=None)
    a = ap.parse_args()
    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    batch, side, width, depths = (2, 32, 8, (1, 1)) if a.tiny else (128, 384, 64, (3, 4, 6, 3))
    steps = a.steps or (6 if a.tiny else 500)

    net = TileNet(width, depths, 12).eval()
    randomize_stats(net)
    if a.fixed:
        net = for_deployment(net)
    net = net.to(device, torch.bfloat16, memory_format=torch.channels_last)
    feed = TileFeed(batch, side, device)
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

    verdicts = []
    with torch.inference_mode():
        for step in range(steps):
            if step == steps // 3:
                sync()
                t0 = time.perf_counter()
            x = feed.get().to(torch.bfloat16).div_(127.5).sub_(1.0)
            verdicts.append(net(x).argmax(1))
    labels = torch.cat(verdicts).cpu()
    ms = (time.perf_counter() - t0) / (steps - steps // 3) * 1e3
    print("defect rate", round((labels > 0).float().mean().item(), 4))
    print(f"steps={steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
