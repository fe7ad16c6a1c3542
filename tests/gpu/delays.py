"""A GPU that lags behind the host, so that what is ordered wrongly is seen to be wrong."""

from __future__ import annotations

import torch

# About a tenth of a second: far longer than the host takes to enqueue what a test does in the meantime.
CYCLES = 200_000_000


def lag(stream=None, cycles=CYCLES):
    """Keeps a stream (the current one by default) busy."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)


def fresh_allocator():
    """Ends all work and gives cached memory back: what is allocated next does not depend on earlier tests."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def num_allocations():
    """cudaMalloc calls so far, segments held, and pinned allocations where this torch counts them."""
    device = torch.cuda.memory_stats()
    host = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
    return device["num_device_alloc"], device["segment.all.allocated"], host.get("num_host_alloc", 0)
