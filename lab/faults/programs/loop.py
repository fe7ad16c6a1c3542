"""What the programs beside this file share: their arguments, the rate that they print, and what a step
costs."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch

ENDLESS = 1_000_000


def parser() -> argparse.ArgumentParser:
    """`--dose`, `--device`, `--steps`; a program may add to them."""
    found = argparse.ArgumentParser()
    found.add_argument("--dose", type=float, default=30, help="percent of the step; 0 leaves the fault out")
    found.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    found.add_argument("--steps", type=int, default=ENDLESS)
    return found


def steps(num: int, device: str) -> Iterator[int]:
    """Count `num` steps, then print how many a second went through in the last two thirds of them."""
    first = num // 3
    begin = time.perf_counter()
    for step in range(num):
        if step == first:
            synchronise(device)
            begin = time.perf_counter()
        yield step
    synchronise(device)
    print(f"RATE {(num - first) / (time.perf_counter() - begin):.4f}", flush=True)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], object], device: str, budget_s: float = 0.4) -> float:
    """Seconds of one call, the device's work included: the lower quartile of about `budget_s`, after a
    warm-up."""
    synchronise(device)
    begin = time.perf_counter()
    once_s: list[float] = []
    while len(once_s) < 5 or time.perf_counter() - begin < budget_s * 4 / 3:
        start = time.perf_counter()
        call()
        synchronise(device)
        once_s.append(time.perf_counter() - start)
    return statistics.quantiles(once_s[len(once_s) // 4 :], n=4)[0]


def on_top_s(dose: float, work_s: float) -> float:
    """Seconds to add to a step of `work_s`, one after the other, for `dose` percent of the whole."""
    return work_s * dose / (100 - dose)


def period_s(dose: float, work_s: float) -> float:
    """Seconds that a stage running beside a step of `work_s` must take for `dose` percent to be spent on
    waiting."""
    return work_s * 100 / (100 - dose)


def exposed_s(dose: float, work_s: float, device: str, host_s: float = 0.002) -> float:
    """Seconds of host work a step that cost `dose` percent: on CUDA the device works on what was queued
    meanwhile."""
    if device == "cpu":
        return on_top_s(dose, work_s)
    return period_s(dose, work_s) - host_s if dose else 0.0
