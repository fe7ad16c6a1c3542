"""The events of torch.profiler's chrome trace, as columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import compress
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dynotune.schema.errors import UsageError
from dynotune.trace.readers.json_slices import Slices
from dynotune.trace.timeline import (
    UNKNOWN,
    DeviceKind,
    DeviceSpans,
    HostKind,
    HostSpans,
    Ints,
    MemoryMarks,
    Table,
    joined,
)

# Below this, a float64 of microseconds is within half a nanosecond of the decimal number in the file.
_EXACT_BELOW_US = 2.0**43
_LATEST_US = 2.0**52  # the year 2112; the sum of two times up to this one still fits 64 bits of nanoseconds

# Numbers of event categories: up to 9 for kinds of host spans, from 10 on for kinds of device spans and others.
_DEVICE_FROM, _MEMORY, _NAMES, _NONE = 10, 20, 21, 22
_TABLES = {
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "python_function": HostKind.PYTHON,
    "cuda_runtime": HostKind.CALL,
    "cuda_driver": HostKind.CALL,
    "hip_runtime": HostKind.CALL,
    "hip_driver": HostKind.CALL,
    "runtime": HostKind.CALL,
    "driver": HostKind.CALL,
    "kernel": _DEVICE_FROM + DeviceKind.KERNEL,
    "concurrent_kernel": _DEVICE_FROM + DeviceKind.KERNEL,
    "gpu_memcpy": _DEVICE_FROM + DeviceKind.COPY,
    "memcpy": _DEVICE_FROM + DeviceKind.COPY,
    "gpu_memset": _DEVICE_FROM + DeviceKind.SET,
    "memset": _DEVICE_FROM + DeviceKind.SET,
    "cpu_instant_event": _MEMORY,
    "": _NAMES,
}
_FLOWS = ("ac2g", "async_cpu_to_gpu")
# Categories of spans that repeat other spans, or that belong to the profiler itself.
_NO_ACTIVITY = ("trace", "overhead", "gpu_user_annotation", "cuda_sync", "cuda_profiler_range", "cuda_event")
# Older versions of torch wrote these annotations in the category of operators.
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")

Id = int | str | float | None
Place = tuple[Id, Id]
"""Process and thread as an event names them; for device work, the device's index and the stream."""


