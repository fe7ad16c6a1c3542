"""Find needless work of a busy device, as far as a trace shows needless work."""

import re
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import Copies, KernelClass, Place
from dynotune.text import words
from dynotune.trace.causes.figures import duration, of_step, per_step, percent, time_per_step
from dynotune.trace.causes.lost_time import LostTime, heaviest, in_window, launched_at
from dynotune.trace.facts import intervals
from dynotune.trace.facts.busy_time import work_sets
from dynotune.trace.facts.copies import kind_of
from dynotune.trace.facts.fusion import POINTWISE, spared_ns
from dynotune.trace.facts.kernel_names import (
    CLASSES,
    COMMUNICATION,
    is_fp32_matmul,
    is_misaligned,
    is_of_half,
    is_slow_product,
)
from dynotune.trace.facts.kernels import classes_of, math_attention
from dynotune.trace.facts.rank_facts import RankFacts
from dynotune.trace.timeline import UNKNOWN, DeviceKind, Ints, told_by_name

POINTWISE_SHARE = 0.2
"""Least share of pointwise kernels in the time of all kernels: below this, fusing pointwise kernels changes
little."""
SOFTMAX_SHARE = 0.05
"""Least share of softmax in the time of all kernels for which softmax is over attention scores, not over
classes."""
TF32_CAPABILITY = (8, 0)
TENSOR_CORE_CAPABILITY = (7, 0)

_OF_LOSSES = re.compile(r"log_?softmax|entropy|nll", re.IGNORECASE)
_COPIES = {
    ("HtoD", True): "pin-memory-off",
    ("HtoD", False): "h2d-not-overlapped",
    ("DtoH", True): "d2h-not-overlapped",
    ("DtoH", False): "d2h-not-overlapped",
    ("DtoD", False): "device-copies",
}
_CLASSES = {"layout": "channels-last", "cast": "casts", "attention-math": "sdpa-math"}


def losses(facts: RankFacts) -> list[LostTime]:
    """Return causes in the work of the rank's devices. Unlike causes of idle time, causes in work may
    overlap."""
    if facts.kernels is None:
        return []
    rules = (_copies, _communication, _kernel_classes, _no_tensor_cores, _softmax, _pointwise)
    return [loss for rule in rules for loss in rule(facts)]


def _copies(facts: RankFacts) -> Iterator[LostTime]:
    for row in facts.copies:
        cause = _COPIES.get((row.kind, row.pinned is False))
        if not cause or not row.exposed_s:
            continue
        rows = _copied(facts, row)
        took = in_window(facts, facts.timeline.device.start_ns[rows], facts.timeline.device.end_ns[rows])
        size = ""
        if row.num_bytes is not None and row.bytes_per_s is not None:
            size = (
                f", {row.num_bytes / (facts.num_steps or 1) / 1e6:,.3g} MB at "
                f"{row.bytes_per_s / 1e9:.3g} GB/s"
            )
        memory = {True: " of page-locked memory", False: " of pageable memory", None: ""}[row.pinned]
        evidence = f"{row.kind} copies{memory}: {per_step(facts, row.num)}{size}"
        yield LostTime(cause, round(row.exposed_s * 1e9), launched_at(facts, rows, took), (evidence,))


def _copied(facts: RankFacts, row: Copies) -> Ints:
    device = facts.timeline.device
    rows = np.flatnonzero(device.kind == DeviceKind.COPY)
    return rows[_named(facts, rows, lambda name: kind_of(name) == (row.kind, row.pinned))]


def _communication(facts: RankFacts) -> Iterator[LostTime]:
    if facts.communication is None or not facts.communication.exposed_s:
        return
    timeline, exposed_ns = facts.timeline, round(facts.communication.exposed_s * 1e9)
    rows, took = _exposed_collectives(facts)
    names, of_row = np.unique(timeline.device.name[rows], return_inverse=True)
    totals = np.bincount(of_row, weights=took, minlength=len(names))
    ranked = [
        (total, timeline.names[name]) for total, name in zip(totals.tolist(), names.tolist(), strict=True)
    ]
    ranked.sort(reverse=True)
    reduces = sum(total for total, name in ranked if "allreduce" in name.lower().replace("_", ""))
    in_ddp = any(name.startswith("DistributedDataParallel.") for name in timeline.names)
    cause = (
        "ddp-bucket-cap"
        if in_ddp and 2 * reduces > sum(total for total, _ in ranked)
        else "communication-exposed"
    )
    times = f"{of_step(facts, facts.communication.total_s * 1e9)} in all"
    hidden = f"{of_step(facts, facts.communication.hidden_s * 1e9)} of it under other work"
    evidence = (
        f"collectives: {per_step(facts, facts.communication.num)}, {times}, {hidden}",
        *(
            f"{time_per_step(facts, total)} exposed in {words.short_kernel_name(name)}"
            for total, name in ranked[:3]
            if total
        ),
        "one rank's trace does not show which part of this was a wait for another rank",
    )
    yield LostTime(cause, exposed_ns, launched_at(facts, rows, took), evidence)


