"""Facts about kernels: number, duration, queue depth and kinds of work."""

import re

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import SHORT_KERNEL_S, KernelClass, Kernels
from dynotune.trace.facts.cuda_calls import plain_name
from dynotune.trace.facts.host_names import named
from dynotune.trace.facts.kernel_names import CLASSES, classify, uses_tensor_cores
from dynotune.trace.facts.nesting import begins_inside
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Ints, Timeline, told_by_name, touching

MATH_ATTENTION = "aten::_scaled_dot_product_attention_math"
"""The operator whose kernels get class attention-math, since the names of these kernels do not show
attention."""

SHORT_NS = round(SHORT_KERNEL_S * 1e9)

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")

# Least share of kernel time with names that show whether tensor cores are used: below one half, the other
# kernels could reverse the answer.
_TOLD_SHARE = 0.5

_PRODUCTS = tuple(
    index
    for index, name in enumerate(CLASSES)
    if name in ("matmul", "convolution") or name.startswith("attention-")
)


def classes_of(timeline: Timeline) -> NDArray[np.int8]:
    """Return the class of each device span by its kernel name, UNKNOWN for copies and memsets; never
    attention-math."""
    device = timeline.device
    classes = np.full(len(device), UNKNOWN, dtype=np.int8)
    rows = np.flatnonzero(device.kind == DeviceKind.KERNEL)
    names = device.name[rows]
    distinct = np.flatnonzero(np.bincount(names, minlength=len(timeline.names)))
    of_name = np.full(len(timeline.names), UNKNOWN, dtype=np.int8)
    of_name[distinct] = classify([timeline.names[index] for index in distinct])
    classes[rows] = of_name[names]
    return classes


def facts(timeline: Timeline, window: tuple[int, int], num_steps: int | None) -> Kernels:
    """Return the facts about one rank's kernels in the time window [start, end) of nanoseconds."""
    device, (start, end) = timeline.device, window
    rows = np.flatnonzero((device.kind == DeviceKind.KERNEL) & touching(device, window))
    duration = np.minimum(device.end_ns[rows], end) - np.maximum(device.start_ns[rows], start)
    num_started = int((device.start_ns[rows] >= start).sum())
    launched = device.launch[rows]
    known = launched != UNKNOWN
    by_name = classes_of(timeline)[rows]
    in_math_attention = known.copy()
    in_math_attention[known] = begins_inside(timeline.host, launched[known], math_attention(timeline))
    classes = np.where(in_math_attention, CLASSES.index("attention-math"), by_name)
    mean_depth, max_depth = _queue_depth(timeline, window)
    return Kernels(
        rank=timeline.rank,
        num=len(rows),
        total_s=int(duration.sum()) / 1e9,
        mean_s=float(duration.mean()) / 1e9 if len(rows) else None,
        median_s=float(np.median(duration)) / 1e9 if len(rows) else None,
        per_s=num_started * 1e9 / (end - start) if end > start else 0.0,
        per_step=num_started / num_steps if num_steps else None,
        num_launches=_num_distinct(launched[known], len(timeline.host)) if known.any() else None,
        in_graphs=int(launches_graph(timeline, launched[known]).sum()) if known.any() else None,
        mean_queue_depth=mean_depth,
        max_queue_depth=max_depth,
        tensor_core_share=_tensor_core_share(timeline, rows, by_name, duration),
        classes=_class_table(timeline, device.name[rows], classes, duration),
        num_short=int((duration < SHORT_NS).sum()),
        short_s=int(duration[duration < SHORT_NS].sum()) / 1e9,
    )


def math_attention(timeline: Timeline) -> Ints:
    return named(timeline, re.compile(MATH_ATTENTION + "$"), HostKind.OPERATOR)


def _num_distinct(rows: Ints, num: int) -> int:
    """Count the distinct rows of a table with `num` rows; faster than np.unique, which hashes or sorts."""
    seen = np.zeros(num, dtype=np.bool_)
    seen[rows] = True
    return int(seen.sum())


def launches_graph(timeline: Timeline, calls: Ints) -> NDArray[np.bool_]:
    """Return for each CUDA call (host span) whether the call launched a CUDA graph."""
    names = timeline.host.name[calls]
    return told_by_name(timeline.names, names, lambda name: plain_name(name) in GRAPH_LAUNCHES)


def _queue_depth(timeline: Timeline, window: tuple[int, int]) -> tuple[float | None, int | None]:
    """Return mean and maximum number of queued, unfinished pieces of device work; None if no launch is known.

    Work counts as queued from the return of its launch, or from the work's own start if the start is earlier
    or the launch is not recorded.
    """
    device, (start, end) = timeline.device, window
    known = device.launch != UNKNOWN
    if not known.any() or end <= start:
        return None, None
    queued = device.start_ns.copy()
    queued[known] = np.minimum(timeline.host.end_ns[device.launch[known]], queued[known])
    begins, ends = np.clip(queued, start, end), np.clip(device.end_ns, start, end)
    counted = ends > begins
    begins, ends = np.sort(begins[counted]), np.sort(ends[counted])
    if not len(begins):
        return 0.0, 0
    mean = int((ends - begins).sum()) / (end - start)
    # The depth is largest right after work was queued; work that ends at the same time no longer counts.
    depth = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="right")
    return mean, int(depth.max())


def _tensor_core_share(
    timeline: Timeline, rows: Ints, classes: NDArray[np.int8], duration: Ints
) -> float | None:
    product = np.isin(classes, _PRODUCTS)
    distinct, of_row = np.unique(timeline.device.name[rows[product]], return_inverse=True)
    used = uses_tensor_cores([timeline.names[index] for index in distinct])[of_row]
    time = duration[product]
    whole, told = int(time.sum()), int(time[used != UNKNOWN].sum())
    if not whole or told < _TOLD_SHARE * whole:
        return None
    return int(time[used == 1].sum()) / told


def _class_table(
    timeline: Timeline, names: NDArray[np.int32], classes: NDArray[np.int64], duration: Ints
) -> list[KernelClass]:
    """Return one table row per kernel class, longest total time first."""
    key = classes.astype(np.int64) * len(timeline.names) + names
    pairs, of_row, num = np.unique(key, return_inverse=True, return_counts=True)
    totals = np.bincount(of_row, weights=duration, minlength=len(pairs)).astype(np.int64)
    whole = int(totals.sum())
    parts: dict[int, list[tuple[int, str, int]]] = {}
    for pair, total, count in zip(pairs.tolist(), totals.tolist(), num.tolist(), strict=True):
        index, name = divmod(pair, len(timeline.names))
        parts.setdefault(index, []).append((total, timeline.names[name], count))
    table = [_class_row(CLASSES[index], of_class, whole) for index, of_class in parts.items()]
    return sorted(table, key=lambda row: (-row.total_s, row.name))


def _class_row(name: str, parts: list[tuple[int, str, int]], whole: int) -> KernelClass:
    total = sum(part[0] for part in parts)
    return KernelClass(
        name=name,
        num=sum(part[2] for part in parts),
        total_s=total / 1e9,
        share=total / whole if whole else 0.0,
        largest=max(parts)[1],
    )
