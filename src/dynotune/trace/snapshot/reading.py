"""Reads snapshots of torch's caching allocator (`torch.cuda.memory._dump_snapshot`) and says what holds the memory.

Their structure stands in the docstring of `torch.cuda.memory._snapshot`. Nothing of the pickle is run, see
`plain_pickle`. Every figure is defined in docs/reference/trace.md, "Memory snapshots".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynotune.schema.document import convert
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_snapshot import DeviceMemory, History, MemoryCause, MemorySnapshot
from dynotune.trace.snapshot import plain_pickle
from dynotune.trace.snapshot.history import ADDRESS_MASK, Event, Held, Stacks, holders, printable, replayed
from dynotune.trace.snapshot.lives import Lives, Range, lives_of

_WRITE = "Write one with torch.cuda.memory._dump_snapshot(path)."
# A small share of free pieces is normal; below 64 MiB there is nothing to win.
_FRAGMENTED_SHARE = 0.2
_FRAGMENTED_BYTES = 64 << 20
# A larger batch or a first evaluation explains one or two.
_LATE_SEGMENT_ALLOCS = 3

_Bytes = Annotated[int, Meta(ge=0, lt=1 << 56)]


class _Block(msgspec.Struct):
    size: _Bytes
    state: Literal["active_allocated", "active_pending_free", "active_awaiting_free", "inactive"]
    address: int | None = None
    requested_size: _Bytes | None = None
    frames: Any = None


class _Segment(msgspec.Struct):
    address: int
    total_size: _Bytes
    blocks: list[_Block]
    device: Annotated[int, Meta(ge=-1, lt=1 << 16)] = 0
    is_expandable: bool | None = None
    segment_type: str = ""
    segment_pool_id: Any = None


class _Snapshot(msgspec.Struct):
    segments: list[_Segment]
    device_traces: list[list[Event]] = []
    allocator_settings: dict[str, Any] = {}


def load_snapshot(path: Path, *, limit_bytes: int) -> MemorySnapshot:
    """What the snapshot at `path` says of each device.

    Args:
        limit_bytes: larger files are refused. A hostile file can take some fifty times its size in memory.

    Raises:
        UsageError: cannot be read, too large, not a pickle, more than plain data, or not a snapshot.
    """
    found, stacks, allocator_settings = _read(path, limit_bytes)
    devices = [_device(index, segments, events, stacks, path) for index, segments, events in found]
    settings, is_whole = _settings(allocator_settings)
    notes = [] if devices else ["the snapshot holds no memory and no history"]
    return MemorySnapshot(
        file=str(path),
        devices=devices,
        settings=settings,
        causes=causes(devices),
        notes=notes if is_whole else [*notes, "some settings of the allocator are lists and are not shown"],
    )


def load_lives(path: Path, *, limit_bytes: int) -> dict[int, Lives | Unknown]:
    """Each block of the snapshot at `path`, by device; Unknown where its history does not tell.

    Raises:
        UsageError: as `load_snapshot`.
    """
    found, stacks, _ = _read(path, limit_bytes)
    return {index: _lives(index, segments, events, stacks, path) for index, segments, events in found}


def _read(path: Path, limit_bytes: int) -> tuple[list[tuple[int, list[_Segment], list[Event]]], Stacks, dict[str, Any]]:
    """Segments and events of each device, by its number; the reader of their stacks; the allocator's settings."""
    raw = _bytes_of(path, limit_bytes)
    snapshot = _convert(plain_pickle.load(raw, name=str(path)), path, num_bytes=len(raw))
    segments: dict[int, list[_Segment]] = {}
    for segment in snapshot.segments:
        segments.setdefault(segment.device, []).append(segment)
    traces = {index: events for index, events in enumerate(snapshot.device_traces) if events}
    devices = [(at, segments.get(at, []), traces.get(at, [])) for at in sorted(segments.keys() | traces.keys())]
    return devices, Stacks(str(path), len(raw)), snapshot.allocator_settings


def _lives(
    index: int, segments: Sequence[_Segment], events: Sequence[Event], stacks: Stacks, path: Path
) -> Lives | Unknown:
    held = [held for segment in segments for held in _held(segment, stacks)]
    history = replayed(events, held, sum(one.total_size for one in segments), stacks, name=str(path))
    if isinstance(history, Unknown):
        return history
    if isinstance(history.peak, Unknown):
        return history.peak
    ranges = [
        Range(
            one.address & ADDRESS_MASK,
            one.total_size,
            is_split=bool(one.is_expandable) or one.segment_type == "small",
            is_private=isinstance(one.segment_pool_id, tuple | list) and any(one.segment_pool_id),
        )
        for one in segments
    ]
    return lives_of(index, events, held, ranges, stacks)


def causes(devices: Sequence[DeviceMemory]) -> list[MemoryCause]:
    """What in these devices' memory costs room or time, the largest waste first."""
    found = [cause for device in devices for cause in (*_fragmentation(device), *_retries(device))]
    return sorted(found, key=lambda cause: -(cause.share or 0.0))


