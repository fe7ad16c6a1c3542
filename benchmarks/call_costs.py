"""Microseconds of small calls before and after a session of torch's profiler and other things, on an NVIDIA
GPU.

    python benchmarks/call_costs.py MODE [--out FILE]

A step shows what a profiler left in the process only where it waits for the host, and is noisy; a call shows
it at once. `python`, a loop without torch, shows the pace of the host itself: compare rows in which it is the
same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dynotune.agent.core import cupti
from lab import result_file
from lab.provenance import RESULTS

MODES = ("detached", "attached", "cpu", "memory-history", "compile")
NUM_TIMED, NUM_SESSIONS = 7, 3
ACTIVITIES = torch.profiler.ProfilerActivity


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--out", type=Path, default=RESULTS / "call_costs_cuda.json")
    given = parser.parse_args()
    calls, rows = calls_of(), []

    def row(after: str) -> None:
        rows.append(
            {"after": after, "us": {name: round(us(call, num), 3) for name, (call, num) in calls.items()}}
        )
        print(given.mode, after, rows[-1]["us"], flush=True)

    for call, num in calls.values():
        call(num // 4)
    row("fresh")
    row("fresh again")
    acted(given.mode, calls, row)
    with result_file.opened(given.out) as result:
        result.setdefault("modes", {})[given.mode] = rows


def calls_of() -> dict[str, tuple[Callable[[int], None], int]]:
    """Return, by name, a function that makes so many calls, and how many to time at once."""
    device, host = torch.zeros(16, device="cuda"), torch.zeros(16)
    weight = torch.zeros(16, 16, device="cuda", requires_grad=True)
    event, pinned = torch.cuda.Event(), torch.zeros(16).pin_memory()

    def repeated(call: Callable[[], object]) -> Callable[[int], None]:
        def run(num: int) -> None:
            for _ in range(num):
                call()

        return run

    def python(num: int) -> None:
        total = 0
        for number in range(num):
            total += number

    return {
        "python": (python, 100_000),
        "cpuop": (repeated(lambda: host.add_(1)), 5000),
        "launch": (repeated(lambda: device.add_(1)), 4000),
        "event": (repeated(event.record), 4000),
        "copy": (repeated(lambda: device.copy_(pinned, non_blocking=True)), 2000),
        "matmul": (repeated(lambda: torch.mm(weight.detach(), weight.detach())), 2000),
        "backward": (repeated(lambda: (weight * 2).sum().backward()), 300),
    }


def us(call: Callable[[int], None], num: int) -> float:
    """Return microseconds of the host for one call: the median of some stretches."""
    found = []
    for _ in range(NUM_TIMED):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        call(num)
        found.append(1e6 * (time.perf_counter() - begin_s) / num)
    return statistics.median(found)


def acted(mode: str, calls: dict[str, tuple[Callable[[int], None], int]], row: Callable[[str], None]) -> None:
    """Do to the process what the mode names, and time calls after each part of it."""

    def work() -> None:
        calls["launch"][0](50)
        calls["backward"][0](20)
        torch.cuda.synchronize()

    both = [ACTIVITIES.CPU, ACTIVITIES.CUDA]
    if mode == "detached":
        for number in range(NUM_SESSIONS):
            session = torch.profiler.profile(activities=both)
            session.start()
            work()
            with cupti.Teardown(torch) as teardown:
                session.stop()
            row(f"session {number + 1}, detached {teardown.stays}".rstrip())
    elif mode in ("attached", "cpu"):
        with torch.profiler.profile(activities=both if mode == "attached" else [ACTIVITIES.CPU]):
            work()
        row("a session")
    elif mode == "memory-history":
        torch.cuda.memory._record_memory_history(max_entries=100_000)
        row("recording the allocator")
        torch.cuda.memory._record_memory_history(enabled=None)
        row("recorded")
    else:
        for name in ("default", "reduce-overhead"):
            compiled = torch.compile(lambda values: (values * 2 + 1).relu(), mode=name)
            for _ in range(5):
                compiled(torch.zeros(16, device="cuda"))
            row(f"compiled with {name}")


if __name__ == "__main__":
    main()
