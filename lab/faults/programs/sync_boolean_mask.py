"""Trains, and takes the mean score of each of many groups by boolean indexing, which waits each time (CUDA
only)."""

import itertools

import loop
import series
import torch
from torch import Tensor


def means_by_index(values: Tensor, groups: Tensor) -> Tensor:
    return torch.stack([values[group].mean() for group in groups.unbind()])


def means_by_product(values: Tensor, groups: Tensor) -> Tensor:
    return (groups * values).sum(1) / groups.sum(1)


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SHORT
    work_s = series.step_s(size, args.device)
    values = torch.randn(size.batch * series.CLASSES, device="cuda")
    tried = torch.rand(50, len(values), device="cuda") < 0.3
    group_s = loop.seconds_of(lambda: means_by_index(values, tried), "cuda") / len(tried)
    num = max(1, round(loop.on_top_s(args.dose or 30, work_s) / group_s))
    groups = torch.rand(num, len(values), device="cuda") < 0.3
    means = torch.zeros(num, device="cuda")
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        loss = series.train_step(net, optimizer, windows, classes, args.device)
        shifted = values + loss
        means += means_by_index(shifted, groups) if args.dose else means_by_product(shifted, groups)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
