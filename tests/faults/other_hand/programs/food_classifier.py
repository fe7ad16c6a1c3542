"""Train a ResNet-50 on photographs of dishes."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Dishes(Dataset):
    def __init__(self, n, size, classes, pool):
        rng = np.random.default_rng(12)
        self.images = rng.integers(0, 256, (pool, 3, size, size), dtype=np.uint8)
        self.labels = rng.integers(0, classes, pool)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        i %= len(self.images)
        return torch.from_numpy(self.images[i]), int(self.labels[i])


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        cout = mid * 4
        self.c1, self.b1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.c2, self.b2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.c3, self.b3 = nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.short = nn.Identity()
        if cin != cout or stride != 1:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        nn.init.zeros_(self.b3.weight)

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        y = F.relu(self.b2(self.c2(y)), inplace=True)
        return F.relu(self.b3(self.c3(y)) + self.short(x), inplace=True)


def resnet(classes, width, counts):
    layers = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    cin = width
    for s, count in enumerate(counts):
        mid = width * 2**s
        for k in range(count):
            layers.append(Bottleneck(cin, mid, 2 if k == 0 and s else 1))
            cin = mid * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true", help="no effect")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=260)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    size, classes, batch, pool, width, counts = (
        (32, 5, 4, 16, 8, (1, 1)) if args.tiny else (224, 101, 192, 2048, 64, (3, 4, 6, 3))
    )

    loader = DataLoader(
        Dishes(args.steps * batch, size, classes, pool),
        batch_size=batch,
        shuffle=True,
        num_workers=2 if args.tiny else 8,
        pin_memory=True,
        persistent_workers=True,
        drop_last=True,
    )
    model = resnet(classes, width, counts).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.4, total_steps=args.steps)
    mean = torch.tensor([123.7, 116.3, 103.5], device=device).view(1, 3, 1, 1)
    inv_std = 1 / torch.tensor([58.4, 57.1, 57.4], device=device).view(1, 3, 1, 1)
    total = torch.zeros((), device=device)
    skip = args.steps // 3

    for step, (image, label) in enumerate(loader):
        if step == skip:
            if device.type == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        image = image.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        label = label.to(device, non_blocking=True)
        x = (image.float() - mean) * inv_std
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), label, label_smoothing=0.1)
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        total += loss.detach()
    if device.type == "cuda":
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / (args.steps - skip)
    print(f"mean loss {total.item() / args.steps:.3f}")
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
