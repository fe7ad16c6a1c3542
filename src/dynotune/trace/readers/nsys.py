"""Read Nsight Systems' SQLite export (`nsys export --type sqlite`) into Timelines, one per process.

Major versions of the schema up to 3 are supported. Nsight Systems writes only tables that have rows, so a
missing table is a missing fact. See docs/reference/trace.md, "Nsight Systems".
"""

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import TypeVar

import numpy as np

from dynotune.schema.errors import UsageError
from dynotune.trace.readers import nsys_spans, sqlite_tables
from dynotune.trace.readers.json_slices import Progress
from dynotune.trace.readers.nsys_spans import THREAD_MASK, Export, Spans
from dynotune.trace.readers.sqlite_tables import NULL, Database
from dynotune.trace.timeline import (
    UNKNOWN,
    DeviceKind,
    DeviceProperties,
    DeviceSpans,
    HostKind,
    HostSpans,
    Ints,
    MemoryMarks,
    Timeline,
    by_alphabet,
    in_order,
    joined,
    launches,
    taken,
)

T = TypeVar("T")

_NEWEST_SCHEMA = 3
# With times beyond this, sums of times would overflow; no clock reaches this time.
_LARGEST_TIME_NS = 1 << 62
_NEVER_THERE = {
    "operators": "Nsight Systems does not record torch's operators",
    "stacks": "Python's stacks in an export of Nsight Systems are samples, which are not read",
    "memory": "Nsight Systems does not see torch's caching allocator",
}


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts of the whole file about its threads, processes and devices."""

    thread_names: dict[int, str]
    ranks: dict[int, set[int]]
    gpus: dict[int, DeviceProperties]
    gpu_of: dict[tuple[int, int], set[int]]
    session_start_ns: int | None


def read(path: Path, *, progress: Progress | None = None) -> list[Timeline]:
    """Read the processes of an export that did work on a device, in order of their identifiers.

    If no process did, read the processes with CUDA calls or NVTX ranges. Times are the file's nanoseconds.

    Args:
        progress: called with the bytes of the file read so far, estimated by the share of its rows, and its
            size.

    Raises:
        UsageError: the file is no SQLite export of Nsight Systems, has a newer schema, or is cut short,
            damaged or empty.
    """
    num_read = total = size_bytes = 0

    def advance(table: str, num_rows: int) -> None:
        nonlocal num_read
        if progress and table in nsys_spans.EVENTS:
            num_read += num_rows
            progress(size_bytes * num_read // max(total, 1), size_bytes)

    with sqlite_tables.opened(path, advance=advance) as database:
        _check_export(database)
        size_bytes = path.stat().st_size
        total = sum(sqlite_tables.count(database, table) for table in nsys_spans.EVENTS if table in database)
        file = Export(database, missing=dict(_NEVER_THERE))
        file.notes += [
            f"{name} lies beside it: the export had not finished, what that file holds is not read"
            for name in sqlite_tables.leftovers(path)
        ]
        device, host, syncs = nsys_spans.devices(file), nsys_spans.hosts(file), nsys_spans.syncs(file)
        facts = _facts(file)
    if progress:
        progress(size_bytes, size_bytes)
    if not len(device) + len(host) + len(syncs):
        raise UsageError(
            f"{path} holds no CUDA and no NVTX events.",
            hint="Record with: nsys profile --trace=cuda,nvtx COMMAND",
        )
    return _timelines(file, facts, _of_the_only_process([device, host, syncs]))


def _check_export(database: Database) -> None:
    signs = (*nsys_spans.EVENTS, "META_DATA_EXPORT", "ANALYSIS_DETAILS")
    if "StringIds" not in database or not any(name in database for name in signs):
        some = ", ".join(sorted(database.columns)[:5]) or "none"
        raise UsageError(
            f"{database.path} is SQLite, but no export of Nsight Systems; its tables: {some}.",
            hint="Give what `nsys export --type sqlite` wrote, or a trace of torch.profiler.",
        )
    if not {"name", "value"} <= database.columns.get("META_DATA_EXPORT", frozenset()):
        return
    versions = database.connection.execute(
        "SELECT value FROM META_DATA_EXPORT WHERE name IN ('EXPORT_SCHEMA_VERSION', "
        "'EXPORT_SCHEMA_VERSION_MAJOR')"
    )
    for (version,) in versions:
        major = str(version).partition(".")[0]
        if major.isdecimal() and int(major[:9]) > _NEWEST_SCHEMA:
            raise UsageError(
                f"{database.path} has version {str(version)[:20]} of the export's schema; "
                f"this dynotune reads {_NEWEST_SCHEMA}.",
                hint="Use a newer dynotune, or export with an older nsys.",
            )


def _of_the_only_process(parts: list[Spans]) -> list[Spans]:
    """Assign rows without a process to the process of the other rows, if there is only one."""
    named = np.unique(np.concatenate([part.process for part in parts]))
    named = named[named != UNKNOWN]
    if len(named) != 1:
        return parts
    return [replace(part, process=np.full(len(part), named[0])) for part in parts]


def _timelines(file: Export, facts: _Facts, parts: list[Spans]) -> list[Timeline]:
    alphabet, number = by_alphabet(file.names)
    parts = [replace(part, name=number[part.name]) for part in parts]
    by_process = [taken(part, np.argsort(part.process, kind="stable")) for part in parts]
    device, *others = (np.unique(part.process) for part in by_process)
    made = []
    for process in (device if len(device) else np.unique(np.concatenate(others))).tolist():
        bounds = [np.searchsorted(part.process, [process, process + 1]) for part in by_process]
        own = [taken(part, slice(*bound)) for part, bound in zip(by_process, bounds, strict=True)]
        made.append(_timeline(file, facts, alphabet, process, *own))
    return made


def _timeline(
    file: Export, facts: _Facts, alphabet: list[str], process: int, device: Spans, host: Spans, syncs: Spans
) -> Timeline:
    notes, missing = list(file.notes), dict(file.missing)
    if process == UNKNOWN:
        notes.append("these rows do not say which process they belong to")
    if num_free := int((file.free_ranges == process).sum()):
        notes.append(f"{num_free:,} NVTX start/end ranges are left out: they need not nest")
    host = _closed(host, device, notes)
    device, host, syncs = (_timed(part, notes) for part in (device, host, syncs))
    host, labels = _with_syncs(file, host, syncs, notes)
    if (device.kind == nsys_spans.GRAPH).any():
        missing["kernels_in_graphs"] = "CUDA graphs were recorded whole; record with --cuda-graph-trace=node"
        notes.append(
            "each launch of a CUDA graph is one kernel here: its kernels were not recorded one by one"
        )
    host, device = _sorted(host), _sorted(device)
    used = np.unique(np.concatenate([host.name, device.name]))
    threads = np.unique(host.place)
    indices = np.unique(device.place).tolist()
    properties = {index: gpu for index in indices if (gpu := _properties(facts, process, index)) is not None}
    if len(properties) < len(indices):
        missing["device_properties"] = "the file does not say which GPU each device is"
    calls = _host_spans(host, used, threads)
    nothing = np.empty(0, dtype=np.int64)
    return Timeline(
        source=str(file.database.path),
        recorder="nsys",
        names=[alphabet[name] for name in used.tolist()],
        threads=[labels.get(thread) or _thread(facts, thread) for thread in threads.tolist()],
        host=calls,
        device=_device_spans(device, used, calls),
        memory=MemoryMarks(nothing, nothing, nothing, nothing.astype(np.int32)),
        properties=properties,
        rank=_only(facts.ranks.get(process, set())),
        clock_base_ns=_clock_base(facts, host, device),
        notes=tuple(notes),
        missing=missing,
    )


def _host_spans(host: Spans, names: Ints, threads: Ints) -> HostSpans:
    return HostSpans(
        start_ns=host.start_ns,
        end_ns=host.end_ns,
        kind=host.kind.astype(np.int8),
        name=np.searchsorted(names, host.name).astype(np.int32),
        thread=np.searchsorted(threads, host.place).astype(np.int32),
        correlation=host.correlation,
        sequence=np.full(len(host.start_ns), UNKNOWN, dtype=np.int64),
        is_backward=np.zeros(len(host.start_ns), dtype=np.bool_),
    )


def _device_spans(device: Spans, names: Ints, calls: HostSpans) -> DeviceSpans:
    kind = np.where(device.kind == nsys_spans.GRAPH, DeviceKind.KERNEL, device.kind)
    return DeviceSpans(
        start_ns=device.start_ns,
        end_ns=device.end_ns,
        kind=kind.astype(np.int8),
        name=np.searchsorted(names, device.name).astype(np.int32),
        device=device.place.astype(np.int32),
        stream=device.stream,
        launch=launches(device.correlation, calls),
        num_bytes=device.num_bytes,
    )


def _closed(host: Spans, device: Spans, notes: list[str]) -> Spans:
    """End ranges that are still open at the end of the recording together with the process's last row."""
    is_open = (host.kind == HostKind.ANNOTATION) & (host.end_ns == NULL) & (host.start_ns != NULL)
    if not is_open.any():
        return host
    times = np.concatenate([host.start_ns, host.end_ns, device.end_ns])
    last = int(times[times < _LARGEST_TIME_NS].max(initial=NULL))
    notes.append(
        f"{int(is_open.sum()):,} NVTX ranges had not ended when the recording did, and end with it here"
    )
    return replace(host, end_ns=np.where(is_open, last, host.end_ns))


