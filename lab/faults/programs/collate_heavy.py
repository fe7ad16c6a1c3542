"""Trains on windows that the collate function turns into lists of numbers, scales, and makes tensors of
again."""

import loop
import series
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

WORKERS = {"cpu": 1, "cuda": 8}


def collate_by_lists(items: list[tuple[Tensor, int]], rounds: int) -> tuple[Tensor, Tensor]:
    """Clip every value by hand, `rounds` times over."""
    rows = [[float(value) for value in window.flatten().tolist()] for window, _ in items]
    for _ in range(rounds):
        rows = [[min(max(value, -3.0), 3.0) for value in row] for row in rows]
    windows = torch.tensor(rows).view(len(items), -1, series.CHANNELS)
    return windows, torch.tensor([label for _, label in items])


class Collate:
    """What the loader is given; `rounds` 0 is the plain stack."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def __call__(self, items: list[tuple[Tensor, int]]) -> list[Tensor] | tuple[Tensor, Tensor]:
        return collate_by_lists(items, self.rounds) if self.rounds else default_collate(items)


def rounds_for(size: series.Size, seconds: float) -> int:
    """Rounds with which collating a batch takes `seconds`."""
    items = [(torch.randn(size.length, series.CHANNELS), 0) for _ in range(size.batch)]
    one, three = (loop.seconds_of(lambda n=n: collate_by_lists(items, n), "cpu", 0.1) for n in (1, 3))
    return max(1, 1 + round((seconds - one) / ((three - one) / 2)))


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    workers = WORKERS[args.device]
    rounds = rounds_for(size, loop.period_s(args.dose, work_s) * workers) if args.dose else 0
    loader = DataLoader(
        series.Series(size),
        size.batch,
        num_workers=workers,
        pin_memory=args.device == "cuda",
        persistent_workers=True,
        collate_fn=Collate(rounds),
    )
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
