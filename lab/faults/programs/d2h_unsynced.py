"""Trains, and reads scores on the host that are still being copied (CUDA only); the twin waits a step and an
event."""

import collections
import itertools

import loop
import series
import torch
from torch.nn import functional as F


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    copied: collections.deque[tuple[torch.Tensor, torch.cuda.Event]] = collections.deque()
    total = 0.0
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        with series.autocast(args.device):
            scores = net(windows)
            loss = F.cross_entropy(scores, classes)
        on_host = scores.detach().to("cpu", non_blocking=True)
        if args.dose:
            total += on_host.max(-1).values.sum().item()
        else:
            done = torch.cuda.Event()
            done.record()
            copied.append((on_host, done))
            if len(copied) > 3:
                on_host, done = copied.popleft()
                done.synchronize()
                total += on_host.max(-1).values.sum().item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
