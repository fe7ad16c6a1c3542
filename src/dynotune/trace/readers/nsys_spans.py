"""Read the tables of Nsight Systems' SQLite export as spans of all processes; `nsys` makes Timelines of them.

Names and values of columns are defined in NVIDIA's "SQLite Schema Reference" and "SQLite Schema Event Values"
(https://docs.nvidia.com/nsight-systems/AnalysisGuide). Only the columns `start` and `end` are required.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dynotune.trace.readers import sqlite_tables as tables
from dynotune.trace.readers.sqlite_tables import NULL, Database
from dynotune.trace.timeline import UNKNOWN, DeviceKind, HostKind, Ints, joined

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RANGES = "NVTX_EVENTS"
EVENTS = (KERNELS, COPIES, SETS, GRAPHS, CALLS, SYNCS, RANGES)

THREAD_MASK = (1 << 24) - 1
"""A serialized GlobalId has the thread in its last 24 bits, the process in the 24 before, the machine
above."""

GRAPH = len(DeviceKind)
"""Temporary kind of a CUDA graph that was recorded as a whole; the Timeline shows such a graph as a
kernel."""

_NAMELESS = "unknown"
_DEVICE_COLUMNS = ("globalPid", "deviceId", "streamId", "correlationId")
# cudaLaunchKernel_v7000, cudaMemcpyAsync_ptsz_v7000 (with a default stream per thread), cuMemFree_v2
_VERSION = re.compile(r"(_pt(?:ds|sz))?_v\d+$")

# Meanings of numbers for files without the tables ENUM_*; those tables have the same numbers.
_COPY_KINDS = (
    *("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP"),
    *("UVM_HTOD", "UVM_DTOH", "UVM_DTOD"),
)
_MEMORY_KINDS = (
    "PAGEABLE",
    "PINNED",
    "DEVICE",
    "ARRAY",
    "MANAGED",
    "DEVICE_STATIC",
    "MANAGED_STATIC",
    "UNKNOWN",
)
_PUSH_POP, _START_END = 59, 60
_SYNC_CALLS = {
    1: "cudaEventSynchronize",
    2: "cudaStreamWaitEvent",
    3: "cudaStreamSynchronize",
    4: "cudaDeviceSynchronize",
}


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of any number of processes, all columns int64, rows in any order.

    Args:
        process: serialized GlobalId without the thread; UNKNOWN if the row has no GlobalId.
        start_ns, end_ns: NULL if the row lacks the time.
        kind: a `HostKind` or `DeviceKind`, or GRAPH.
        name: number in `Export.names`.
        place: for host spans the thread as serialized GlobalId, for device spans the index of the device.
        stream, num_bytes: UNKNOWN for host spans.
    """

    process: Ints
    start_ns: Ints
    end_ns: Ints
    kind: Ints
    name: Ints
    correlation: Ints
    place: Ints
    stream: Ints
    num_bytes: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(slots=True)
class Export:
    """The export that is being read, with the names, notes and missing facts found so far.

    Args:
        names: the names seen so far, with their numbers.
        free_ranges: process of each NVTX range of the kind start and end, not push and pop.
        missing, notes: as in `Timeline`.
    """

    database: Database
    names: dict[str, int] = field(default_factory=dict)
    free_ranges: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def devices(file: Export) -> Spans:
    """Return the work on devices: kernels, graphs recorded as a whole, copies, memsets."""
    return joined([_kernels(file), _graphs(file), _copies(file), _sets(file)])


def hosts(file: Export) -> Spans:
    """Return CUDA calls of runtime and driver, and NVTX ranges; a range that is still open at the end has end
    NULL."""
    return joined([_calls(file), _ranges(file)])


def _kernels(file: Export) -> Spans:
    names = ("demangledName", "shortName", "mangledName")
    columns = _columns(file, KERNELS, *_DEVICE_COLUMNS, *names, missing=("kernels", ""))
    return _device_spans(columns, DeviceKind.KERNEL, _strings(file, *(columns[name] for name in names)))


