"""Trains, with some scratch memory, and gives the allocator's cache back to the driver each step (CUDA
only)."""

import itertools

import loop
import series
import torch

BLOCK_BYTES = 64 << 20


def scratch(num: int) -> list[torch.Tensor]:
    return [torch.empty(BLOCK_BYTES, dtype=torch.uint8, device="cuda") for _ in range(num)]


def blocks_for(size: series.Size, dose: float) -> int:
    """Blocks of scratch with which emptying the cache costs `dose` percent; none where the step's own
    suffice."""
    step = series.bare_step(size, "cuda")
    work_s = loop.seconds_of(step, "cuda", 2.0)
    own_s = loop.seconds_of(lambda: (step(), torch.cuda.empty_cache()), "cuda", 2.0) - work_s
    block_s = loop.seconds_of(lambda: (len(scratch(10)), torch.cuda.empty_cache()), "cuda") / 10
    return max(0, round((loop.on_top_s(dose, work_s) - own_s) / block_s))


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    num = blocks_for(size, args.dose or 30)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        blocks = scratch(num)
        series.train_step(net, optimizer, windows, classes, args.device)
        del blocks
        if args.dose:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
