"""Trains with autograd's anomaly detection left on."""

import itertools

import loop
import series
import torch

# Layers such that anomaly detection costs about the share.
SIZES = {
    "cpu": series.Size(batch=32, length=8, width=256, depth=16),
    "cuda": series.Size(batch=64, length=256, width=2048, depth=24),
}


def main() -> None:
    args = loop.parser().parse_args()
    size = SIZES[args.device]
    torch.autograd.set_detect_anomaly(args.dose > 0)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
