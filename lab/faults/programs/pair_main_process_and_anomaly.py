"""Reads its windows in the training process, with autograd's anomaly detection left on."""

import loop
import series
import torch
from loader_bound import StoredSeries
from torch.utils.data import DataLoader


def main() -> None:
    args = loop.parser().parse_args()
    size = series.Size(batch=32, length=8, width=512, depth=16)
    batch_s = loop.exposed_s(args.dose or 30, series.step_s(size, args.device), args.device) / 2
    torch.autograd.set_detect_anomaly(args.dose > 0)
    workers = 0 if args.dose else 4
    loader = DataLoader(
        StoredSeries(size, batch_s / size.batch),
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
