"""Trains within a memory limit, beside a buffer of another stream every few steps: never both fit (CUDA
only).

What one stream has cached cannot serve the other, so that each turn frees the cache and asks the driver
again.
"""

import itertools

import loop
import series
import torch

# In shares of the memory that a step reserves.
BUFFER, LIMIT = 0.6, 1.35


def fill_buffer(stream: torch.cuda.Stream, num_bytes: int) -> None:
    """Work on a side stream that takes its memory from it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.empty(num_bytes, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.current_stream().wait_stream(stream)


def limit_memory(num_bytes: float) -> None:
    torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / torch.cuda.mem_get_info()[1]))


def retry_costs(size: series.Size, stream: torch.cuda.Stream) -> tuple[int, float, float]:
    """Bytes that a step reserves, seconds of a step, and seconds that a buffer costs it within the limit."""
    step = series.bare_step(size, "cuda")
    step_s = loop.seconds_of(step, "cuda", 2.0)
    reserved = torch.cuda.memory_reserved()
    limit_memory(LIMIT * reserved)
    both_s = loop.seconds_of(lambda: (step(), fill_buffer(stream, int(BUFFER * reserved))), "cuda", 2.0)
    return reserved, step_s, both_s - step_s


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SIZES[args.device]
    stream = torch.cuda.Stream()
    reserved, step_s, retry_s = retry_costs(size, stream)
    torch.cuda.empty_cache()
    every = max(1, round(retry_s / loop.on_top_s(args.dose or 30, step_s)))
    limit_memory(LIMIT * reserved if args.dose else float("inf"))
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for step, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        series.train_step(net, optimizer, windows, classes, args.device)
        if step % every == 0:
            fill_buffer(stream, int(BUFFER * reserved))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
