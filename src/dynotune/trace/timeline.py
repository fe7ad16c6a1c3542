"""What a recorded trace says happened, in columns: one `Timeline` a process, whoever recorded it.

Times are whole nanoseconds on the recorder's own clock. Rows are sorted by start; where two start together,
the longer stands first, so an enclosing span precedes what it encloses.
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
"""Stands in integer columns for a value that the trace does not give. It is never a measured value."""


class HostKind(IntEnum):
    OPERATOR = 0  # aten::conv2d, autograd nodes, torch.compile's regions
    ANNOTATION = 1  # record_function, ProfilerStep, NVTX ranges, Optimizer.step, enumerate(DataLoader)
    PYTHON = 2  # a Python function, named `file.py(line): function`
    CALL = 3  # of the CUDA (or HIP) runtime or driver


class DeviceKind(IntEnum):
    KERNEL = 0
    COPY = 1
    SET = 2


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Work of the process on its cores; spans of one thread nest.

    Args:
        start_ns, end_ns: int64; end is not before start.
        kind: of `HostKind`, int8.
        name: index into `Timeline.names`, int32.
        thread: index into `Timeline.threads`, int32.
        correlation: what ties a CALL to the device work it queued, int64; UNKNOWN for other kinds.
    """

    start_ns: Ints
    end_ns: Ints
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    correlation: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class DeviceSpans:
    """Work on the process's devices.

    Args:
        start_ns, end_ns: int64.
        kind: of `DeviceKind`, int8.
        name: index into `Timeline.names`, int32. A copy is named as the profiler of torch names it
            ("Memcpy HtoD (Pageable -> Device)"), whatever recorded it.
        device: its index as CUDA numbers it, int32.
        stream: as the recorder numbers it, int64.
        launch: row of the CALL in `HostSpans` that queued it, int64; UNKNOWN where the trace does not tell.
            All kernels of one CUDA graph share the call that launched the graph.
        num_bytes: copied or set, int64; UNKNOWN for kernels.
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
        time_ns, allocated_bytes, reserved_bytes: int64.
        device: int32; UNKNOWN for host memory.
    """

    time_ns: Ints
    allocated_bytes: Ints
    reserved_bytes: Ints
    device: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """A GPU as the recorder describes it; None and "" for what it leaves out."""

    name: str = ""
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One process of a recorded program.

    Args:
        source: the file it was read from.
        recorder: "torch.profiler" or "nsys".
        names: distinct names of spans.
        threads: label of each thread, distinct within the process.
        rank, world_size: None where the trace does not say.
        clock_base_ns: what to add to a time to get nanoseconds since 1970; None where the trace does not say.
        notes: what is partial, in words for the user ("cut short: everything up to event 40,312").
        missing: facts that this trace cannot give, name to reason: "device", "launches", "stacks" and "memory"
            whoever recorded it, and what else its reader knows to be absent.
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
        """Return indices of the devices that did something, ascending; UNKNOWN is one if the trace does not tell."""
        # Not np.unique, whose first call imports a package that takes longer than a small trace.
        device = self.device.device
        others = np.flatnonzero(device[1:] != device[:-1]) + 1
        return sorted({*device[:1].tolist(), *device[others].tolist()})


Table = TypeVar("Table", bound="DataclassInstance")
"""Columns of equal length."""


def taken(table: Table, rows: Ints | NDArray[np.bool_] | slice) -> Table:
    """Return some of the rows; `rows` indexes as numpy does."""
    return type(table)(*(getattr(table, column.name)[rows] for column in fields(table)))


def joined(parts: Sequence[Table]) -> Table:
    """Join the rows of one table after those of another."""
    columns = ([getattr(part, column.name) for part in parts] for column in fields(parts[0]))
    return type(parts[0])(*map(np.concatenate, columns))


def by_alphabet(names: Mapping[str, int]) -> tuple[list[str], Ints]:
    """Sort names by alphabet, so that a file's order does not show; return also what each number becomes there."""
    ordered = sorted(names)
    number = np.empty(len(ordered), dtype=np.int64)
    number[[names[name] for name in ordered]] = np.arange(len(ordered))
    return ordered, number


def touching(spans: HostSpans | DeviceSpans, window: tuple[int, int]) -> NDArray[np.bool_]:
    """Tell whether each span has a part in the window [start, end) of nanoseconds, or begins in it."""
    inside: NDArray[np.bool_] = spans.start_ns < window[1]
    return inside & ((spans.end_ns > window[0]) | (spans.start_ns >= window[0]))


def queued_ns(timeline: Timeline, rows: Ints) -> Ints:
    """Tell when the host queued each of these rows of the device; when it started, if the trace does not tell."""
    queued = timeline.device.start_ns[rows]
    launch = timeline.device.launch[rows]
    queued[launch != UNKNOWN] = timeline.host.start_ns[launch[launch != UNKNOWN]]
    return queued


def told_by_name(names: list[str], name: NDArray[np.int32], tell: Callable[[str], object]) -> NDArray[np.bool_]:
    """Tell whether `tell` says yes of the name of each row; each distinct name is asked once, no other name ever.

    Args:
        names: of the timeline; `name`: index into it for each row, not UNKNOWN.
    """
    said = np.zeros(len(names), dtype=bool)
    for index in np.flatnonzero(np.bincount(name, minlength=1)):
        said[index] = bool(tell(names[index]))
    return said[name] if len(name) else np.zeros(0, dtype=bool)


def in_order(start_ns: Ints, end_ns: Ints) -> Ints:
    """Return rows in the order that the tables promise: by start, then the longer first, then as they came."""
    return np.lexsort((-end_ns, start_ns)).astype(np.int64, copy=False)


def launches(correlation: Ints, calls: HostSpans) -> Ints:
    """Return the row in `calls` of the CALL with each `correlation`; UNKNOWN if there is none.

    Where several calls bear the same correlation (a runtime call and the driver call inside it), the outermost
    one, which started first, counts.
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
