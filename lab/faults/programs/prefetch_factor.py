"""Trains on batches of which one in many takes long to read: four workers suffice in the mean, their queue
does not."""

import time

import loop
import series
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

WORKERS = 4
PREFETCH = 2
# Enough that the other workers fill the time of the longest read.
ENOUGH = 20
SLOW_EVERY = 25
# Steps that the device still has before it while the program waits.
QUEUED = {"cpu": 0, "cuda": 6}


class UnevenSeries(Dataset):
    """Item `i` is a whole batch; each `SLOW_EVERY`-th takes `slow_s` to read."""

    def __init__(self, size: series.Size, slow_s: float) -> None:
        self.windows = series.Series(size)
        self.batch = size.batch
        self.slow_s = slow_s

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> list[Tensor]:
        if index % SLOW_EVERY == SLOW_EVERY - 1:
            time.sleep(self.slow_s)
        return default_collate([self.windows[index * self.batch + i] for i in range(self.batch)])


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    covered = PREFETCH * WORKERS - 1 + QUEUED[args.device]
    slow_s = loop.on_top_s(args.dose or 30, work_s * SLOW_EVERY) + covered * work_s
    loader = DataLoader(
        UnevenSeries(size, slow_s),
        batch_size=None,
        num_workers=WORKERS,
        prefetch_factor=PREFETCH if args.dose else ENOUGH,
        pin_memory=args.device == "cuda",
        persistent_workers=True,
    )
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