class _Args(msgspec.Struct, gc=False):
    """Arguments of an event, of any type, since programs may choose the same argument names. Only integers are used."""

    correlation: Any = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    name: Any = None
    labels: Any = None
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are read. The phase is not: in the used categories only whole spans have a `dur`."""

    cat: str = ""
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: int | float = nan
    dur: int | float = nan
    args: _Args | None = None


class _Written(msgspec.Struct, gc=False):
    """A time as text with all its digits."""

    ts: Decimal = Decimal(0)


class _Flow(msgspec.Struct, gc=False):
    cat: str = ""
    pid: Id = None
    tid: Id = None
    ts: Decimal = Decimal(0)
    id: Any = None


_EVENTS = msgspec.json.Decoder(list[Event])
_WRITTEN = msgspec.json.Decoder(list[_Written])
_FLOW_EVENTS = msgspec.json.Decoder(list[_Flow])
_NO_ARGS = _Args()
_INT = np.int64
_Decoded = TypeVar("_Decoded")
_Key = TypeVar("_Key", bound=Hashable)


class Numbering(dict[_Key, int]):
    """Number keys from 0 in the order in which they first appear."""

    def __missing__(self, key: _Key) -> int:
        self[key] = number = len(self)
        return number


class _Tables(dict[str, int]):
    """Numbers of event categories, by name. Torch versions differ in upper case; unknown categories are not read."""

    def __missing__(self, category: str) -> int:
        self[category] = table = _TABLES.get(category.lower(), _NONE)
        return table


@dataclass(frozen=True, slots=True)
class DeviceRows(DeviceSpans):
    """Device spans in the order of the file; `launch` contains the correlation number instead of a row."""

    place: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class MemoryRows(MemoryMarks):
    """Memory events in the order of the file."""

    place: NDArray[np.int32]


class Columns:
    """Collect the events of one file as columns.

    Attributes:
        names, places: the values for the numbers in the rows; the `thread` of a host span is also a number of a place.
        thread_names, process_names: names of threads and processes in the file; a process may have several names.
        foreign: number of spans of unknown categories, such as those of other accelerators, by category.
        num_backwards, num_unfinished: number of spans left out because the end precedes the start, or because start or
        duration is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: Numbering[str] = Numbering()
        self.places: Numbering[Place] = Numbering()
        self.thread_names: dict[Place, str] = {}
        self.process_names: dict[Id, list[str]] = defaultdict(list)
        self.foreign: Counter[str] = Counter()
        self.num_backwards = 0
        self.num_unfinished = 0
        self._tables = _Tables()
        self._host = [HostSpans(*_empty(_INT, _INT, np.int8, np.int32, np.int32, _INT))]
        self._device = [DeviceRows(*_empty(_INT, _INT, np.int8, np.int32, np.int32, _INT, _INT, _INT, np.int32))]
        self._memory = [MemoryRows(*_empty(_INT, _INT, _INT, np.int32, np.int32))]

    def add(self, events: list[Event], text: memoryview, first: int) -> None:
        """Add the events of one slice of the file's text.

        Args:
            text: the text from which the events were decoded.
            first: number of the first event in the file.

        Raises:
            UsageError: a time is too large for nanoseconds in 64 bits.
        """
        times = _Times(self.path, events, text, first)
        tables = self._tables
        table = np.fromiter([tables[event.cat] for event in events], np.int8, len(events))
        is_host, is_device = table < _DEVICE_FROM, (table >= _DEVICE_FROM) & (table < _MEMORY)
        self._add_host(_those(events, is_host), table[is_host], times)
        self._add_device(_those(events, is_device), table[is_device] - _DEVICE_FROM, times)
        self._add_memory([event for event in _those(events, table == _MEMORY) if event.name == "[memory]"], times)
        self._add_names(_those(events, table == _NAMES))
        others = (event.cat for event in _those(events, table == _NONE) if event.dur >= 0)
        self.foreign.update(category for category in others if category.lower() not in _NO_ACTIVITY)

    def host(self) -> HostSpans:
        """Return all host spans; may be called once. Annotations that old versions wrote as operators are corrected."""
        rows = _taken_up(self._host)
        marks = np.array([name.startswith(_ANNOTATIONS) for name in self.names], dtype=np.bool_)
        if marks.any():
            rows.kind[(rows.kind == HostKind.OPERATOR) & marks[rows.name]] = HostKind.ANNOTATION
        return rows

    def device(self) -> DeviceRows:
        return _taken_up(self._device)

    def memory(self) -> MemoryRows:
        return _taken_up(self._memory)

    def _add_host(self, found: list[Event], kind: NDArray[np.int8], times: _Times) -> None:
        found, is_kept, start_ns, end_ns = self._spans(found, times)
        kind = kind[is_kept]
        is_call = kind == HostKind.CALL
        correlation = np.full(len(found), UNKNOWN, dtype=np.int64)
        correlation[is_call] = _correlation(_those(found, is_call))
        self._host.append(HostSpans(start_ns, end_ns, kind, self._named(found), self._placed(found), correlation))

    def _add_device(self, found: list[Event], kind: NDArray[np.int8], times: _Times) -> None:
        found, is_kept, start_ns, end_ns = self._spans(found, times)
        kind = kind[is_kept]
        args = [event.args or _NO_ARGS for event in found]
        # For device work, the file's "process" is the device and the "thread" is the stream.
        device, stream = _whole([of.device for of in args]), _whole([of.stream for of in args])
        device = np.where(device == UNKNOWN, _whole([event.pid for event in found]), device)
        stream = np.where(stream == UNKNOWN, _whole([event.tid for event in found]), stream)
        device[(device < 0) | (device > np.iinfo(np.int32).max)] = UNKNOWN
        is_moving = kind != DeviceKind.KERNEL
        num_bytes = np.full(len(found), UNKNOWN, dtype=np.int64)
        num_bytes[is_moving] = _whole([of.bytes for of in compress(args, is_moving.tolist())])
        names, index = self._named(found), device.astype(np.int32)
        ties = stream, _correlation(found), num_bytes, self._placed(found)
        self._device.append(DeviceRows(start_ns, end_ns, kind, names, index, *ties))

    def _add_memory(self, found: list[Event], times: _Times) -> None:
        time_ns, is_known = times.of(found)
        found, time_ns = _those(found, is_known), time_ns[is_known]
        args = [event.args or _NO_ARGS for event in found]
        on_host = np.array([of.device_type == 0 for of in args], dtype=np.bool_)
        device = np.where(on_host, UNKNOWN, _whole([of.device_id for of in args])).astype(np.int32)
        allocated, reserved = _whole([of.allocated for of in args]), _whole([of.reserved for of in args])
        self._memory.append(MemoryRows(time_ns, allocated, reserved, device, self._placed(found)))

    def _add_names(self, found: list[Event]) -> None:
        for event in found:
            if event.name == "thread_name" and event.args and isinstance(event.args.name, str):
                self.thread_names[event.pid, event.tid] = event.args.name.strip()
            elif event.name in ("process_name", "process_labels") and event.args:
                named = event.args.name if event.name == "process_name" else event.args.labels
                if isinstance(named, str):
                    self.process_names[event.pid].append(named.strip())

    def _spans(self, found: list[Event], times: _Times) -> tuple[list[Event], NDArray[np.bool_], Ints, Ints]:
        """Return the spans among the events, the index of each span's event, and the spans' starts and ends."""
        start_ns, is_known = times.of(found)
        duration_us = np.fromiter([event.dur for event in found], np.float64, len(found))
        is_known &= ~np.isnan(duration_us)
        is_kept = is_known & ~(duration_us < 0)
        if not is_kept.all():
            self.num_unfinished += len(found) - int(is_known.sum())
            self.num_backwards += int((is_known & ~is_kept).sum())
            found, start_ns, duration_us = _those(found, is_kept), start_ns[is_kept], duration_us[is_kept]
        times.check(duration_us, found)
        return found, is_kept, start_ns, start_ns + _nanoseconds(duration_us)

    def _named(self, found: list[Event]) -> NDArray[np.int32]:
        names = self.names
        return np.fromiter([names[event.name] for event in found], np.int32, len(found))

    def _placed(self, found: list[Event]) -> NDArray[np.int32]:
        places = self.places
        return np.fromiter([places[event.pid, event.tid] for event in found], np.int32, len(found))


