"""The events of torch.profiler's chrome trace, decoded from slices of the file's text."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dynotune.trace.readers.json_slices import Slices

_FLOWS = ("ac2g", "async_cpu_to_gpu")
_Decoded = TypeVar("_Decoded")

Id = int | str | float | None
Place = tuple[Id, Id]
"""Process and thread as an event names them; for device work, the device's index and the stream."""


class Args(msgspec.Struct, gc=False):
    """Arguments of an event. Only integers are used.

    The fields may have any type, because programs may choose the same argument names.
    """

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
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)


class Event(msgspec.Struct, gc=False):
    """The fields of an event that are read.

    The phase is not read, because in the used categories only whole spans have a `dur`.
    """

    cat: str = ""
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: int | float = nan
    dur: int | float = nan
    args: Args | None = None


class _Written(msgspec.Struct, gc=False):
    """A time as text with all its digits."""

    ts: Decimal = Decimal(0)


class _Flow(msgspec.Struct, gc=False):
    cat: str = ""
    pid: Id = None
    tid: Id = None
    ts: Decimal = Decimal(0)
    id: Any = None


NO_ARGS = Args()
_EVENTS = msgspec.json.Decoder(list[Event])
_WRITTEN = msgspec.json.Decoder(list[_Written])
_FLOW_EVENTS = msgspec.json.Decoder(list[_Flow])


def decode(text: memoryview) -> list[Event]:
    """Decode a JSON list of events. Raises msgspec's errors."""
    return _decoded(_EVENTS, text)


def written_times(text: memoryview) -> list[Decimal]:
    """Return the times (µs) of a JSON list of events, with all their digits. Raises msgspec's errors."""
    return [event.ts for event in _decoded(_WRITTEN, text)]


def flows(path: Path, slice_bytes: int, limit_bytes: int | None) -> dict[tuple[Place, int], int]:
    """Return numbers of flow arrows from calls to device work, by place and start (ns) of an arrow's ends."""
    ends: dict[tuple[Place, int], int] = {}
    decode_flows = partial(_decoded, _FLOW_EVENTS)
    for piece in Slices(path, decode_flows, slice_bytes=slice_bytes, limit_bytes=limit_bytes):
        for event in piece.events:
            if event.cat.lower() in _FLOWS and type(event.id) is int:
                ends[(event.pid, event.tid), round(event.ts * 1000)] = event.id
    return ends


def _decoded(decoder: msgspec.json.Decoder[list[_Decoded]], text: memoryview) -> list[_Decoded]:
    try:
        return decoder.decode(text)
    except (UnicodeDecodeError, msgspec.DecodeError):  # the latter since msgspec 0.23
        legible = bytes(text).decode(errors="replace").encode()
        if legible == text:
            raise
        # The profiler cut a name inside a UTF-8 character.
        return decoder.decode(legible)
