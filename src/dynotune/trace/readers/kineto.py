"""Read traces of torch.profiler: its chrome trace, `.json` or `.json.gz`, of torch 1.12 and later.

Times in the file are microseconds, whole or with a fraction, since 1970 or since `baseTimeNanoseconds`.
"""

import re
from collections import Counter
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dynotune.schema.errors import UsageError
from dynotune.trace.readers.columns import Columns, DeviceRows, Id, MemoryRows, Numbering, Place, decode, flows
from dynotune.trace.readers.json_slices import SLICE_BYTES, Progress, Slices
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
    launches,
    taken,
)

_NOBODY = -1
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Process:
    """The spans and memory events of one process.

    Args:
        pid: id of the process; None if the file is of one process, whatever ids the file contains.
        device: device spans; `launch` is the row in `host` of the call that queued the work, UNKNOWN without a call.
    """

    pid: Id
    host: HostSpans
    device: DeviceRows
    memory: MemoryRows


def split(
    host: HostSpans, device: DeviceRows, memory: MemoryRows, places: list[Place], names: list[str]
) -> tuple[list[Process], tuple[str, ...]]:
    """Return the processes that launched device work (one for all if fewer than two did), and notes on lost work.

    Args:
        host, device, memory: rows in order of time.
        places, names: the values for the numbers in the columns `place` and `name`.
    """
    numbers: Numbering[Id] = Numbering()
    pid = np.array([numbers[pid] for pid, _ in places], dtype=np.int32)
    calls = (host.kind == HostKind.CALL) & (host.correlation != UNKNOWN)
    callers = _distinct(pid[host.thread[calls]])
    if len(callers) > 1:
        parts = [taken(host, pid[host.thread] == caller) for caller in callers]
        launch = np.stack([launches(device.launch, part) for part in parts])
        has_launched = (launch != UNKNOWN).any(axis=1)
        if has_launched.sum() > 1:
            chosen = np.flatnonzero(has_launched)
            starts_graph = np.array(["graph" in name.lower() for name in names], dtype=np.bool_)
            owner, notes = _owners(launch[chosen], [parts[i] for i in chosen], device, pid[device.place], starts_graph)
            ids = list(numbers)
            found = [
                Process(
                    pid=ids[callers[i]],
                    host=parts[i],
                    device=taken(replace(device, launch=launch[i]), owner == number),
                    memory=taken(memory, pid[memory.place] == callers[i]),
                )
                for number, i in enumerate(chosen)
            ]
            num_others = len(host) - sum(len(process.host) for process in found)
            if num_others:
                notes += (f"{num_others:,} spans of processes that launched nothing were left out",)
            return found, notes
    return [Process(None, host, replace(device, launch=launches(device.launch, host)), memory)], ()


