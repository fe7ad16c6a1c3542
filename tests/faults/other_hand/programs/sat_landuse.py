"""Land-use classification on satellite chips with a bottleneck residual network."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Chips(Dataset):
    """uint8 chips in memory (H, W, C); random crop and flips in the workers."""

    def __init__(self, length, stored, crop, classes, seed=21):
        rng = np.random.default_rng(seed)
        self.data = rng.integers(0, 256, (300, stored, stored, 3), dtype=np.uint8)
        self.labels = rng.integers(0, classes, 300)
        self.length, self.stored, self.crop = length, stored, crop

    def __len__(self):
        return self.length

    def __getitems__(self, indices):
        rng = np.random.default_rng(indices[0])
        c = self.crop
        batch = torch.empty(len(indices), c, c, 3, dtype=torch.uint8)
        view = batch.numpy()
        offs = rng.integers(0, self.stored - c + 1, (len(indices), 2))
        flips = rng.random(len(indices)) < 0.5
        for k, i in enumerate(indices):
            y, x = offs[k]
            chip = self.data[i % len(self.data), y : y + c, x : x + c]
            view[k] = chip[:, ::-1] if flips[k] else chip
        labels = torch.from_numpy(self.labels[np.asarray(indices) % len(self.data)])
        return batch, labels


def keep(batch):
    return batch


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        cout = mid * 4
        self.a = nn.Conv2d(cin, mid, 1, bias=False)
        self.na = nn.BatchNorm2d(mid)
        self.b = nn.Conv2d(mid, mid, 3, stride, 1, bias=False)
        self.nb = nn.BatchNorm2d(mid)
        self.c = nn.Conv2d(mid, cout, 1, bias=False)
        self.nc = nn.BatchNorm2d(cout)
        nn.init.zeros_(self.nc.weight)
        self.short = None
        if stride != 1 or cin != cout:
            self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.na(self.a(x)), inplace=True)
        y = F.relu(self.nb(self.b(y)), inplace=True)
        y = self.nc(self.c(y))
        y += x if self.short is None else self.short(x)
        return F.relu(y, inplace=True)


def resnet(width, depths, classes):
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    cin = width
    for stage, depth in enumerate(depths):
        mid = width << stage
        for j in range(depth):
            layers.append(Bottleneck(cin, mid, 2 if stage and j == 0 else 1))
            cin = mid * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(1)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    if args.tiny:
        batch, stored, crop, width, depths, workers = 4, 40, 32, 4, (1, 1), 1
    else:
        batch, stored, crop, width, depths, workers = 320, 224, 192, 64, (3, 4, 6, 3), 8
    steps = args.steps or (6 if args.tiny else 190)

    loader = DataLoader(
        Chips(steps * batch, stored, crop, 45),
        batch_size=batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=cuda,
        prefetch_factor=3,
        persistent_workers=True,
        collate_fn=keep,
        drop_last=True,
    )
    model = resnet(width, depths, 45).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=cuda)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.4, total_steps=steps + 1)
    mean = torch.tensor([118.0, 112.0, 101.0], device=device, dtype=torch.bfloat16).view(1, 3, 1, 1)
    correct = torch.zeros((), device=device)

    for step, (chips, labels) in enumerate(loader):
        if step == steps // 3:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        chips = chips.to(device, non_blocking=True).permute(0, 3, 1, 2)
        labels = labels.to(device, non_blocking=True)
        x = chips.to(torch.bfloat16).sub_(mean).mul_(1 / 58)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(x)
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        correct += (logits.detach().argmax(1) == labels).sum()
    if cuda:
        torch.cuda.synchronize()
    dt = time.perf_counter() - t0
    print(f"train accuracy {correct.item() / (steps * batch):.4f}")
    print(f"steps={steps} mean_step_ms={dt / (steps - steps // 3) * 1e3:.3f}")


if __name__ == "__main__":
    main()
