"""Trains on windows that take time to read, and reads them in the training process."""

import loop
import series
import torch
from loader_bound import StoredSeries
from torch.utils.data import DataLoader


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    batch_s = loop.exposed_s(args.dose or 30, work_s, args.device)
    dataset = StoredSeries(size, batch_s / size.batch)
    workers = 0 if args.dose else 4
    loader = DataLoader(
        dataset,
        size.batch,
        num_workers=workers,
        pin_memory=args.device == "cuda",
        persistent_workers=workers > 0,
    )
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