def _timed(part: Spans, notes: list[str]) -> Spans:
    """Return the rows whose times were measured; CUPTI writes start 0 and end 0 for times that it could not
    measure."""
    start, end = part.start_ns, part.end_ns
    good = (
        (end >= start) & (start > -_LARGEST_TIME_NS) & (end < _LARGEST_TIME_NS) & ((start != 0) | (end != 0))
    )
    if not good.all():
        notes.append(
            f"{int((~good).sum()):,} rows are left out: they have no times, or end before they start"
        )
    return taken(part, good)


def _with_syncs(file: Export, host: Spans, syncs: Spans, notes: list[str]) -> tuple[Spans, dict[int, str]]:
    """Return the host spans with waits whose call was not recorded, and labels of threads invented for these
    waits.

    Waits that overlap in time were on different threads. So each invented thread, filled first-fit, has at
    most one wait at any time.
    """
    known = (syncs.correlation != UNKNOWN) | ("launches" in file.missing)
    called = host.correlation[host.kind == HostKind.CALL]
    lone = taken(syncs, known & ~np.isin(syncs.correlation, called[called != UNKNOWN]))
    if not len(lone):
        return host, {}
    notes.append(
        f"{len(lone):,} waits have no recorded call, and are named as the call that makes such a wait"
    )
    lone = _sorted(lone)
    place = np.empty(len(lone), dtype=np.int64)
    free: list[tuple[int, int]] = []
    for row, (start, end) in enumerate(zip(lone.start_ns.tolist(), lone.end_ns.tolist(), strict=True)):
        lane = heappop(free)[1] if free and free[0][0] <= start else len(free)
        heappush(free, (end, lane))
        place[row] = -2 - lane
    labels = {-2 - lane: f"waits without a call {lane}" for lane in range(len(free))}
    return joined([host, replace(lone, place=place)]), labels


