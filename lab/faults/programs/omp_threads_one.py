"""Trains in large operators on as many threads as it is given; OMP_NUM_THREADS=1 comes from the
environment."""

import itertools

import loop
import series
import torch


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
