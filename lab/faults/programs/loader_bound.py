"""Trains on windows read from slow storage: two workers wait for it, and the program waits for them."""

import time

import loop
import series
import torch
from torch import Tensor
from torch.utils.data import DataLoader

WORKERS = 2
# What a sleep lasts beyond what was asked.
OVERSLEEP_S = 0.0001


class StoredSeries(series.Series):
    """Each window takes `latency_s` to arrive."""

    def __init__(self, size: series.Size, latency_s: float) -> None:
        super().__init__(size)
        self.latency_s = latency_s

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        begin = time.perf_counter()
        item = super().__getitem__(index)
        time.sleep(max(0.0, self.latency_s - OVERSLEEP_S - (time.perf_counter() - begin)))
        return item


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    batch_s = loop.period_s(args.dose, work_s) if args.dose else work_s / 2
    dataset = StoredSeries(size, batch_s * WORKERS / size.batch)
    loader = DataLoader(
        dataset, size.batch, num_workers=WORKERS, pin_memory=args.device == "cuda", persistent_workers=True
    )
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