def _bytes_of(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(limit_bytes + 1)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    if len(raw) > limit_bytes:
        raise UsageError(
            f"{path} is larger than the limit of {limit_bytes:,} bytes.",
            hint="Raise the limit if you trust the file, or record less: _record_memory_history(max_entries=100000).",
        )
    if not raw:
        raise UsageError(f"{path} is empty.", hint=_WRITE)
    return raw


def _convert(data: object, path: Path, *, num_bytes: int) -> _Snapshot:
    """`data` as a snapshot; a bare list is one of segments alone, `torch.cuda.memory_snapshot()`."""
    if isinstance(data, list):
        data = {"segments": data}
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise UsageError(
            f"{path} is a pickle, but no memory snapshot: it has no list of segments.",
            hint=_WRITE,
        )
    # A list can stand in many places and take two bytes in each.
    parts = [*_lists(data.get("device_traces")), *(part.get("blocks") for part in data["segments"] if _is_dict(part))]
    if sum(len(part) for part in parts if isinstance(part, list)) > num_bytes:
        raise UsageError(f"{path} is no memory snapshot: it repeats itself to more than its size can hold.")
    try:
        return convert(data, _Snapshot)
    except ValueError as error:
        raise UsageError(f"{path} is a pickle, but no memory snapshot: {error}.", hint=_WRITE) from error


def _lists(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _settings(found: dict[str, Any]) -> tuple[dict[str, str], bool]:
    """Settings as text, those in a group as `group.name`; and whether these are all."""
    flat: dict[str, object] = {}
    for name, value in found.items():
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    kinds = bool | int | float | str | None
    plain = {printable(name): printable(str(value)) for name, value in flat.items() if isinstance(value, kinds)}
    return plain, len(plain) == len(flat)


def _device(
    index: int, segments: Sequence[_Segment], events: Sequence[Event], stacks: Stacks, path: Path
) -> DeviceMemory:
    active = [block for segment in segments for block in segment.blocks if block.state.startswith("active")]
    inactive = [block for segment in segments for block in segment.blocks if block.state == "inactive"]
    split = [
        block.size
        for segment in segments
        for block in segment.blocks
        if block.state == "inactive" and len(segment.blocks) > 1 and not segment.is_expandable
    ]
    reserved_bytes = sum(segment.total_size for segment in segments)
    told = [segment.is_expandable for segment in segments if segment.is_expandable is not None]
    held = [held for segment in segments for held in _held(segment, stacks)]
    is_sized = all(block.requested_size is not None for block in active)
    return DeviceMemory(
        device=index,
        reserved_bytes=reserved_bytes,
        allocated_bytes=sum(block.size for block in active if block.state == "active_allocated"),
        active_bytes=sum(block.size for block in active),
        requested_bytes=sum(block.requested_size for block in held) if is_sized else None,
        inactive_split_bytes=sum(split),
        fragmentation=sum(split) / reserved_bytes if reserved_bytes else None,
        num_segments=len(segments),
        largest_free_bytes=max((block.size for block in inactive), default=0),
        expandable=any(told) if told else None,
        holders=holders((block.where, block.requested_size) for block in held),
        history=replayed(events, held if is_sized else None, reserved_bytes, stacks, name=str(path)),
    )


def _held(segment: _Segment, stacks: Stacks) -> list[Held]:
    """Active blocks of a segment. Before torch 2.2 they had no address of their own; they follow one another."""
    found, address = [], segment.address
    for block in segment.blocks:
        start = address if block.address is None else block.address
        address += block.size
        if block.state.startswith("active"):
            requested = block.size if block.requested_size is None else block.requested_size
            found.append(Held(start & ADDRESS_MASK, block.size, requested, stacks.place(block.frames)))
    return found


def _fragmentation(device: DeviceMemory) -> list[MemoryCause]:
    share = device.fragmentation
    if share is None or share < _FRAGMENTED_SHARE or device.inactive_split_bytes < _FRAGMENTED_BYTES:
        return []
    return [
        MemoryCause(
            id="fragmentation",
            device=device.device,
            num_bytes=device.inactive_split_bytes,
            share=share,
            claim=f"{share:.0%} of the reserved memory lies free between blocks in use and cannot be given back",
            evidence=[
                f"reserved {device.reserved_bytes:,} bytes in {device.num_segments:,} segments",
                f"active {device.active_bytes:,} bytes",
                f"free in split segments {device.inactive_split_bytes:,} bytes",
                f"largest free block {device.largest_free_bytes:,} bytes",
            ],
        )
    ]


def _retries(device: DeviceMemory) -> list[MemoryCause]:
    history = device.history
    if isinstance(history, Unknown):
        return []
    found = []
    if history.num_flushes or history.num_ooms:
        flushes = "unknown" if history.num_flushes is None else f"{history.num_flushes:,}"
        found.append(
            MemoryCause(
                id="alloc-retries",
                device=device.device,
                claim="allocations found no room, and gave the cache back to the driver or failed",
                where=history.flushed_from if history.num_flushes else history.oom_from,
                evidence=[
                    f"allocations that flushed the cache: {flushes}",
                    f"allocations that failed: {history.num_ooms:,}",
                    _churn(history),
                ],
            )
        )
    elif history.num_late_segment_allocs >= _LATE_SEGMENT_ALLOCS:
        found.append(
            MemoryCause(
                id="alloc-retries",
                device=device.device,
                claim="the cache still grew in the second half of the history",
                evidence=[f"cudaMalloc in its second half: {history.num_late_segment_allocs:,}", _churn(history)],
            )
        )
    if (history.num_empty_caches or 0) > 1:
        found.append(
            MemoryCause(
                id="empty-cache-in-loop",
                device=device.device,
                claim="torch.cuda.empty_cache gave memory back again and again",
                evidence=[f"calls that gave segments back: {history.num_empty_caches:,}", _churn(history)],
            )
        )
    return found


def _churn(history: History) -> str:
    return f"segments allocated {history.num_segment_allocs:,}, given back {history.num_segment_frees:,}"
