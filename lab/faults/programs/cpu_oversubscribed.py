"""Trains with many more threads than cores."""

import itertools
import os

import loop
import series
import torch

# Threads a core.
THREADS = {10: 2, 30: 4, 60: 8}


def main() -> None:
    args = loop.parser().parse_args()
    if args.dose:
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(cores * THREADS[min(THREADS, key=lambda dose: abs(dose - args.dose))])
    size = series.SIZES[args.device]
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
