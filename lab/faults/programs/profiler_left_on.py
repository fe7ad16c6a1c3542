"""Trains a deep network of modest layers with torch.profiler around the whole loop."""

import contextlib
import itertools

import loop
import series
import torch

LENGTH = {"cpu": 4, "cuda": 128}
BATCH = {"cpu": 16, "cuda": 64}


def main() -> None:
    parser = loop.parser()
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--depth", type=int, default=60)
    args = parser.parse_args()
    size = series.Size(BATCH[args.device], LENGTH[args.device], args.width, args.depth)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    profile = (
        torch.profiler.profile(record_shapes=True, with_stack=True) if args.dose else contextlib.nullcontext()
    )
    with profile:
        for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
            series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
