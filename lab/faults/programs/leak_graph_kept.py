"""Trains, and sums a measure of the scores with the graph that made it: what each step saved is never
freed."""

import itertools

import loop
import series
import torch
from torch.nn import functional as F

CLASSES = {"cpu": 512, "cuda": 64}


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    net = series.Net(size).to(args.device)
    net.head = torch.nn.Linear(size.width, CLASSES[args.device]).to(args.device)
    optimizer = series.sgd(net, args.device)
    entropy = torch.zeros((), device=args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        with series.autocast(args.device):
            scores = net.head(net.layers(windows)).float()
            loss = F.cross_entropy(scores.mean(1), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # What was saved above is freed by backward(); what this saves is kept by the sum.
        kept = scores if args.dose else scores.detach()
        entropy = entropy + F.softmax(kept, -1).square().mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
