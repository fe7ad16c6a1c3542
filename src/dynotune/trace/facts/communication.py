"""Facts about one rank's collectives: number, time, and time that other work of the device hides."""

import numpy as np

from dynotune.schema.trace_summary import Communication
from dynotune.trace.facts import intervals
from dynotune.trace.facts.kernel_names import COMMUNICATION
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.timeline import Timeline, touching


def facts(timeline: Timeline, window: tuple[int, int]) -> Communication | None:
    """Return facts about one rank's collectives in the window [start, end) of ns; None without collectives.

    Times are of the union of the collectives on each device, summed over devices.
    """
    device = timeline.device
    collective = classes_of(timeline) == COMMUNICATION
    inside = collective & touching(device, window)
    if not inside.any():
        return None
    total = hidden = 0
    for index in np.unique(device.device[inside]):
        here = device.device == index
        own = intervals.union_of(timeline.device, here & collective, window)
        total += intervals.length(own)
        others = intervals.union_of(timeline.device, here & ~collective, window)
        hidden += int(intervals.covered(others, own[:, 0], own[:, 1]).sum())
    return Communication(
        rank=timeline.rank,
        num=int(inside.sum()),
        total_s=total / 1e9,
        exposed_s=(total - hidden) / 1e9,
        hidden_s=hidden / 1e9,
    )
