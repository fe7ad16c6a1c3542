"""What fusing pointwise kernels could spare."""

import re

import numpy as np

from dynotune.trace.facts.kernel_names import CLASSES
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.facts.rank_facts import RankFacts
from dynotune.trace.timeline import DeviceKind, Ints, Timeline, told_by_name

POINTWISE = ("elementwise", "normalisation", "reduction")
_FUSED_TOO = ("cast", "random")  # with what stands around them; other causes count them
_BY_ROWS = ("softmax",)  # over one dimension, as a layer norm
COMPILED = (*POINTWISE, *_FUSED_TOO, *_BY_ROWS)
"""Classes that a compiler fuses."""

# Sums over all of a batch (aten): what is normalised with them has to wait for the last element. Other sums may be over
# rows, as those of layer and group norms, and those can become one kernel with what follows.
_STATISTICS = re.compile(r"collect_statistics|backward_reduce|gammabeta", re.IGNORECASE)


def spared_ns(facts: RankFacts) -> int:
    """Return the most nanoseconds of the window that pointwise kernels would save, were all fused that can be.

    Those that follow one another on a stream, with no product or other kernel between them, can become one, which
    reads and writes at least what the longest of them does. One that sums over the batch is the last of its row.
    Conversions between types and random numbers interrupt no row, and are not counted.
    """
    return _but_the_longest_ns(facts.timeline, facts.window, POINTWISE, passed_over=_FUSED_TOO)


def fusable_ns(timeline: Timeline, window: tuple[int, int]) -> int | None:
    """Return the same for all that a compiler fuses: type conversions, random numbers and softmax are in the rows too.

    None where kernels were not recorded one by one.
    """
    if "kernels_in_graphs" in timeline.missing:
        return None
    return _but_the_longest_ns(timeline, window, COMPILED)


def _but_the_longest_ns(
    timeline: Timeline, window: tuple[int, int], in_rows: tuple[str, ...], passed_over: tuple[str, ...] = ()
) -> int:
    """Return nanoseconds that rows of kernels of these classes take in the window, but for the longest of each row."""
    rows, took, starts = _rows_of_kernels(timeline, window, in_rows, passed_over)
    return int((np.add.reduceat(took, starts) - np.maximum.reduceat(took, starts)).sum()) if len(rows) else 0


def _rows_of_kernels(
    timeline: Timeline, window: tuple[int, int] | None, in_rows: tuple[str, ...], passed_over: tuple[str, ...]
) -> tuple[Ints, Ints, Ints]:
    """Return kernels in stream order; each one's part of the window, 0 for other classes; where each row begins."""
    device, names = timeline.device, timeline.names
    rows = np.flatnonzero(device.kind == DeviceKind.KERNEL)
    classes = classes_of(timeline)[rows]
    kept = ~np.isin(classes, [CLASSES.index(name) for name in passed_over])
    rows, classes = rows[kept], classes[kept]
    order = np.lexsort((device.start_ns[rows], device.stream[rows], device.device[rows]))
    rows, classes = rows[order], classes[order]
    fusable = np.isin(classes, [CLASSES.index(name) for name in in_rows])
    sums = told_by_name(names, device.name[rows], _STATISTICS.search)
    breaks = np.ones(len(rows), dtype=np.bool_)
    breaks[1:] = ~fusable[1:] | ~fusable[:-1] | sums[:-1]
    breaks[1:] |= (np.diff(device.stream[rows]) != 0) | (np.diff(device.device[rows]) != 0)
    begin, end = device.start_ns[rows], device.end_ns[rows]
    if window is not None:
        begin, end = np.clip(begin, *window), np.clip(end, *window)
    return rows, np.where(fusable, end - begin, 0), np.flatnonzero(breaks)
