"""A recorded trace in columns: one `Timeline` per process, independent of the recorder.

Times are whole nanoseconds on the recorder's own clock. Rows are sorted by start; if two start together, the
longer comes first, so an enclosing span precedes the spans inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Ints = NDArray[np.int64]
UNKNOWN = -1
"""In integer columns, this number stands for a value that the trace does not contain; no measured value
equals it."""


class HostKind(IntEnum):
    OPERATOR = 0  # aten::conv2d, autograd nodes, torch.compile's regions
    ANNOTATION = 1  # record_function, ProfilerStep, NVTX ranges, Optimizer.step, enumerate(DataLoader)
    PYTHON = 2  # a Python function, named `file.py(line): function`
    CALL = 3  # call of the CUDA (or HIP) runtime or driver


class DeviceKind(IntEnum):
    KERNEL = 0
    COPY = 1
    SET = 2


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Spans of the process's work on CPU cores, one per row; spans of one thread nest.

    Args:
        start_ns, end_ns: start and end of each span, int64; the end is not before the start.
        kind: a `HostKind` per span, int8.
        name: index into `Timeline.names`, int32.
        thread: index into `Timeline.threads`, int32.
        correlation: number that a CALL shares with the device work queued by the call, int64; UNKNOWN for
            other kinds.
        sequence: autograd's number of a forward OPERATOR's node, int64, which the OPERATORs of the node's
            backward pass share; UNKNOWN for other spans. Each thread that runs forward passes counts for
            itself.
        is_backward: whether an OPERATOR belongs to a node's backward pass, by the recorder.
    """

    start_ns: Ints
    end_ns: Ints
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    correlation: Ints
    sequence: Ints
    is_backward: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class DeviceSpans:
    """Spans of work on the process's devices, one per row.

    Args:
        start_ns, end_ns: start and end of each span, int64.
        kind: a `DeviceKind` per span, int8.
        name: index into `Timeline.names`, int32. A copy has the name that torch's profiler gives it ("Memcpy
            HtoD (Pageable -> Device)"), whatever the recorder.
        device: CUDA's index of the device, int32.
        stream: the recorder's number of the stream, int64.
        launch: row in `HostSpans` of the CALL that queued the work, int64; UNKNOWN if the trace does not have
            it. All kernels of one CUDA graph share the call that launched the graph.
        num_bytes: bytes copied or set, int64; UNKNOWN for kernels.
    """

    start_ns: Ints
    end_ns: Ints
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    device: NDArray[np.int32]
    stream: Ints
    launch: Ints
    num_bytes: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class MemoryMarks:
    """The caching allocator's level after each allocation and release, in order of time.

    Args:
        time_ns, allocated_bytes, reserved_bytes: time of the event and the allocator's levels right after it,
            int64.
        device: index of the device, int32; UNKNOWN for host memory.
    """

    time_ns: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    device: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Properties of a GPU from the recorder; None and "" stand for values that the recorder leaves out."""

    name: str = ""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One process of a recorded program.

    Args:
        source: the file from which the timeline was read.
        recorder: "torch.profiler" or "nsys".
        names: distinct names of all spans.
        threads: one label per thread, distinct within the process.
        rank, world_size: None if the trace does not contain them.
        clock_base_ns: nanoseconds to add to times to get nanoseconds since 1970; None if the trace lacks this
            number.
        notes: sentences for the user on incomplete data ("cut short: everything up to event 40,312").
        missing: by fact that this trace lacks, the reason: "device", "launches", "stacks" and "memory" for
            every recorder, and other facts that the reader did not find.
    """

    source: str
    recorder: str
    names: list[str]
    threads: list[str]
    host: HostSpans
    device: DeviceSpans
    memory: MemoryMarks
    properties: dict[int, DeviceProperties] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    clock_base_ns: int | None = None
    notes: tuple[str, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> list[int]:
        """Return the indices of devices with work, ascending; UNKNOWN stands for work on an unknown
        device."""
        # np.unique is avoided: its first call imports a package that takes longer than a small trace.
        device = self.device.device
        others = np.flatnonzero(device[1:] != device[:-1]) + 1
        return sorted({*device[:1].tolist(), *device[others].tolist()})


Table = TypeVar("Table", bound="DataclassInstance")
"""A table with columns of equal length."""


def taken(table: Table, rows: Ints | NDArray[np.bool_] | slice) -> Table:
    """Return the table with only the selected rows; `rows` is an index as in numpy."""
    return type(table)(*(getattr(table, column.name)[rows] for column in fields(table)))


def joined(parts: Sequence[Table]) -> Table:
    """Concatenate the rows of several tables."""
    columns = ([getattr(part, column.name) for part in parts] for column in fields(parts[0]))
    return type(parts[0])(*map(np.concatenate, columns))


def by_alphabet(names: Mapping[str, int]) -> tuple[list[str], Ints]:
    """Sort names by alphabet, independent of the file's order; return also the new number of each old
    number."""
    ordered = sorted(names)
    number = np.empty(len(ordered), dtype=np.int64)
    number[[names[name] for name in ordered]] = np.arange(len(ordered))
    return ordered, number


def touching(spans: HostSpans | DeviceSpans, window: tuple[int, int]) -> NDArray[np.bool_]:
    """Return for each span whether the span overlaps the window [start, end) of ns, or begins in the
    window."""
    inside: NDArray[np.bool_] = spans.start_ns < window[1]
    return inside & ((spans.end_ns > window[0]) | (spans.start_ns >= window[0]))


def queued_ns(timeline: Timeline, rows: Ints) -> Ints:
    """Return when the host queued each of the given device spans; the span's start if the trace lacks that
    time."""
    queued = timeline.device.start_ns[rows]
    launch = timeline.device.launch[rows]
    queued[launch != UNKNOWN] = timeline.host.start_ns[launch[launch != UNKNOWN]]
    return queued


def told_by_name(
    names: list[str], name: NDArray[np.int32], tell: Callable[[str], object]
) -> NDArray[np.bool_]:
    """Return for each row whether `tell` accepts the row's name; `tell` is called once per distinct name.

    Args:
        names: the timeline's names; `name`: for each row the index into `names`, not UNKNOWN.
    """
    said = np.zeros(len(names), dtype=bool)
    for index in np.flatnonzero(np.bincount(name, minlength=1)):
        said[index] = bool(tell(names[index]))
    return said[name] if len(name) else np.zeros(0, dtype=bool)


def in_order(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the row numbers in table order: by start, then the longer span first, then in the given
    order."""
    return np.lexsort((-end_ns, start_ns)).astype(np.int64, copy=False)


def launches(correlation: Ints, calls: HostSpans) -> Ints:
    """Return for each `correlation` the row in `calls` of the CALL with this number; UNKNOWN without such a
    call.

    If several calls have the same correlation (a runtime call and a driver call inside it), the outermost
    call counts, which started first.
    """
    rows = np.flatnonzero((calls.kind == HostKind.CALL) & (calls.correlation != UNKNOWN))
    known = calls.correlation[rows]
    order = np.argsort(known, kind="stable")
    known, rows = known[order], rows[order]
    at = np.searchsorted(known, correlation, side="left")
    found = at < len(known)
    found[found] = known[at[found]] == correlation[found]
    found &= correlation != UNKNOWN
    result = np.full(len(correlation), UNKNOWN, dtype=np.int64)
    result[found] = rows[at[found]]
    return result
