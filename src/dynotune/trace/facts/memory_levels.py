"""The caching allocator's level on each device: bytes allocated and reserved."""

import numpy as np

from dynotune.schema.trace_summary import Memory
from dynotune.trace.timeline import UNKNOWN, Timeline


def levels(timeline: Timeline, window: tuple[int, int]) -> list[Memory]:
    """Return one rank's memory peaks and allocations in the window [start, end) of ns, one row per device.

    The level at the time window's start is the level of the last memory event before the start. Host memory
    is left out, and so are memory events without an allocated or a reserved level.
    """
    marks, (start, end) = timeline.memory, window
    known = (marks.allocated_bytes != UNKNOWN) & (marks.reserved_bytes != UNKNOWN)
    found = []
    for index in np.unique(marks.device[marks.device != UNKNOWN]).tolist():
        rows = np.flatnonzero((marks.device == index) & known)
        first, last = np.searchsorted(marks.time_ns[rows], [start, end])
        held = rows[max(first - 1, 0) : last]
        if not len(held):
            continue
        # Without a known level before the first memory event, nothing shows whether that event is an
        # allocation.
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
