"""Waits for a heavy collate function, and updates many small parameters one by one: half the dose each."""

import loop
import series
import torch
from collate_heavy import WORKERS, Collate, rounds_for
from optimizer_forloop import ADAM, SCALES, ScaledNet, adam, update_s
from torch.utils.data import DataLoader


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    work_s = series.step_s(size, args.device)
    half_s = loop.on_top_s(args.dose, work_s) / 2
    workers = WORKERS[args.device]
    rounds = rounds_for(size, (work_s + 2 * half_s) * workers) if args.dose else 0
    loader = DataLoader(
        series.Series(size),
        size.batch,
        num_workers=workers,
        pin_memory=args.device == "cuda",
        persistent_workers=True,
        collate_fn=Collate(rounds),
    )
    count = SCALES[args.device]
    net = ScaledNet(size, count).to(args.device)
    optimizer = adam(net, min(count, round(half_s / (update_s(args.device) * ADAM))))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), loader, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
