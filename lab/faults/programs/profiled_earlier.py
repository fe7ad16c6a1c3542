"""Trains a deep network of narrow layers; torch.profiler records a few of the first steps, and training goes
on."""

import contextlib
import itertools

import loop
import series
import torch

SIZES = {"cpu": series.Size(16, 4, 64, 20), "cuda": series.Size(16, 4, 64, 200)}


def profiler(dose: float) -> contextlib.AbstractContextManager[object]:
    """Profile three steps near the start, or none at dose 0; print what was most frequent."""
    if not dose:
        return contextlib.nullcontext()
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profile: print(len(profile.key_averages()), "operators", flush=True),
    )


def main() -> None:
    args = loop.parser().parse_args()
    size = SIZES[args.device]
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    with profiler(args.dose) as profile:
        for _, (windows, classes) in zip(range(8), batches, strict=False):
            series.train_step(net, optimizer, windows, classes, args.device)
            if profile is not None:
                profile.step()
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
