"""Read traces of torch.profiler: its chrome trace, `.json` or `.json.gz`, of torch 1.12 and later.

Times in the file are microseconds, whole or with a fraction, since 1970 or since `baseTimeNanoseconds`.
"""

import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dynotune.schema.errors import UsageError
from dynotune.trace.readers.chrome_events import Place, decode, flows
from dynotune.trace.readers.columns import Columns
from dynotune.trace.readers.json_slices import SLICE_BYTES, Progress, Slices
from dynotune.trace.readers.processes import Process, split
from dynotune.trace.timeline import (
    UNKNOWN,
    DeviceProperties,
    DeviceSpans,
    HostKind,
    HostSpans,
    Ints,
    MemoryMarks,
    Timeline,
    by_alphabet,
    in_order,
    taken,
)

_SCHEMA_VERSION = 1
_SINCE_1970_NS = 10**18  # the year 2001; a clock that starts at 0 with the machine or the month is far below
_LINE = re.compile(r"(?<=\.py)\(\d+\)(?=: )")
_RANK = re.compile(r"\brank[ _:=#-]*(\d+)\b", re.IGNORECASE)
_Kind = TypeVar("_Kind")


class _Device(msgspec.Struct):
    id: int
    name: str = ""
    major: int | None = msgspec.field(name="computeMajor", default=None)
    minor: int | None = msgspec.field(name="computeMinor", default=None)


