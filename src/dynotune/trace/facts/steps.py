"""Find the steps of a recorded program, and the time window that the steps span. Defined in
docs/reference/trace.md."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import StepSource
from dynotune.trace.facts.cycles import MIN_CYCLES, Tokens, cuts, smallest_period
from dynotune.trace.facts.host_names import LOADER, MODULE, OPTIMIZER, STEP, named
from dynotune.trace.facts.nesting import outermost
from dynotune.trace.timeline import UNKNOWN, HostKind, Ints, Timeline

READS_BACK = re.compile(r"aten::(item|_local_scalar_dense|is_nonzero)$|Memcpy DtoH")
MIN_WHOLE = 0.9
"""Work at an edge of the recording is a whole step if it has at least this fraction of a usual step's
work."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Start and end of each step on the host, int64, ascending; both are empty if `source` is None."""

    start_ns: Ints
    end_ns: Ints
    source: StepSource | None

    def __len__(self) -> int:
        return len(self.start_ns)


def find(timeline: Timeline) -> Steps:
    """Find the steps: the steps that the profiler marked, else the cycles that repeat, else no steps."""
    marked = _marked(timeline)
    if len(marked):
        return Steps(timeline.host.start_ns[marked], timeline.host.end_ns[marked], "profiler")
    edges = _from_markers(timeline)
    if edges is None:
        edges = _from_work(timeline)
    if edges is None or len(edges) <= MIN_CYCLES:
        return Steps(np.empty(0, np.int64), np.empty(0, np.int64), None)
    return Steps(edges[:-1], edges[1:], "repetition")


def window(timeline: Timeline, steps: Steps) -> tuple[int, int]:
    """Return start and end (ns) of the time window that all figures describe; equal if the trace contains no
    work."""
    host, device = timeline.host, timeline.device
    if len(steps):
        start_ns, end_ns = int(steps.start_ns.min()), int(steps.end_ns.max())
        # Work without a recorded launch counts as queued when it started.
        queued_ns = np.where(device.launch != UNKNOWN, host.start_ns[device.launch], device.start_ns)
        inside = (queued_ns >= start_ns) & (queued_ns < end_ns)
        return start_ns, max(end_ns, int(device.end_ns[inside].max(initial=end_ns)))
    work = (host.kind == HostKind.OPERATOR) | (host.kind == HostKind.CALL)
    starts = np.concatenate((host.start_ns[work], device.start_ns))
    ends = np.concatenate((host.end_ns[work], device.end_ns))
    return (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)


def _marked(timeline: Timeline) -> Ints:
    """Return the profiler's step annotations, without repeats of a step's annotation on further threads."""
    rows = named(timeline, STEP, HostKind.ANNOTATION, HostKind.OPERATOR)
    if not len(rows):
        return rows
    threads, first, num = np.unique(timeline.host.thread[rows], return_index=True, return_counts=True)
    most = threads[np.lexsort((first, -num))[0]]
    return outermost(timeline.host, rows[timeline.host.thread[rows] == most])


def _from_markers(timeline: Timeline) -> Ints | None:
    """Find the edges of steps by actions that a training loop does once per step: optimizer step, batch,
    model call.

    Empty if there are such actions but they do not repeat three times: then no shorter cycle is a step.
    """
    host = timeline.host
    kinds = (HostKind.ANNOTATION, HostKind.OPERATOR)
    optimizer = named(timeline, OPTIMIZER, *kinds)
    loader = named(timeline, LOADER, *kinds)
    modules = outermost(host, named(timeline, MODULE, HostKind.PYTHON))
    begins = loader if len(loader) else modules
    marks = next((rows for rows in (optimizer, loader, modules) if len(rows) >= MIN_CYCLES), None)
    if marks is None:
        return None if not len(optimizer) + len(loader) + len(modules) else np.empty(0, dtype=np.int64)
    period = smallest_period(host.name[marks].astype(np.int64))
    if period is None:
        return np.empty(0, dtype=np.int64)
    if marks is optimizer:
        edges = _behind(host.start_ns[marks], host.end_ns[marks], host.start_ns[begins], period)
    else:
        edges = host.start_ns[marks][::period]
    return _whole(timeline, edges, host.start_ns[begins])


def _behind(start_ns: Ints, end_ns: Ints, begins_ns: Ints, period: int) -> Ints:
    """Return an edge after every `period`-th optimizer step: the next cycle's begin, else the optimizer
    step's end."""
    pauses = start_ns[1:] - end_ns[:-1]
    # With several optimizers, the longest pause follows the last optimizer of a cycle.
    last = np.arange(
        int(np.argmax([np.median(pauses[phase::period]) for phase in range(period)])), len(end_ns), period
    )
    following = np.searchsorted(begins_ns, end_ns[last])
    begin = np.append(begins_ns, np.iinfo(np.int64).max)[following]
    until = np.append(start_ns, np.iinfo(np.int64).max)[last + 1]
    return np.where(begin < until, begin, end_ns[last])


