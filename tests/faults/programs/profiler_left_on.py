"""Trains a deep network of modest layers with torch.profiler around the whole loop."""

import contextlib
import itertools

import loop
import series
import torch

SIZES = {
    "cpu": series.Size(batch=16, length=4, width=96, depth=60),
    "cuda": series.Size(batch=64, length=128, width=1024, depth=60),
}


def main() -> None:
    args = loop.parser().parse_args()
    size = SIZES[args.device]
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    full = args.dose > 20
    profile = torch.profiler.profile(record_shapes=full, with_stack=full, profile_memory=full)
    with profile if args.dose else contextlib.nullcontext():
        for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
            series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
