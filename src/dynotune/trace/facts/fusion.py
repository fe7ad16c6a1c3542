"""The most time that fusion could save: each sequence of kernels on a stream, without the longest kernel."""

import re

import numpy as np

from dynotune.trace.facts.kernel_names import CLASSES
from dynotune.trace.facts.kernels import classes_of
from dynotune.trace.timeline import DeviceKind, Ints, Timeline, told_by_name

POINTWISE = ("elementwise", "normalisation", "reduction")
_FUSED_TOO = ("cast", "random")  # can be fused with adjacent kernels; other causes count these classes
_BY_ROWS = ("softmax",)  # along one dimension, as in a layer norm
FUSABLE = (*POINTWISE, *_FUSED_TOO, *_BY_ROWS)
"""Classes that a compiler fuses."""

# Sums over a whole batch (aten): a normalisation that uses such a sum has to wait for the last element. Sums
# over rows, as in layer and group norms, can become one kernel with the work that follows.
_STATISTICS = re.compile(r"collect_statistics|backward_reduce|gammabeta", re.IGNORECASE)


def spared_ns(timeline: Timeline, window: tuple[int, int]) -> int:
    """Return an upper bound of the window's nanoseconds that fusing all pointwise kernels could save.

    A sequence of pointwise kernels on one stream, without a matrix product or other kernel in between, can
    become one kernel, which reads and writes at least as much as the sequence's longest kernel. A kernel that
    sums over the batch ends its sequence. Type conversions and random numbers neither interrupt a sequence
    nor count.
    """
    return _but_the_longest_ns(timeline, window, POINTWISE, passed_over=_FUSED_TOO)


def fusable_ns(timeline: Timeline, window: tuple[int, int]) -> int | None:
    """Return `spared_ns` for all kernels that a compiler fuses.

    These are also type conversions, random numbers and softmax.

    None if kernels were not recorded one by one.
    """
    if "kernels_in_graphs" in timeline.missing:
        return None
    return _but_the_longest_ns(timeline, window, FUSABLE)


def _but_the_longest_ns(
    timeline: Timeline, window: tuple[int, int], in_rows: tuple[str, ...], passed_over: tuple[str, ...] = ()
) -> int:
    """Return the nanoseconds of kernel sequences of these classes, without each longest kernel."""
    rows, took, starts = _rows_of_kernels(timeline, window, in_rows, passed_over)
    return int((np.add.reduceat(took, starts) - np.maximum.reduceat(took, starts)).sum()) if len(rows) else 0


def _rows_of_kernels(
    timeline: Timeline, window: tuple[int, int] | None, in_rows: tuple[str, ...], passed_over: tuple[str, ...]
) -> tuple[Ints, Ints, Ints]:
    """Return kernels in stream order, their ns in the window, and where each sequence begins.

    The nanoseconds are 0 for kernels of other classes.
    """
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
