"""Trains in short epochs; the workers, which open their data when they start, are started anew for each."""

import time

import loop
import series
import torch
from torch.utils.data import DataLoader

WORKERS = 2
OPENING_S = 0.25
# What starting and ending the worker processes and filling the queue takes beyond the opening.
STARTING_S = {"cpu": 0.08, "cuda": 0.15}


def open_data(worker: int) -> None:
    """Stands for a worker that opens an index on the network."""
    time.sleep(OPENING_S)


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    pause_s = OPENING_S + STARTING_S[args.device]
    share = (args.dose or 30) / 100
    epoch = max(1, round(pause_s / work_s * (1 - share) / share))
    loader = DataLoader(
        series.Series(size, num=epoch * size.batch),
        size.batch,
        num_workers=WORKERS,
        pin_memory=args.device == "cuda",
        persistent_workers=not args.dose,
        worker_init_fn=open_data,
    )
    batches = (batch for _ in range(loop.ENDLESS) for batch in loader)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
