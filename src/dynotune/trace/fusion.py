"""What fusing pointwise kernels could spare."""

from __future__ import annotations

import re

import numpy as np

from dynotune.trace.kernels import CLASSES, classes_of
from dynotune.trace.rank_facts import RankFacts, in_window
from dynotune.trace.timeline import DeviceKind, told_by_name

POINTWISE = ("elementwise", "normalisation", "reduction")
_FUSED_TOO = ("cast", "random")  # with what stands around them, and counted elsewhere

# Sums over all of a batch (aten): what is normalised with them has to wait for the last element. Other sums may be over
# rows, as those of layer and group norms, and those can become one kernel with what follows.
_STATISTICS = re.compile(r"collect_statistics|backward_reduce|gammabeta", re.IGNORECASE)


def spared_ns(facts: RankFacts) -> int:
    """Nanoseconds of the window that pointwise kernels would take less at most, were all fused that can be.

    Those that follow one another on a stream, with no product or other kernel between them, can become one, which
    reads and writes at least what the longest of them does. One that sums over the batch is the last of its row.
    """
    device, names = facts.timeline.device, facts.timeline.names
    rows = np.flatnonzero(device.kind == DeviceKind.KERNEL)
    classes = classes_of(facts.timeline)[rows]
    kept = ~np.isin(classes, [CLASSES.index(name) for name in _FUSED_TOO])
    rows, classes = rows[kept], classes[kept]
    order = np.lexsort((device.start_ns[rows], device.stream[rows], device.device[rows]))
    rows, classes = rows[order], classes[order]
    if not len(rows):
        return 0
    pointwise = np.isin(classes, [CLASSES.index(name) for name in POINTWISE])
    sums = told_by_name(names, device.name[rows], lambda name: bool(_STATISTICS.search(name)))
    breaks = np.ones(len(rows), dtype=np.bool_)
    breaks[1:] = ~pointwise[1:] | ~pointwise[:-1] | sums[:-1]
    breaks[1:] |= (np.diff(device.stream[rows]) != 0) | (np.diff(device.device[rows]) != 0)
    took = np.where(pointwise, in_window(facts, device.start_ns[rows], device.end_ns[rows]), 0)
    starts = np.flatnonzero(breaks)
    return int((np.add.reduceat(took, starts) - np.maximum.reduceat(took, starts)).sum())