def _whole(timeline: Timeline, edges: Ints, begins_ns: Ints) -> Ints:
    """Return the edges without empty cycles, plus an edge of the recording if a whole step lies between."""
    host = timeline.host
    work = np.flatnonzero((host.kind == HostKind.OPERATOR) | (host.kind == HostKind.CALL))
    before = np.searchsorted(host.start_ns[work], edges)
    num = np.diff(before)
    if not (num > 0).any():
        return edges[:0]
    edges = np.append(edges[:-1][num > 0], edges[-1])
    usual = MIN_WHOLE * np.median(num[num > 0])
    if before[0] >= usual:
        edges = np.append(np.append(begins_ns[:1], host.start_ns[work[0]]).min(), edges)
    if len(work) - before[-1] >= usual:
        edges = np.append(edges, max(int(host.end_ns[work].max()), int(edges[-1])))
    return edges


def _from_work(timeline: Timeline) -> Ints | None:
    """Find the edges of the cycle in which operators repeat; without one, of the cycle in which device work
    repeats."""
    for sequence in (_operators, _device_work):
        tokens, start_ns, last_end_ns = sequence(timeline)
        at = cuts(tokens)
        if at is not None:
            return np.append(start_ns, max(last_end_ns, int(start_ns[-1]) + 1))[at]
    return None


def _operators(timeline: Timeline) -> tuple[Tokens, Ints, int]:
    """Return outermost operators, calls that queue work outside of operators, and annotations, of all
    threads."""
    host = timeline.host
    work = host.kind == HostKind.OPERATOR
    if not work.any():
        return Tokens.none(), host.start_ns[:0], 0
    work[timeline.device.launch[timeline.device.launch != UNKNOWN]] = True
    rows = outermost(host, np.flatnonzero(work))
    last_end_ns = int(host.end_ns[rows].max())
    rows = np.sort(np.append(rows, np.flatnonzero(host.kind == HostKind.ANNOTATION)))
    # Users number their annotations ("batch 17"); the numbers do not repeat.
    texts = [re.sub(r"\d+", "#", name) for name in timeline.names]
    alias = {text: index for index, text in enumerate(texts)}
    same = np.array([alias[text] for text in texts], dtype=np.int64)
    is_work = host.kind[rows] != HostKind.ANNOTATION
    ids, token = np.unique(
        np.where(is_work, host.name[rows], same[host.name[rows]]) * 2 + is_work, return_inverse=True
    )
    is_whole = np.array(["GraphLaunch" in timeline.names[index] for index in (ids // 2).tolist()], dtype=bool)
    is_work = (ids % 2 == 1) & ~_reads_back(timeline, ids // 2)
    return Tokens(token.astype(np.int64), is_work, is_whole), host.start_ns[rows], last_end_ns


def _device_work(timeline: Timeline) -> tuple[Tokens, Ints, int]:
    """Return the device work in the order of the calls that queued it; if these are unknown, in order of
    time."""
    host, device = timeline.host, timeline.device
    launched = np.flatnonzero(device.launch != UNKNOWN)
    if not len(launched):
        ids, token = np.unique(device.name, return_inverse=True)
        tokens = Tokens(
            token.astype(np.int64),
            ~_reads_back(timeline, ids.astype(np.int64)),
            np.zeros(len(ids), dtype=bool),
        )
        return tokens, device.start_ns, int(device.end_ns.max(initial=0))
    launched = launched[np.lexsort((device.name[launched], device.launch[launched]))]
    calls, first, num = np.unique(device.launch[launched], return_index=True, return_counts=True)
    # A graph's kernels may start in any order: its token consists of the first of their names and their
    # number.
    base = int(num.max()) + 1
    ids, token = np.unique(device.name[launched[first]].astype(np.int64) * base + num, return_inverse=True)
    tokens = Tokens(token.astype(np.int64), ~_reads_back(timeline, ids // base), is_whole=ids % base > 1)
    return tokens, host.start_ns[calls], int(host.end_ns[calls].max())


def _reads_back(timeline: Timeline, names: Ints) -> NDArray[np.bool_]:
    """Return which names are reads of results by the host, for instance for a log line every tenth step."""
    return np.array(
        [READS_BACK.match(timeline.names[name]) is not None for name in names.tolist()], dtype=bool
    )
