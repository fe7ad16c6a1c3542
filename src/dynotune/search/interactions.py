"""Which knobs change what another one is worth: they are raced jointly, not one by one alone."""

from __future__ import annotations

GROUPS: dict[str, tuple[str, ...]] = {
    # Workers, threads and the thread that pins share the cores; what is ahead is workers × prefetch_factor; copies
    # overlap only from pinned memory.
    "input": (
        "loader.num_workers",
        "loader.prefetch_factor",
        "loader.persistent_workers",
        "loader.pin_memory",
        "loader.in_order",
        "loader.multiprocessing_context",
        "host.num_threads",
        "env.OMP_NUM_THREADS",
        "transfer.non_blocking",
    ),
    # Which kernel is chosen depends on type and layout, and a compiler that fuses takes casts and copies away.
    "kernels": (
        "precision.autocast",
        "layout.channels_last",
        "compile.mode",
        "matmul.fp32_precision",
        "cudnn.benchmark",
        "cudnn.deterministic",
        "determinism.algorithms",
        "optimizer.fused",
    ),
}
ALLOCATOR = "allocator"
"""All keys of the allocator: they share one pool."""


def group_of(knob: str) -> str:
    """Name of the knob's group, "" where it interacts with none."""
    if knob.startswith("alloc."):
        return ALLOCATOR
    return next((name for name, members in GROUPS.items() if knob in members), "")