def _owners(
    launch: NDArray[np.int64],
    parts: list[HostSpans],
    device: DeviceRows,
    group: NDArray[np.int32],
    starts_graph: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the index of the process that queued each span of `device`, or _NOBODY.

    Every process counts its calls from the same number, so calls of several processes may have equal numbers. If the
    calls of one process explain all work of a group (one process id in the file), the group belongs to that process;
    else each device span is assigned separately.
    """
    is_tied = launch != UNKNOWN
    lag_ns = np.full(launch.shape, _NEVER)
    for number, part in enumerate(parts):
        tied = is_tied[number]
        lag_ns[number, tied] = device.start_ns[tied] - part.start_ns[launch[number, tied]]
    owner = np.full(launch.shape[1], _NOBODY, dtype=np.int64)
    num_guesses = 0
    for one in _distinct(group):
        rows = np.flatnonzero(group == one)
        tied = rows[is_tied[:, rows].any(axis=0)]
        if not len(tied):
            continue
        whole = [i for i, part in enumerate(parts) if _explains(launch[i, tied], part, starts_graph)]
        if whole:
            chosen, is_guess = _likeliest(lag_ns[np.ix_(whole, tied)])
            owner[rows] = whole[chosen]
            num_guesses += is_guess * len(tied)
        else:
            owner[tied] = np.where(lag_ns[:, tied] < 0, _NEVER, lag_ns[:, tied]).argmin(axis=0)
            num_guesses += int((is_tied[:, tied].sum(axis=0) > 1).sum())
    notes: tuple[str, ...] = ()
    if num_guesses:
        notes += (f"{num_guesses:,} device activities fit calls of several processes and were given to the likeliest",)
    if num_lost := int((owner == _NOBODY).sum()):
        notes += (f"{num_lost:,} device activities fit no call of any process and were left out",)
    return owner, notes


def _explains(launch: NDArray[np.int64], calls: HostSpans, starts_graph: NDArray[np.bool_]) -> bool:
    """Return whether the calls can have queued all of the work: a call that starts no CUDA graph queues one piece."""
    plain = launch[~starts_graph[calls.name[launch]]]
    return bool((launch != UNKNOWN).all()) and len(_distinct(plain)) == len(plain)


def _likeliest(lag_ns: NDArray[np.int64]) -> tuple[int, bool]:
    """Return the process (row) with the fewest contradictions (work before its call), then the nearest calls."""
    num_contradictions = (lag_ns < 0).sum(axis=1)
    least = np.flatnonzero(num_contradictions == num_contradictions.min())
    return int(least[np.median(lag_ns[least], axis=1).argmin()]), len(least) > 1


def _distinct(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return the distinct non-negative numbers; np.unique would import numpy.ma, which takes longer than this."""
    return np.flatnonzero(np.bincount(numbers))


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
        UsageError: the file is no trace of torch.profiler, or damaged; the message has the file and the byte or event.
    """
    slices = Slices(path, decode, slice_bytes=slice_bytes, limit_bytes=limit_bytes, progress=progress)
    columns = Columns(path)
    for piece in slices:
        _check_version(slices)
        columns.add(piece.events, piece.text, slices.num_events)
    _check_version(slices)
    host, device, memory = columns.host(), columns.device(), columns.memory()
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
    host, device, memory = process.host, process.device, process.memory
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

    torch names a function called during recording with its first line, one that already ran with its current line.
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
    correlation: Ints, place: NDArray[np.int32], start_ns: Ints, ends: dict[tuple[Place, int], int], places: list[Place]
) -> Ints:
    """Return the spans' correlation numbers; a span without one gets the number of the flow arrow at the span."""
    found = correlation.copy()
    for row in np.flatnonzero(found == UNKNOWN).tolist():
        found[row] = ends.get((places[place[row]], int(start_ns[row])), UNKNOWN)
    return found


def _nesting(host: HostSpans) -> Ints:
    """Sort host spans; of spans that start and end together, the span of the usually enclosing kind comes first."""
    outermost_first = np.array([2, 0, 1, 3], dtype=np.int8)  # by HostKind: annotation, Python, operator, call
    rows = np.argsort(outermost_first[host.kind], kind="stable")
    order: Ints = rows[in_order(host.start_ns[rows], host.end_ns[rows])]
    return order


def _threads(host: HostSpans, columns: Columns) -> tuple[list[str], NDArray[np.int32]]:
    """Return a distinct label for each thread, by process and thread; and for each place the number of its label."""
    places = list(columns.places)
    is_used = np.bincount(host.thread, minlength=len(places)) > 0
    used = sorted(np.flatnonzero(is_used).tolist(), key=lambda place: [(str(type(of)), of) for of in places[place]])
    number = np.full(len(places), UNKNOWN, dtype=np.int32)
    number[used] = np.arange(len(used))
    labels = [columns.thread_names.get(places[place]) or f"thread {places[place][1]}" for place in used]
    if len({places[place][0] for place in used}) > 1:
        labels = [f"{label} of process {places[place][0]}" for label, place in zip(labels, used, strict=True)]
    num = Counter(labels)
    return [
        f"{label} [{places[place][1]}]" if num[label] > 1 else label for label, place in zip(labels, used, strict=True)
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
            device.name, None if device.major is None or device.minor is None else (device.major, device.minor)
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
    # In a later version a field may have another meaning, and figures from this field would look just as plausible.
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
            f"{slices.path}: none of its {slices.num_events:,} events is an operator, a CUDA call or device work",
            hint="give a trace that torch.profiler recorded; tracers of other programs write the same format",
        )
    return UsageError(
        f"{slices.path} is a trace without events",
        hint="the profiler was stopped before its active steps: call prof.step() after each step, wait + warmup + "
        "active times at least",
    )


def _notes(slices: Slices[Any], columns: Columns) -> tuple[str, ...]:
    notes = []
    if slices.is_cut:
        notes.append(f"the file is cut short: it was read up to event {slices.num_events:,}, byte {slices.num_bytes:,}")
    if columns.num_backwards:
        notes.append(f"{columns.num_backwards:,} spans that end before they start were left out")
    if columns.foreign:
        most = ", ".join(f"{category} ({num:,})" for category, num in columns.foreign.most_common(5))
        more = f" and {len(columns.foreign) - 5} more kinds" * (len(columns.foreign) > 5)
        notes.append(f"spans of kinds that are not known here were left out: {most}{more}")
    if columns.num_unfinished:
        notes.append(f"{columns.num_unfinished:,} spans without a start or a duration were left out")
    return tuple(notes)


def _missing(process: Process, has_foreign: bool) -> dict[str, str]:
    missing = {}
    if not len(process.device):
        missing["device"] = "no device activity was recorded: the program used none, or the profiler did not trace it"
        if has_foreign:
            missing["device"] = "no activity of a GPU was recorded, and spans of other kinds, which are not read here"
    elif not (process.device.launch != UNKNOWN).any():
        missing["launches"] = "no CUDA call that queued device work was recorded"
    if not (process.host.kind == HostKind.PYTHON).any():
        missing["stacks"] = "no Python functions were recorded; with_stack=True records them"
    if not len(process.memory):
        missing["memory"] = (
            "the allocator was not recorded; profile_memory=True, or --memory of dynotune trace, records it"
        )
    return missing
