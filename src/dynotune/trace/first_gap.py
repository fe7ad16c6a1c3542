"""The gap with which a recording begins: the recorder had waited for the device, as the program may not do."""

from __future__ import annotations

import numpy as np

from dynotune.schema.trace_summary import Idle
from dynotune.trace.idle import Gaps
from dynotune.trace.steps import Steps
from dynotune.trace.timeline import UNKNOWN, Timeline


def first_gap(timeline: Timeline, gaps: Gaps, steps: Steps, window: tuple[int, int]) -> tuple[Idle, Idle] | None:
    """The window's first gap as it is, and as the gaps before the first work of the later steps are on average.

    None where the window does not begin with a gap, or has too few steps to tell.
    """
    if not len(gaps) or gaps.start_ns[0] != window[0] or len(steps) < 3:
        return None
    launches = timeline.device.launch[timeline.device.launch != UNKNOWN]
    queued_ns = np.sort(timeline.host.start_ns[launches])
    ends_with = np.where(gaps.call == UNKNOWN, UNKNOWN, timeline.host.start_ns[gaps.call])
    later: list[int] = []
    for start, end in zip(steps.start_ns[1:].tolist(), steps.end_ns[1:].tolist(), strict=True):
        at = int(np.searchsorted(queued_ns, start))
        if at < len(queued_ns) and queued_ns[at] < end:
            # Without such a gap the device was busy then.
            later += np.flatnonzero(ends_with == queued_ns[at])[:1].tolist()
    num = len(steps) - 1
    first = {f"{cause}_s": int(part[0]) / 1e9 for cause, part in gaps.split_ns.items()}
    usual = {f"{cause}_s": int(part[later].sum()) / 1e9 / num for cause, part in gaps.split_ns.items()}
    return Idle(**first), Idle(**usual)