class _Job(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


def read(
    path: Path,
    *,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
    slice_bytes: int = SLICE_BYTES,
) -> list[Timeline]:
    """Read a timeline for each process that launched device work; a single timeline if fewer than two did.

    Args:
        limit_bytes: limit for the text of a gzipped file; `trace.readers.json_slices.default_limit` if None.
        progress: called with the bytes of the file read so far and its size.
        slice_bytes: bytes of text that are decoded at once.

    Raises:
        UsageError: the file is no trace of torch.profiler, or damaged; the message has the file and the byte
            or event.
    """
    slices = Slices(path, decode, slice_bytes=slice_bytes, limit_bytes=limit_bytes, progress=progress)
    columns = Columns(path)
    for piece in slices:
        _check_version(slices)
        columns.add(piece.events, piece.text, slices.num_events)
    _check_version(slices)
    host = columns.host()
    device = columns.device()
    memory = columns.memory()
    if not len(host) and not len(device):
        raise _without_activity(slices)
    places = list(columns.places)
    if (device.launch == UNKNOWN).any():
        ends = flows(path, slice_bytes, limit_bytes)
        host = replace(host, correlation=_tied(host.correlation, host.thread, host.start_ns, ends, places))
        device = replace(device, launch=_tied(device.launch, device.place, device.start_ns, ends, places))
    host = replace(host, name=_without_lines(host, columns.names))
    names, order = by_alphabet(columns.names)
    number = order.astype(np.int32)
    host, device = replace(host, name=number[host.name]), replace(device, name=number[device.name])
    host = taken(host, _nesting(host))
    device = taken(device, in_order(device.start_ns, device.end_ns))
    memory = taken(memory, np.argsort(memory.time_ns, kind="stable"))
    found, doubts = split(host, device, memory, places, names)
    notes = _notes(slices, columns) + doubts
    return [_timeline(process, slices, columns, names, notes, is_alone=len(found) == 1) for process in found]


def _timeline(
    process: Process,
    slices: Slices[Any],
    columns: Columns,
    names: list[str],
    notes: tuple[str, ...],
    *,
    is_alone: bool,
) -> Timeline:
    host = process.host
    device = process.device
    memory = process.memory
    threads, number = _threads(host, columns)
    job = _value(slices, "distributedInfo", _Job) or _Job()
    named = [*columns.process_names.get(process.pid, ()), str(process.pid)]
    said = next((int(found[1]) for name in named if (found := _RANK.search(name))), None)
    return Timeline(
        source=str(slices.path),
        recorder="torch.profiler",
        names=names,
        threads=threads,
        host=replace(host, thread=number[host.thread]),
        device=DeviceSpans(*(getattr(device, column.name) for column in fields(DeviceSpans))),
        memory=MemoryMarks(*(getattr(memory, column.name) for column in fields(MemoryMarks))),
        properties=_properties(slices),
        rank=job.rank if is_alone else said,
        world_size=job.world_size,
        clock_base_ns=_clock_base_ns(slices, device.start_ns if len(device.start_ns) else host.start_ns),
        notes=notes,
        missing=_missing(process, bool(columns.foreign)),
    )


def _without_lines(host: HostSpans, names: dict[str, int]) -> NDArray[np.int32]:
    """Return the spans' names without the line of functions that ran when recording began; extends `names`.

    torch names a function called during recording with its first line, one that already ran with its current
    line.
    """
    found = host.name.copy()
    functions, texts = host.kind == HostKind.PYTHON, list(names)
    for thread in np.unique(host.thread[functions]).tolist():
        of_thread = functions & (host.thread == thread)
        running = of_thread & (host.start_ns == host.start_ns[of_thread].min())
        for name in np.unique(host.name[running]).tolist():
            short = _LINE.sub("", texts[name], count=1)
            found[running & (host.name == name)] = names.setdefault(short, len(names))
    return found


def _tied(
    correlation: Ints,
    place: NDArray[np.int32],
    start_ns: Ints,
    ends: dict[tuple[Place, int], int],
    places: list[Place],
) -> Ints:
    """Return the spans' correlation numbers; a span without one gets the number of the flow arrow at the
    span."""
    found = correlation.copy()
    for row in np.flatnonzero(found == UNKNOWN).tolist():
        found[row] = ends.get((places[place[row]], int(start_ns[row])), UNKNOWN)
    return found


def _nesting(host: HostSpans) -> Ints:
    """Sort host spans; of spans that start and end together, the span of the usually enclosing kind comes
    first."""
    outermost_first = np.array([2, 0, 1, 3], dtype=np.int8)  # by HostKind: annotation, Python, operator, call
    rows = np.argsort(outermost_first[host.kind], kind="stable")
    order: Ints = rows[in_order(host.start_ns[rows], host.end_ns[rows])]
    return order


def _threads(host: HostSpans, columns: Columns) -> tuple[list[str], NDArray[np.int32]]:
    """Return a distinct label for each thread, by process and thread; and for each place the number of its
    label."""
    places = list(columns.places)
    is_used = np.bincount(host.thread, minlength=len(places)) > 0
    used = sorted(
        np.flatnonzero(is_used).tolist(), key=lambda place: [(str(type(of)), of) for of in places[place]]
    )
    number = np.full(len(places), UNKNOWN, dtype=np.int32)
    number[used] = np.arange(len(used))
    labels = [columns.thread_names.get(places[place]) or f"thread {places[place][1]}" for place in used]
    if len({places[place][0] for place in used}) > 1:
        labels = [f"{label} of process {places[place][0]}" for label, place in zip(labels, used, strict=True)]
    num = Counter(labels)
    return [
        f"{label} [{places[place][1]}]" if num[label] > 1 else label
        for label, place in zip(labels, used, strict=True)
    ], number


def _clock_base_ns(slices: Slices[Any], start_ns: Ints) -> int | None:
    base_ns = _value(slices, "baseTimeNanoseconds", int) or 0
    is_since_1970 = len(start_ns) > 0 and int(start_ns.min()) >= _SINCE_1970_NS
    if is_since_1970 == (base_ns > 0):  # both times count from 1970, or neither does
        return None
    return base_ns


def _properties(slices: Slices[Any]) -> dict[int, DeviceProperties]:
    return {
        device.id: DeviceProperties(
            device.name,
            None if device.major is None or device.minor is None else (device.major, device.minor),
        )
        for device in _value(slices, "deviceProperties", list[_Device]) or []
    }


def _value(slices: Slices[Any], key: str, kind: type[_Kind]) -> _Kind | None:
    """Return a value of the file besides the events; None if the value is absent or has another type."""
    try:
        return msgspec.json.decode(slices.document[key], type=kind)
    except (KeyError, ValueError, RecursionError):
        return None


def _check_version(slices: Slices[Any]) -> None:
    version = _value(slices, "schemaVersion", int | float | str)  # type: ignore[arg-type]
    # In a later version a field may have another meaning, and figures from this field would look just as
    # plausible.
    if version is not None and version != _SCHEMA_VERSION:
        raise UsageError(
            f"{slices.path} has schemaVersion {version}; this dynotune reads version {_SCHEMA_VERSION}",
            hint="a later dynotune may read it",
        )


def _without_activity(slices: Slices[Any]) -> UsageError:
    if slices.is_cut:
        return UsageError(
            f"{slices.path} is cut short at byte {slices.num_bytes:,}, before its first activity",
            hint="copy it again, or record it again",
        )
    if slices.num_events:
        return UsageError(
            f"{slices.path}: none of its {slices.num_events:,} events is an operator, a CUDA call or "
            "device work",
            hint="give a trace that torch.profiler recorded; tracers of other programs write the same format",
        )
    return UsageError(
        f"{slices.path} is a trace without events",
        hint="the profiler was stopped before its active steps: call prof.step() after each step, wait + "
        "warmup + "
        "active times at least",
    )


def _notes(slices: Slices[Any], columns: Columns) -> tuple[str, ...]:
    notes = []
    if slices.is_cut:
        notes.append(
            f"the file is cut short: it was read up to event {slices.num_events:,}, byte {slices.num_bytes:,}"
        )
    if columns.num_backwards:
        notes.append(f"{columns.num_backwards:,} spans that end before they start were left out")
    if columns.foreign:
        most = ", ".join(f"{category} ({num:,})" for category, num in columns.foreign.most_common(5))
        num_more = len(columns.foreign) - 5
        more = f" and {num_more} more kinds" if num_more > 0 else ""
        notes.append(f"spans of kinds that are not known here were left out: {most}{more}")
    if columns.num_unfinished:
        notes.append(f"{columns.num_unfinished:,} spans without a start or a duration were left out")
    return tuple(notes)


def _missing(process: Process, has_foreign: bool) -> dict[str, str]:
    missing = {}
    if not len(process.device):
        missing["device"] = (
            "no device activity was recorded: the program used none, or the profiler did not trace it"
        )
        if has_foreign:
            missing["device"] = (
                "no activity of a GPU was recorded, and spans of other kinds, which are not read here"
            )
    elif not (process.device.launch != UNKNOWN).any():
        missing["launches"] = "no CUDA call that queued device work was recorded"
    if not (process.host.kind == HostKind.PYTHON).any():
        missing["stacks"] = "no Python functions were recorded; with_stack=True records them"
    if not len(process.memory):
        missing["memory"] = (
            "the allocator was not recorded; profile_memory=True, or --memory of dynotune trace, records it"
        )
    return missing