def _sorted(part: Spans) -> Spans:
    """Sort rows in the order that `Timeline` promises, and rows that are equal in this order by their
    values."""
    ordered = taken(part, in_order(part.start_ns, part.end_ns))
    if not ((np.diff(ordered.start_ns) == 0) & (np.diff(ordered.end_ns) == 0)).any():
        return ordered
    ties = (part.num_bytes, part.stream, part.correlation, part.place, part.name, part.kind)
    part = taken(part, np.lexsort(ties))
    return taken(part, in_order(part.start_ns, part.end_ns))


def _facts(file: Export) -> _Facts:
    database = file.database
    names: dict[int, str] = {}
    rows = list(sqlite_tables.rows(database, "ThreadNames", "globalTid", "nameId"))
    strings = sqlite_tables.lookup(
        database, "StringIds", "id", "value", np.array([name for _, name in rows], dtype=np.int64)
    )
    for thread, name_id in rows:
        # A thread may have had several names: choose a name independently of the order of rows.
        names[thread] = min(filter(None, (names.get(thread), strings.get(name_id))), default="")
    ranks: dict[int, set[int]] = {}
    for thread, rank in sqlite_tables.rows(database, "MPI_RANKS", "globalTid", "rank"):
        ranks.setdefault(thread & ~THREAD_MASK, set()).add(rank)
    gpu_of: dict[tuple[int, int], set[int]] = {}
    for pid, index, gpu in sqlite_tables.rows(database, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId"):
        gpu_of.setdefault((pid, index), set()).add(gpu)
    started = {
        time for (time,) in sqlite_tables.rows(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    }
    return _Facts(names, ranks, _gpus(database), gpu_of, _only(started - {NULL}))


def _gpus(database: Database) -> dict[int, DeviceProperties]:
    """Return the GPUs by their number in the file, which is not CUDA's index."""
    table = "TARGET_INFO_GPU"
    if not {"id", "name"} <= database.columns.get(table, frozenset()):
        return {}
    columns = sqlite_tables.integers(database, table, ("id",), ("computeMajor", "computeMinor"))
    names = sqlite_tables.texts(database, table, "name")
    found: dict[int, set[DeviceProperties]] = {}
    for name, gpu, *capability in zip(names, *(column.tolist() for column in columns.values()), strict=True):
        properties = DeviceProperties(
            name or "", None if NULL in capability else (capability[0], capability[1])
        )
        found.setdefault(gpu, set()).add(properties)
    # A report may be of several machines, which may give their GPUs the same numbers.
    return {gpu: one for gpu, several in found.items() if (one := _only(several)) is not None}


def _properties(facts: _Facts, process: int, index: int) -> DeviceProperties | None:
    """Return the properties of CUDA device `index` in `process`; if the file does not map indices, of all
    GPUs."""
    gpus = set(facts.gpus.values())
    if facts.gpu_of:
        numbers = facts.gpu_of.get(((process >> 24) & THREAD_MASK, index), set())
        gpus = {facts.gpus[number] for number in numbers if number in facts.gpus}
    return None if index == UNKNOWN else _only(gpus)


def _clock_base(facts: _Facts, *parts: Spans) -> int | None:
    """Return the clock's base in ns: times count from the session's start, or from 1970 with
    `--ts-normalize`."""
    if facts.session_start_ns is None:
        return None
    earliest = min(int(part.start_ns.min(initial=_LARGEST_TIME_NS)) for part in parts)
    return 0 if earliest >= facts.session_start_ns else facts.session_start_ns


def _thread(facts: _Facts, thread: int) -> str:
    if thread == UNKNOWN:
        return "unknown thread"
    name = facts.thread_names.get(thread)
    return f"{thread & THREAD_MASK} {name}" if name else str(thread & THREAD_MASK)


def _only(values: set[T]) -> T | None:
    return next(iter(values)) if len(values) == 1 else None
