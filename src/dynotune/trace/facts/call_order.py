"""Find tensors made on the host only to be copied, and results that are read too early, by operators'
order."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.facts import cuda_calls
from dynotune.trace.facts.copies import kind_of, uploads
from dynotune.trace.facts.host_names import OPTIMIZER, named
from dynotune.trace.facts.idle import loader_spans
from dynotune.trace.facts.nesting import begins_inside, outermost
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Ints, Timeline, told_by_name

MOST_BETWEEN = 4
"""Most host operators (casts, scaling, pinning) between the creation of a tensor and its copy to the
device."""

_MAKES = re.compile(
    r"aten::(rand|randn|randint|randperm|normal|zeros|ones|full|arange|linspace|eye|scalar_tensor|lift_fresh"
    r"|(rand|randn|randint|zeros|ones|full)_like|new_(zeros|ones|full)|normal_|uniform_|random_|fill_)$"
    r"|<built-in method (tensor|as_tensor) of type"
)
_READ_OUT = re.compile(
    r"aten::(item|is_nonzero|_local_scalar_dense|equal|allclose)$|<built-in method (numpy|tolist|item) of Tensor"  # noqa: E501
)
_READS = re.compile(
    r"aten::(item|is_nonzero|sum|mean|add_?|sub_?|mul_?|div_?|argmax|argmin|max|min|eq|ne|norm|clone|cat|stack|topk)$"
    r"|<built-in method (numpy|tolist|item) of Tensor"
)
_BUILT_IN = re.compile(
    r"<built-in method (tensor|as_tensor) of type|<built-in method (numpy|tolist|item) of Tensor"
)
_LOOKS = re.compile(r"(cuda|hip)(Event|Stream)Query|cu(Event|Stream)Query")


@dataclass(frozen=True, slots=True)
class Sequence:
    """The outermost operators of one thread, except those inside the loader and optimizers.

    Args:
        rows: rows of the host, in order.
        num_queued: number of pieces of device work that each operator queued.
        num_copied: number of copies to the device that each operator queued.
    """

    rows: Ints
    num_queued: Ints
    num_copied: Ints


def of_thread(timeline: Timeline, thread: int) -> Sequence:
    host, device = timeline.host, timeline.device
    rows = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.thread == thread))
    built_in = named(timeline, _BUILT_IN, HostKind.PYTHON)
    rows = np.union1d(rows, built_in[host.thread[built_in] == thread])
    hidden = np.concatenate((loader_spans(timeline), named(timeline, OPTIMIZER, HostKind.ANNOTATION)))
    rows = outermost(host, rows[~begins_inside(host, rows, hidden)])
    launched = device.launch[device.launch != UNKNOWN]
    to_device = uploads(timeline) & (device.launch != UNKNOWN)
    return Sequence(
        rows, num_inside(timeline, rows, launched), num_inside(timeline, rows, device.launch[to_device])
    )


def made_then_copied(timeline: Timeline, threads: Ints) -> tuple[Ints, Ints]:
    """Return operators that make a tensor on the host for the device, and operators that copy such tensors
    there."""
    found: list[int] = []
    copying: list[int] = []
    for thread in threads.tolist():
        sequence = of_thread(timeline, thread)
        makes = _matches(timeline, sequence.rows, _MAKES) & (sequence.num_queued == 0)
        read_out = _matches(timeline, sequence.rows, _READ_OUT)
        for first in np.flatnonzero(makes).tolist():
            for at in range(first + 1, min(first + 2 + MOST_BETWEEN, len(sequence.rows))):
                if sequence.num_copied[at]:
                    found += sequence.rows[first:at].tolist()
                    copying.append(int(sequence.rows[at]))
                # The host reads this tensor here; the next copy is of another tensor.
                if sequence.num_queued[at] or read_out[at]:
                    break
    return np.unique(np.array(found, dtype=np.int64)), np.unique(np.array(copying, dtype=np.int64))


def read_too_early(timeline: Timeline) -> NDArray[np.bool_]:
    """Return for each host span whether the call copies to page-locked memory that the host then reads at
    once.

    After such copies, the thread's next operator works only on the host, and before it the program neither
    waited for the device nor asked whether the copy was done.
    """
    host, device = timeline.host, timeline.device
    found = np.zeros(len(host), dtype=bool)
    to_host = np.flatnonzero((device.kind == DeviceKind.COPY) & (device.launch != UNKNOWN))
    to_host = to_host[
        told_by_name(timeline.names, device.name[to_host], lambda name: kind_of(name) == ("DtoH", True))
    ]
    copying = np.unique(device.launch[to_host])
    waiting = cuda_calls.waits(timeline)
    waiting[named(timeline, _LOOKS, HostKind.CALL)] = True
    copying = copying[~waiting[copying]]
    for thread in np.unique(host.thread[copying]).tolist():
        sequence = of_thread(timeline, thread)
        reads = _matches(timeline, sequence.rows, _READS) & (sequence.num_queued == 0)
        waits = np.flatnonzero(waiting & (host.thread == thread))
        own = copying[host.thread[copying] == thread]
        copies = num_inside(timeline, sequence.rows, own) > 0
        for call in own.tolist():
            at = int(np.searchsorted(host.start_ns[sequence.rows], host.start_ns[call], side="right"))
            while at < len(sequence.rows) and copies[at]:
                at += 1
            if at == len(sequence.rows) or not reads[at]:
                continue
            # A wait for the device inside the reading operator is early enough.
            until = host.end_ns[sequence.rows[at]]
            inside = (host.start_ns[waits] >= host.start_ns[call]) & (host.start_ns[waits] < until)
            found[call] = not inside.any()
    return found


def _matches(timeline: Timeline, rows: Ints, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    return told_by_name(timeline.names, timeline.host.name[rows], pattern.match)


def num_inside(timeline: Timeline, rows: Ints, inner: Ints) -> Ints:
    """Count the calls `inner` that begin inside each span of `rows`; the spans are of one thread and do not
    overlap."""
    host = timeline.host
    num = np.zeros(len(rows), dtype=np.int64)
    if not len(rows):
        return num
    inner = inner[host.thread[inner] == host.thread[rows[0]]]
    at = np.searchsorted(host.start_ns[rows], host.start_ns[inner], side="right") - 1
    inside = (at >= 0) & (host.start_ns[inner] < host.end_ns[rows[np.maximum(at, 0)]])
    np.add.at(num, at[inside], 1)
    return num