class _Times:
    """Times of the events of a slice, in whole nanoseconds."""

    def __init__(self, path: Path, events: list[Event], text: memoryview, first: int) -> None:
        self._path, self._events, self._text, self._first = path, events, text, first
        self._written: dict[int, Decimal] = {}

    def of(self, found: list[Event]) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the times (ns) of selected events, 0 for events without a time; and which events have a time."""
        times = [event.ts for event in found]
        times_us = np.fromiter(times, np.float64, len(found))
        is_known = ~np.isnan(times_us)
        self.check(times_us, found)
        if np.abs(times_us).max(initial=0, where=is_known) >= _EXACT_BELOW_US and float in map(type, times):
            if not self._written:
                exact = zip(self._events, _decoded(_WRITTEN, self._text), strict=True)
                self._written = {id(event): exactly.ts for event, exactly in exact}
            written = self._written
            return np.fromiter([round(written[id(event)] * 1000) for event in found], np.int64, len(found)), is_known
        return _nanoseconds(np.where(is_known, times_us, 0.0)), is_known

    def check(self, times_us: NDArray[np.float64], found: list[Event]) -> None:
        """Check the range of all times. Raises UsageError: a time is out of range."""
        beyond = np.flatnonzero(np.abs(times_us) > _LATEST_US)
        if len(beyond):
            index = next(i for i, event in enumerate(self._events) if event is found[beyond[0]])
            raise UsageError(
                f"{self._path}: `traceEvents[{self._first + index}]` has a time beyond {_LATEST_US:.0e} µs",
                hint="times of a chrome trace are microseconds; was it written in another unit?",
            )


def decode(text: memoryview) -> list[Event]:
    """Decode a JSON list of events. Raises msgspec's errors."""
    return _decoded(_EVENTS, text)


def flows(path: Path, slice_bytes: int, limit_bytes: int | None) -> dict[tuple[Place, int], int]:
    """Return numbers of flow arrows from calls to device work, by the place and start (ns) of the arrow's ends."""
    ends: dict[tuple[Place, int], int] = {}
    for piece in Slices(path, partial(_decoded, _FLOW_EVENTS), slice_bytes=slice_bytes, limit_bytes=limit_bytes):
        for event in piece.events:
            if event.cat.lower() in _FLOWS and type(event.id) is int:
                ends[(event.pid, event.tid), round(event.ts * 1000)] = event.id
    return ends


def _decoded(decoder: msgspec.json.Decoder[list[_Decoded]], text: memoryview) -> list[_Decoded]:
    try:
        return decoder.decode(text)
    except UnicodeDecodeError:  # the profiler cut this name inside a UTF-8 character
        return decoder.decode(bytes(text).decode(errors="replace").encode())


def _taken_up(parts: list[Table]) -> Table:
    """Join the arrays and free them one by one, since all arrays and the result together are the peak of memory use."""
    rows = joined(parts)
    parts.clear()
    return rows


def _those(events: list[Event], which: NDArray[np.bool_]) -> list[Event]:
    return list(compress(events, which.tolist()))


def _nanoseconds(times_us: NDArray[np.float64]) -> Ints:
    """Round microseconds to whole nanoseconds, whole and fraction separately, since a float64 product rounds twice."""
    whole = np.floor(times_us)
    fraction_ns = np.rint((times_us - whole) * 1000).astype(np.int64)
    return whole.astype(np.int64) * 1000 + fraction_ns


def _whole(values: list[Any]) -> Ints:
    """Return the values that are whole numbers, with UNKNOWN in place of other values."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        fits = (value if type(value) is int and -(2**63) <= value < 2**63 else UNKNOWN for value in values)
        return np.fromiter(fits, np.int64, len(values))


def _correlation(found: list[Event]) -> Ints:
    numbers = _whole([(event.args or _NO_ARGS).correlation for event in found])
    numbers[numbers <= 0] = UNKNOWN  # CUPTI writes 0 if an event has no correlation
    return numbers


def _empty(*types: type[np.generic]) -> list[NDArray[Any]]:
    return [np.empty(0, dtype=of) for of in types]
