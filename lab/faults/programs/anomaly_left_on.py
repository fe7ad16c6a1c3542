"""Trains with autograd's anomaly detection left on."""

import itertools

import loop
import series
import torch

LENGTH = {"cpu": 8, "cuda": 128}
BATCH = {"cpu": 32, "cuda": 64}


def main() -> None:
    parser = loop.parser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=16)
    args = parser.parse_args()
    size = series.Size(BATCH[args.device], LENGTH[args.device], args.width, args.depth)
    torch.autograd.set_detect_anomaly(args.dose > 0)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
