"""The events of torch.profiler's chrome trace, as columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dynotune.trace.readers.chrome_events import NO_ARGS, Event, Id, Place
from dynotune.trace.readers.event_times import EventTimes, nanoseconds
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

_INT = np.int64
_Key = TypeVar("_Key", bound=Hashable)

# Numbers of event categories: up to 9 for kinds of host spans, from 10 on for kinds of device spans and
# others.
_DEVICE_FROM = 10
_MEMORY = 20
_NAMES = 21
_NONE = 22
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
# Categories of spans that repeat other spans, or that belong to the profiler itself.
_NO_ACTIVITY = ("trace", "overhead", "gpu_user_annotation", "cuda_sync", "cuda_profiler_range", "cuda_event")
# Older versions of torch wrote these annotations in the category of operators.
_ANNOTATIONS = ("ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")


class Numbering(dict[_Key, int]):
    """Number keys from 0 in the order in which they first appear."""

    def __missing__(self, key: _Key) -> int:
        self[key] = number = len(self)
        return number


class _Tables(dict[str, int]):
    """Numbers of event categories, by name. Torch versions differ in upper case; unknown categories are not
    read."""

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
        names, places: the values for the numbers in the rows; the `thread` of a host span is also a number of
            a place.
        thread_names, process_names: names of threads and processes in the file; a process may have several
            names.
        foreign: number of spans of unknown categories, such as those of other accelerators, by category.
        num_backwards, num_unfinished: number of spans left out because the end precedes the start, or because
            start or duration is missing.
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
        self._host = [HostSpans(*_empty(_INT, _INT, np.int8, np.int32, np.int32, _INT, _INT, np.bool_))]
        self._device = [
            DeviceRows(*_empty(_INT, _INT, np.int8, np.int32, np.int32, _INT, _INT, _INT, np.int32))
        ]
        self._memory = [MemoryRows(*_empty(_INT, _INT, _INT, np.int32, np.int32))]

    def add(self, events: list[Event], text: memoryview, first: int) -> None:
        """Add the events of one slice of the file's text.

        Args:
            text: the text from which the events were decoded.
            first: number of the first event in the file.

        Raises:
            UsageError: a time is too large for nanoseconds in 64 bits.
        """
        times = EventTimes(self.path, events, text, first)
        tables = self._tables
        table = np.fromiter([tables[event.cat] for event in events], np.int8, len(events))
        is_host, is_device = table < _DEVICE_FROM, (table >= _DEVICE_FROM) & (table < _MEMORY)
        self._add_host(_those(events, is_host), table[is_host], times)
        self._add_device(_those(events, is_device), table[is_device] - _DEVICE_FROM, times)
        self._add_memory(
            [event for event in _those(events, table == _MEMORY) if event.name == "[memory]"], times
        )
        self._add_names(_those(events, table == _NAMES))
        others = (event.cat for event in _those(events, table == _NONE) if event.dur >= 0)
        self.foreign.update(category for category in others if category.lower() not in _NO_ACTIVITY)

    def host(self) -> HostSpans:
        """Return all host spans; may be called once. Annotations that old versions wrote as operators are
        corrected."""
        rows = _taken_up(self._host)
        marks = np.array([name.startswith(_ANNOTATIONS) for name in self.names], dtype=np.bool_)
        if marks.any():
            rows.kind[(rows.kind == HostKind.OPERATOR) & marks[rows.name]] = HostKind.ANNOTATION
        return rows

    def device(self) -> DeviceRows:
        return _taken_up(self._device)

    def memory(self) -> MemoryRows:
        return _taken_up(self._memory)

    def _add_host(self, found: list[Event], kind: NDArray[np.int8], times: EventTimes) -> None:
        found, is_kept, start_ns, end_ns = self._spans(found, times)
        kind = kind[is_kept]
        is_call = kind == HostKind.CALL
        correlation = np.full(len(found), UNKNOWN, dtype=np.int64)
        correlation[is_call] = _correlation(_those(found, is_call))
        sequence, is_backward = _nodes(found, kind == HostKind.OPERATOR)
        ties = correlation, sequence, is_backward
        self._host.append(HostSpans(start_ns, end_ns, kind, self._named(found), self._placed(found), *ties))

    def _add_device(self, found: list[Event], kind: NDArray[np.int8], times: EventTimes) -> None:
        found, is_kept, start_ns, end_ns = self._spans(found, times)
        kind = kind[is_kept]
        args = [event.args or NO_ARGS for event in found]
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

    def _add_memory(self, found: list[Event], times: EventTimes) -> None:
        time_ns, is_known = times.of(found)
        found, time_ns = _those(found, is_known), time_ns[is_known]
        args = [event.args or NO_ARGS for event in found]
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

    def _spans(
        self, found: list[Event], times: EventTimes
    ) -> tuple[list[Event], NDArray[np.bool_], Ints, Ints]:
        """Return the spans among the events, the index of each span's event, and the spans' starts and
        ends."""
        start_ns, is_known = times.of(found)
        duration_us = np.fromiter([event.dur for event in found], np.float64, len(found))
        is_known &= ~np.isnan(duration_us)
        is_kept = is_known & ~(duration_us < 0)
        if not is_kept.all():
            self.num_unfinished += len(found) - int(is_known.sum())
            self.num_backwards += int((is_known & ~is_kept).sum())
            found = _those(found, is_kept)
            start_ns = start_ns[is_kept]
            duration_us = duration_us[is_kept]
        times.check(duration_us, found)
        return found, is_kept, start_ns, start_ns + nanoseconds(duration_us)

    def _named(self, found: list[Event]) -> NDArray[np.int32]:
        names = self.names
        return np.fromiter([names[event.name] for event in found], np.int32, len(found))

    def _placed(self, found: list[Event]) -> NDArray[np.int32]:
        places = self.places
        return np.fromiter([places[event.pid, event.tid] for event in found], np.int32, len(found))


def _taken_up(parts: list[Table]) -> Table:
    """Join the arrays and free them one by one, since all arrays and the result together are the peak of
    memory use."""
    rows = joined(parts)
    parts.clear()
    return rows


def _those(events: list[Event], which: NDArray[np.bool_]) -> list[Event]:
    return list(compress(events, which.tolist()))


def _whole(values: list[Any]) -> Ints:
    """Return the values that are whole numbers, with UNKNOWN in place of other values."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        fits = (value if type(value) is int and -(2**63) <= value < 2**63 else UNKNOWN for value in values)
        return np.fromiter(fits, np.int64, len(values))


def _correlation(found: list[Event]) -> Ints:
    numbers = _whole([(event.args or NO_ARGS).correlation for event in found])
    numbers[numbers <= 0] = UNKNOWN  # CUPTI writes 0 if an event has no correlation
    return numbers


def _nodes(found: list[Event], is_operator: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the number of each operator's autograd node, and whether the operator is of the node's backward
    pass."""
    sequence = np.full(len(found), UNKNOWN, dtype=np.int64)
    is_backward = np.zeros(len(found), dtype=np.bool_)
    args = [event.args or NO_ARGS for event in _those(found, is_operator)]
    sequence[is_operator] = np.maximum(_whole([of.sequence for of in args]), UNKNOWN)
    # torch numbers threads from 1, and writes 0 for operators of a forward pass.
    is_backward[is_operator] = _whole([of.forward_thread for of in args]) > 0
    return sequence, is_backward


def _empty(*types: type[np.generic]) -> list[NDArray[Any]]:
    return [np.empty(0, dtype=of) for of in types]
