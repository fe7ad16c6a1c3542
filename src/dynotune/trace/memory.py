"""The caching allocator's level on each device inside the window."""

from __future__ import annotations

import numpy as np

from dynotune.schema.trace_summary import Memory
from dynotune.trace.timeline import UNKNOWN, Timeline


def facts(timeline: Timeline, window: tuple[int, int]) -> list[Memory]:
    """Peaks and number of allocations of one rank inside the window [start, end) of nanoseconds, a row a device.

    The level at the window's start is that of the last mark before it. Host memory is left out, and so is a device
    whose levels the trace does not give.
    """
    marks, (start, end) = timeline.memory, window
    found = []
    for index in np.unique(marks.device[marks.device != UNKNOWN]).tolist():
        rows = np.flatnonzero((marks.device == index) & (marks.allocated_bytes != UNKNOWN))
        first, last = np.searchsorted(marks.time_ns[rows], [start, end])
        # The level before the first mark is not known.
        held = rows[max(first - 1, 0) : last]
        if not len(held) or marks.time_ns[held[0]] >= end:
            continue
        rises = np.diff(marks.allocated_bytes[rows]) > 0
        found.append(
            Memory(
                rank=timeline.rank,
                device=index,
                peak_allocated_bytes=int(marks.allocated_bytes[held].max()),
                peak_reserved_bytes=int(marks.reserved_bytes[held].max()),
                num_allocations=int(rises[max(first - 1, 0) : max(last - 1, 0)].sum()),
            )
        )
    return found
