"""Leaf disease classification; the decoded photographs stay in page-locked host memory."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

MEAN, STD = (0.47, 0.52, 0.41), (0.21, 0.19, 0.22)


class LeafStore:
    """Photographs in shards of one batch; an epoch visits the shards in random order."""

    def __init__(self, count, size, classes, batch, device, as_bytes):
        cuda = device.type == "cuda"
        self.batch, self.device, self.as_bytes = batch, device, as_bytes
        self.mean = torch.tensor(MEAN).view(1, 3, 1, 1)
        self.std = torch.tensor(STD).view(1, 3, 1, 1)
        kind = torch.uint8 if as_bytes else torch.float32
        self.photos = torch.empty(count, 3, size, size, dtype=kind, pin_memory=cuda)
        for i in range(0, count, batch):
            raw = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
            self.photos[i : i + batch] = raw if as_bytes else (raw.float() / 255 - self.mean) / self.std
        self.mean, self.std = self.mean.to(device), self.std.to(device)
        self.labels = torch.randint(0, classes, (count,)).to(device)

    def stream(self, steps):
        shards, order = len(self.photos) // self.batch, []
        for _ in range(steps):
            if not order:
                order = torch.randperm(shards).tolist()
            lo = order.pop() * self.batch
            x = self.photos[lo : lo + self.batch].to(self.device, non_blocking=True)
            if self.as_bytes:
                x = (x.float() / 255 - self.mean) / self.std
            yield x.contiguous(memory_format=torch.channels_last), self.labels[lo : lo + self.batch]


class Stage(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.a = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.s = nn.Conv2d(cin, cout, 1, stride, bias=False) if cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.na(self.a(x)), inplace=True)
        return F.relu(self.nb(self.b(y)) + self.s(x), inplace=True)


def build(classes, w):
    return nn.Sequential(
        nn.Conv2d(3, w // 2, 3, 2, 1, bias=False),
        nn.BatchNorm2d(w // 2),
        nn.ReLU(inplace=True),
        Stage(w // 2, w, 2),
        Stage(w, w, 1),
        Stage(w, 2 * w, 2),
        Stage(2 * w, 2 * w, 1),
        Stage(2 * w, 4 * w, 2),
        Stage(4 * w, 4 * w, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * w, classes),
    )


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int, default=1300)
    args = ap.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(21)
    torch.backends.cudnn.benchmark = True
    count, size, classes, batch, width = (16, 32, 4, 4, 8) if args.tiny else (2048, 224, 38, 256, 64)

    store = LeafStore(count, size, classes, batch, device, as_bytes=args.fixed)
    model = build(classes, width).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True, fused=True)
    correct = torch.zeros((), device=device)
    skip = args.steps // 3
    for step, (x, y) in enumerate(store.stream(args.steps)):
        if step == skip:
            if device.type == "cuda":
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        correct += (logits.detach().argmax(1) == y).sum()
    if device.type == "cuda":
        torch.cuda.synchronize()
    ms = (time.perf_counter() - t0) * 1e3 / (args.steps - skip)
    print(f"accuracy {correct.item() / (args.steps * batch):.4f}")
    print(f"steps={args.steps} mean_step_ms={ms:.3f}")


if __name__ == "__main__":
    main()
