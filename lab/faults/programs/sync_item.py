"""Trains, and reads scores and probabilities one by one with .item() for a history each step (CUDA only)."""

import collections
import itertools

import loop
import series
import torch
from torch.nn import functional as F


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SHORT
    work_s = series.step_s(size, args.device)
    tried = torch.randn(200, device="cuda")
    item_s = loop.seconds_of(lambda: [value.item() for value in tried], "cuda") / len(tried)
    num = max(1, round(loop.on_top_s(args.dose or 30, work_s) / item_s))
    history: collections.deque[object] = collections.deque(maxlen=10_000)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        with series.autocast(args.device):
            scores = net(windows)
            loss = F.cross_entropy(scores, classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found = torch.cat([scores.detach().flatten(), scores.detach().softmax(-1).flatten()])[:num]
        if args.dose:
            history.extend(value.item() for value in found)
        else:
            history.append(found.mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
