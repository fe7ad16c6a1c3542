"""Trains on noisy windows, the noise drawn on the CPU each step and moved to the device (CUDA only)."""

import itertools

import loop
import series
import torch


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    shape = (size.batch, size.length, series.CHANNELS)
    draw_s = loop.seconds_of(lambda: torch.randn(4, *shape).to("cuda"), "cuda") / 4
    draws = max(1, round(loop.exposed_s(args.dose or 30, series.step_s(size, args.device), "cuda") / draw_s))
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        noise = (
            torch.randn(draws, *shape).to("cuda") if args.dose else torch.randn(draws, *shape, device="cuda")
        )
        series.train_step(net, optimizer, windows + noise.mean(0), classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
