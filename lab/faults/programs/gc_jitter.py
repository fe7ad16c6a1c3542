"""Trains beside a large heap of Python objects, and collects garbage every few steps."""

import gc
import itertools

import loop
import series
import torch

OBJECTS = 1_000_000


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    heap = [[index] for index in range(OBJECTS)]
    collect_s = loop.seconds_of(gc.collect, "cpu", 0.5)
    every = max(1, round(collect_s / loop.exposed_s(args.dose or 30, work_s, args.device)))
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for step, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)
        if args.dose and step % every == 0:
            gc.collect()
    assert len(heap) == OBJECTS


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