def _exposed_collectives(facts: RankFacts) -> tuple[Ints, Ints]:
    """Return the collectives on the rank's busiest device, and each one's nanoseconds without concurrent
    work."""
    device = facts.timeline.device
    assert facts.device is not None
    compute, copy, communication = work_sets(facts.timeline, facts.device, facts.window)
    exposed = intervals.difference(intervals.difference(communication, compute), copy)
    rows = np.flatnonzero((classes_of(facts.timeline) == COMMUNICATION) & (device.device == facts.device))
    return rows, intervals.covered(exposed, device.start_ns[rows], device.end_ns[rows])


def _kernel_classes(facts: RankFacts) -> Iterator[LostTime]:
    for row in _classes(facts):
        if cause := _CLASSES.get(row.name):
            where = _where_math_attention(facts) if row.name == "attention-math" else _where(facts, row.name)
            share = f"{percent(row.share)} of the time of all kernels"
            evidence = (
                f"kernels: {per_step(facts, row.num)}, {share}; most in "
                f"{words.short_kernel_name(row.largest)}"
            )
            yield LostTime(cause, round(row.total_s * 1e9), where, (evidence,))


def _where(facts: RankFacts, name: str) -> Place:
    """Return the place that queued the kernels with most of the time of the given kernel class."""
    device = facts.timeline.device
    rows = np.flatnonzero(classes_of(facts.timeline) == CLASSES.index(name))
    return launched_at(facts, rows, in_window(facts, device.start_ns[rows], device.end_ns[rows]))


def _where_math_attention(facts: RankFacts) -> Place:
    """Return the caller of most unfused attention, found by its operator since kernel names do not show
    attention."""
    host = facts.timeline.host
    rows = math_attention(facts.timeline)
    rows = rows[(host.start_ns[rows] >= facts.window[0]) & (host.start_ns[rows] < facts.window[1])]
    if not len(rows):
        return Place()
    return heaviest(facts, facts.places.of_spans(rows), host.end_ns[rows] - host.start_ns[rows])


def _classes(facts: RankFacts) -> list[KernelClass]:
    return [] if facts.kernels is None else facts.kernels.classes


def _no_tensor_cores(facts: RankFacts) -> Iterator[LostTime]:
    device, names = facts.timeline.device, facts.timeline.names
    properties = facts.timeline.properties.get(UNKNOWN if facts.device is None else facts.device)
    capability = None if properties is None else properties.compute_capability
    if capability is not None and capability < TENSOR_CORE_CAPABILITY:
        return
    classes = classes_of(facts.timeline)
    matmul, convolution = CLASSES.index("matmul"), CLASSES.index("convolution")
    rows = np.flatnonzero(np.isin(classes, (matmul, convolution)))
    rows = rows[_named(facts, rows, is_slow_product)]
    half = _named(facts, rows, lambda name: is_of_half(name) or is_misaligned(name))
    single = ~half & (classes[rows] == matmul) & _named(facts, rows, is_fp32_matmul)
    single &= capability is not None and capability >= TF32_CAPABILITY
    convolves = classes[rows] == convolution
    for cause, chosen in (
        ("gemm-misaligned", half & ~convolves),
        ("gemm-misaligned", half & convolves),
        ("fp32-matmul-no-tf32", single),
        ("amp-absent", ~half & ~single),
    ):
        took = in_window(facts, device.start_ns[rows[chosen]], device.end_ns[rows[chosen]])
        if took.any():
            longest = names[device.name[rows[chosen][np.argmax(took)]]]
            times = f"{per_step(facts, int((took > 0).sum()))}, {duration(took.mean())} each"
            evidence = f"kernels: {times}; the longest is {words.short_kernel_name(longest)}"
            where = launched_at(facts, rows[chosen], took)
            if convolves[chosen].all() and "conv" not in where.operator:
                # A compiled graph is one operator, whatever operators the graph contains.
                where = Place(where.function, "convolution", where.call)
            yield LostTime(cause, int(took.sum()), where, (evidence,))


def _named(facts: RankFacts, rows: Ints, tell: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return for each of the given device spans whether the predicate `tell` accepts the span's name."""
    return told_by_name(facts.timeline.names, facts.timeline.device.name[rows], tell)


def _softmax(facts: RankFacts) -> Iterator[LostTime]:
    device = facts.timeline.device
    rows = np.flatnonzero(classes_of(facts.timeline) == CLASSES.index("softmax"))
    rows = rows[~_named(facts, rows, _OF_LOSSES.search)]
    took = in_window(facts, device.start_ns[rows], device.end_ns[rows])
    total_s = sum(row.total_s for row in _classes(facts))
    fused = any(row.name == "attention-math" for row in _classes(facts))
    if fused or took.sum() < SOFTMAX_SHARE * total_s * 1e9 or not took.any():
        return
    share = percent(took.sum() / 1e9 / total_s)
    evidence = f"softmax kernels: {per_step(facts, len(rows))}, {share} of the time of all kernels"
    yield LostTime("manual-attention", int(took.sum()), launched_at(facts, rows, took), (evidence,))


def _pointwise(facts: RankFacts) -> Iterator[LostTime]:
    rows = [row for row in _classes(facts) if row.name in POINTWISE]
    if sum(row.share for row in rows) < POINTWISE_SHARE:
        return
    lost_ns = spared_ns(facts.timeline, facts.window)
    if lost_ns:
        evidence = tuple(
            f"{row.name}: {percent(row.share)} of the time, {per_step(facts, row.num)}" for row in rows
        )
        yield LostTime("compile-default", lost_ns, Place(), evidence)