def _graphs(file: Export) -> Spans:
    """Return each launch of a graph recorded as a whole (`--cuda-graph-trace=graph`) as one row."""
    columns = _columns(file, GRAPHS, *_DEVICE_COLUMNS, "graphExecId")
    ids, inverse = np.unique(columns["graphExecId"], return_inverse=True)
    names = _intern(file, ("CUDA graph" + (f" {graph}" if graph != NULL else "") for graph in ids.tolist()))
    return _device_spans(columns, GRAPH, names[inverse])


def _copies(file: Export) -> Spans:
    kinds = ("copyKind", "srcKind", "dstKind")
    missing = "copies", ": there were no copies, or they were not traced"
    columns = _columns(file, COPIES, *_DEVICE_COLUMNS, *kinds, "bytes", missing=missing)
    for name, fact in (("bytes", "copied_bytes"), ("srcKind", "pinned")):
        if name not in file.database.columns.get(COPIES, columns):
            file.missing[fact] = f"table {COPIES} has no column {name}"
    directions = _enumeration(file, "ENUM_CUDA_MEMCPY_OPER", _COPY_KINDS)
    memories = _enumeration(file, "ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)
    triples, inverse = np.unique(
        np.column_stack([columns[kind] for kind in kinds]), axis=0, return_inverse=True
    )
    names = (
        f"Memcpy {_direction(directions.get(kind, ''))} "
        f"({_memory(memories.get(source, ''))} -> {_memory(memories.get(target, ''))})"
        for kind, source, target in triples.tolist()
    )
    return _device_spans(columns, DeviceKind.COPY, _intern(file, names)[inverse.ravel()])


def _sets(file: Export) -> Spans:
    missing = "memsets", ": there were none, or they were not traced"
    columns = _columns(file, SETS, *_DEVICE_COLUMNS, "memKind", "bytes", missing=missing)
    memories = _enumeration(file, "ENUM_CUDA_MEM_KIND", _MEMORY_KINDS)
    kinds, inverse = np.unique(columns["memKind"], return_inverse=True)
    names = _intern(file, (f"Memset ({_memory(memories.get(kind, ''))})" for kind in kinds.tolist()))
    return _device_spans(columns, DeviceKind.SET, names[inverse])


def _calls(file: Export) -> Spans:
    missing = "launches", ": calls of CUDA were not traced"
    columns = _columns(file, CALLS, "globalTid", "correlationId", "nameId", missing=missing)
    names = _strings(file, columns["nameId"], clean=lambda name: _VERSION.sub("", name))
    return _host_spans(columns, HostKind.CALL, names, columns["globalTid"])


def _ranges(file: Export) -> Spans:
    """Return NVTX ranges that were pushed and popped. Started and ended ranges need not nest; marks take no
    time."""
    where, has = "1", file.database.columns.get(RANGES, frozenset())
    if "eventType" in has:
        where = f'"eventType" = {_PUSH_POP}'
        free = tables.integers(
            file.database, RANGES, ("eventType",), ("globalTid",), where=f'"eventType" = {_START_END}'
        )
        file.free_ranges = _process(free["globalTid"])
    missing = "annotations", ": there were no NVTX ranges, or not traced"
    columns = _columns(file, RANGES, "globalTid", "textId", missing=missing, where=where)
    names = _strings(file, columns["textId"])
    if "text" in has:
        given = tables.texts(file.database, RANGES, "text", where=where)
        registered = list(file.names)
        names = _intern(
            file, (text or registered[name] for text, name in zip(given, names.tolist(), strict=True))
        )
    return _host_spans(columns, HostKind.ANNOTATION, names, columns["globalTid"])


def syncs(file: Export) -> Spans:
    """Return the host's waits, each named after the runtime call that waits in this way; no place or
    stream."""
    columns = _columns(file, SYNCS, "globalPid", "correlationId", "syncType")
    types, inverse = np.unique(columns["syncType"], return_inverse=True)
    names = _intern(file, (_SYNC_CALLS.get(type_, _NAMELESS) for type_ in types.tolist()))
    return _host_spans(columns, HostKind.CALL, names[inverse], columns["globalPid"])


def _columns(
    file: Export, table: str, *optional: str, missing: tuple[str, str] = ("", ""), where: str = "1"
) -> dict[str, Ints]:
    """Return the columns of a table of spans; the columns are empty if the file lacks the table.

    Args:
        missing: the fact that is missing without the table, and the end of the reason; "" if no fact is
            missing.
    """
    if table in file.database:
        return tables.integers(file.database, table, ("start", "end"), optional, where=where)
    if missing[0]:
        file.missing[missing[0]] = f"the file has no table {table}{missing[1]}"
    return {name: np.empty(0, dtype=np.int64) for name in ("start", "end", *optional)}


def _device_spans(columns: dict[str, Ints], kind: int, names: Ints) -> Spans:
    return Spans(
        process=_process(columns["globalPid"]),
        start_ns=columns["start"],
        end_ns=columns["end"],
        kind=np.full(len(names), kind, dtype=np.int64),
        name=names,
        correlation=_known(columns["correlationId"], least=1),
        place=_known(columns["deviceId"], most=int(np.iinfo(np.int32).max)),
        stream=_known(columns["streamId"]),
        num_bytes=_known(columns["bytes"]) if "bytes" in columns else np.full(len(names), UNKNOWN),
    )


def _host_spans(columns: dict[str, Ints], kind: HostKind, names: Ints, thread: Ints) -> Spans:
    nothing = np.full(len(names), UNKNOWN)
    correlation = _known(columns["correlationId"], least=1) if "correlationId" in columns else nothing
    return Spans(
        process=_process(thread),
        start_ns=columns["start"],
        end_ns=columns["end"],
        kind=np.full(len(names), kind, dtype=np.int64),
        name=names,
        correlation=correlation,
        place=np.where(thread == NULL, UNKNOWN, thread),
        stream=nothing,
        num_bytes=nothing,
    )


def _process(serialized: Ints) -> Ints:
    return np.where(serialized == NULL, UNKNOWN, serialized & ~THREAD_MASK)


def _known(values: Ints, *, least: int = 0, most: int = -NULL - 1) -> Ints:
    return np.where((values < least) | (values > most), UNKNOWN, values)


def _intern(file: Export, names: Iterable[str]) -> Ints:
    """Number each name; new names get the next numbers."""
    known = file.names
    return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def _strings(file: Export, *columns: Ints, clean: Callable[[str], str] = str) -> Ints:
    """Return the number of each row's name: the first column's string that is known and not empty."""
    numbers = np.full(len(columns[0]), UNKNOWN)
    for ids in columns:
        open_ = numbers == UNKNOWN
        wanted, inverse = np.unique(ids[open_], return_inverse=True)
        found = tables.lookup(file.database, "StringIds", "id", "value", wanted)
        cleaned = [clean(found.get(id_, "")) for id_ in wanted.tolist()]
        known = np.array([bool(name) for name in cleaned], dtype=bool)
        local = np.where(known, _intern(file, (name or _NAMELESS for name in cleaned)), UNKNOWN)
        numbers[open_] = local[inverse]
    return np.where(numbers == UNKNOWN, _intern(file, [_NAMELESS])[0], numbers)


def _enumeration(file: Export, table: str, documented: Iterable[str]) -> Mapping[int, str]:
    """Return the meaning of each number of an enumeration, from the file's definition or else the documented
    one."""
    if not {"id", "name"} <= file.database.columns.get(table, frozenset()):
        return dict(enumerate(documented))
    ids = tables.integers(file.database, table, ("id",))["id"]
    said = tables.texts(file.database, table, "name")
    return {id_: (name or "").rpartition("_KIND_")[2] for id_, name in zip(ids.tolist(), said, strict=True)}


def _direction(kind: str) -> str:
    """Convert the copy directions HTOD and UVM_HTOD to HtoD, the spelling of torch's profiler."""
    short = kind.removeprefix("UVM_")
    return f"{short[0]}to{short[3]}" if re.fullmatch("[HDAP]TO[HDAP]", short) else "unknown"


def _memory(kind: str) -> str:
    """Convert the memory kind DEVICE_STATIC to Device Static, the spelling of torch's profiler."""
    return kind.replace("_", " ").title() or "Unknown"
