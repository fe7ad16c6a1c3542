"""Trains, and asks of each of many running scores, with `if`, whether it went over a limit (CUDA only)."""

import itertools

import loop
import series
import torch

LIMIT = 3.0


def count_over(values: torch.Tensor) -> int:
    over = 0
    for value in values:
        if value > LIMIT:
            over += 1
    return over


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SHORT
    work_s = series.step_s(size, args.device)
    tried = torch.randn(200, device="cuda")
    branch_s = loop.seconds_of(lambda: count_over(tried), "cuda") / len(tried)
    scores = torch.randn(max(1, round(loop.on_top_s(args.dose or 30, work_s) / branch_s)), device="cuda")
    over: int | torch.Tensor = 0
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        loss = series.train_step(net, optimizer, windows, classes, args.device)
        shifted = scores + loss
        over += count_over(shifted) if args.dose else (shifted > LIMIT).sum()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
