"""The caching allocator's level on each device inside the window."""

import numpy as np

from dynotune.schema.trace_summary import Memory
from dynotune.trace.timeline import UNKNOWN, Timeline


def facts(timeline: Timeline, window: tuple[int, int]) -> list[Memory]:
    """Return peaks and number of allocations of one rank inside the window [start, end) of ns, a row per device.

    The level at the window's start is that of the last mark before it. Host memory is left out, and so are marks that
    lack one of the two levels.
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
        # Whether the first mark is an allocation is not known, because the level before it is not.
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
