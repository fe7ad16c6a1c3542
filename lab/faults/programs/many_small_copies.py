"""Trains with a table of small rows that is copied to the device row by row each step (CUDA only)."""

import itertools
import time

import loop
import series
import torch

ROW = 64
TRIED = 500
HOST_S = 0.002


def row_s(rows: list[torch.Tensor]) -> tuple[float, float]:
    """Seconds of copying a row: the host's, and the device's once the copies are queued behind other work."""
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    host_s = 0.0
    for _ in range(2):  # the first warms up
        for _ in range(20):
            square @ square
        begin.record()
        start = time.perf_counter()
        copies = [row.to("cuda", non_blocking=True) for row in rows]
        host_s = (time.perf_counter() - start) / len(copies)
        end.record()
        torch.cuda.synchronize()
    return host_s, begin.elapsed_time(end) / 1000 / len(rows)


def main() -> None:
    args = loop.parser().parse_args()
    size = series.SHORT
    work_s = series.step_s(size, args.device)
    host_s, device_s = row_s(list(torch.randn(TRIED, ROW).pin_memory()))
    dose = args.dose or 30
    num = min((loop.period_s(dose, work_s) - HOST_S) / host_s, loop.on_top_s(dose, work_s) / device_s)
    table = torch.randn(max(1, round(num)), ROW).pin_memory()
    rows = list(table)
    net = series.Net(size).to(args.device)
    optimizer = series.sgd(net, args.device)
    batches = itertools.cycle(series.on_device(size, args.device))
    for _, (windows, classes) in zip(loop.steps(args.steps, args.device), batches, strict=False):
        if args.dose:
            on_device = torch.stack([row.to("cuda", non_blocking=True) for row in rows])
        else:
            on_device = table.to("cuda", non_blocking=True)
        series.train_step(net, optimizer, windows + on_device.mean(), classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
