"""Document layout detection: every document has its own page size, pages go in batches."""

import argparse
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS = ("text", "title", "figure", "table", "rule", "blank")


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1 = nn.Conv2d(c, c, 3, padding=1)
        self.c2 = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return F.relu_(self.c2(F.relu_(self.c1(x))).add_(x))


class LayoutNet(nn.Module):
    def __init__(self, c, depth):
        super().__init__()
        self.stem1 = nn.Conv2d(1, c // 2, 5, 2, 2)
        self.stem2 = nn.Conv2d(c // 2, c, 3, 2, 1)
        self.blocks = nn.Sequential(*[Block(c) for _ in range(depth)])
        self.head = nn.Conv2d(c, len(KINDS), 1)

    def forward(self, x):
        x = F.relu_(self.stem2(F.relu_(self.stem1(x))))
        return self.head(self.blocks(x))


def documents(rng, count, lo, hi, multiple):
    """Page sizes as scanners deliver them: arbitrary, rounded to the stride of the network."""
    seen = set()
    while len(seen) < count:
        h = rng.randrange(lo[0], hi[0], multiple)
        w = rng.randrange(lo[1], hi[1], multiple)
        if (h, w) not in seen:
            seen.add((h, w))
            yield h, w


def page_batches(rng, n_docs, batches_each, batch, lo, hi, pinned):
    scanner = torch.randint(0, 256, (batch * hi[0] * hi[1],), dtype=torch.uint8)
    if pinned:
        scanner = scanner.pin_memory()
    for h, w in documents(rng, n_docs, lo, hi, 4):
        scan = scanner[: batch * h * w].view(batch, 1, h, w)
        for _ in range(batches_each):
            yield scan


@torch.inference_mode()
def analyse(net, pages, device):
    x = pages.to(device, non_blocking=True).to(torch.bfloat16).sub_(220).div_(60)
    logits = net(x.to(memory_format=torch.channels_last))
    kind = logits.argmax(1)
    return torch.stack([(kind == i).sum() for i in range(len(KINDS))])


def run(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device.type == "cuda"
    torch.manual_seed(9)
    torch.backends.cudnn.benchmark = not args.fixed
    rng = random.Random(77)
    if args.tiny:
        c, depth, batch, per_doc, lo, hi = 8, 1, 2, 2, (32, 32), (64, 64)
    else:
        c, depth, batch, per_doc, lo, hi = 192, 5, 16, 24, (960, 700), (1160, 860)
    steps = args.steps or (6 if args.tiny else 312)
    net = LayoutNet(c, depth).eval().to(device, torch.bfloat16, memory_format=torch.channels_last)
    stream = page_batches(rng, -(-steps // per_doc), per_doc, batch, lo, hi, cuda)
    census = torch.zeros(len(KINDS), dtype=torch.long, device=device)
    begin = 0.0
    for i, pages in zip(range(steps), stream):
        if i == steps // 3:
            if cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
        census += analyse(net, pages, device)
    if cuda:
        torch.cuda.synchronize()
    spent = time.perf_counter() - begin
    print(dict(zip(KINDS, census.tolist())))
    print(f"steps={steps} mean_step_ms={spent / (steps - steps // 3) * 1e3:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="page layout census")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=None)
    run(parser.parse_args())
