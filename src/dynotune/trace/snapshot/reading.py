"""Read snapshots of torch's caching allocator (`torch.cuda.memory._dump_snapshot`) block by block.

The docstring of `torch.cuda.memory._snapshot` defines a snapshot's structure. No code in the pickle runs, see
`plain_pickle`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynotune.schema import untrusted
from dynotune.schema.document import convert
from dynotune.schema.errors import UsageError
from dynotune.trace.snapshot import plain_pickle
from dynotune.trace.snapshot.allocator_events import ADDRESS_MASK, Event
from dynotune.trace.snapshot.history import lives_of
from dynotune.trace.snapshot.lives import Life, Lives, Range
from dynotune.trace.snapshot.stacks import Stacks

_WRITE = "Write one with torch.cuda.memory._dump_snapshot(path)."
_LARGEST_SUM_BYTES = 1 << 62

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


def load_snapshot(path: Path, *, limit_bytes: int) -> dict[int, Lives]:
    """Return the lives of all memory blocks of the snapshot at `path`, by device.

    Args:
        limit_bytes: largest accepted file in bytes. A hostile file can take some fifty times its size in
            memory.

    Raises:
        UsageError: the file cannot be read, is too large, not a pickle, more than plain data, or not a
            snapshot.
    """
    raw = _bytes_of(path, limit_bytes)
    snapshot = _convert(plain_pickle.load(raw, name=str(path)), path, num_bytes=len(raw))
    segments: dict[int, list[_Segment]] = {}
    for segment in snapshot.segments:
        segments.setdefault(segment.device, []).append(segment)
    traces = {index: events for index, events in enumerate(snapshot.device_traces) if events}
    stacks = Stacks(str(path), len(raw))
    devices = sorted(segments.keys() | traces.keys())
    return {at: _lives(at, segments.get(at, []), traces.get(at, []), stacks, path) for at in devices}


def _lives(
    index: int, segments: Sequence[_Segment], events: Sequence[Event], stacks: Stacks, path: Path
) -> Lives:
    blocks = [block for segment in segments for block in segment.blocks]
    sizes = sum(event.size for event in events) + sum(
        max(block.size, block.requested_size or 0) for block in blocks
    )
    if sizes >= _LARGEST_SUM_BYTES:
        raise UsageError(f"{path} is no memory snapshot: its sizes add up to more than any memory.")
    held = [held for segment in segments for held in _held(segment, stacks)]
    is_sized = all(block.requested_size is not None for block in blocks if block.state.startswith("active"))
    ranges = [
        Range(
            one.address & ADDRESS_MASK,
            one.total_size,
            is_split=bool(one.is_expandable) or one.segment_type == "small",
            is_private=isinstance(one.segment_pool_id, tuple | list) and any(one.segment_pool_id),
        )
        for one in segments
    ]
    return lives_of(index, events, held, ranges, stacks, is_sized=is_sized)


def _bytes_of(path: Path, limit_bytes: int) -> bytes:
    try:
        with untrusted.opened(path) as file:
            raw = file.read(limit_bytes + 1)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    if len(raw) > limit_bytes:
        raise UsageError(
            f"{path} is larger than the limit of {limit_bytes:,} bytes.",
            hint=(
                "Raise the limit if you trust the file, or record less: "
                "_record_memory_history(max_entries=100000)."
            ),
        )
    if not raw:
        raise UsageError(f"{path} is empty.", hint=_WRITE)
    return raw


def _convert(data: object, path: Path, *, num_bytes: int) -> _Snapshot:
    """Return `data` as a snapshot; a list contains only segments, as `torch.cuda.memory_snapshot()` returns
    them."""
    if isinstance(data, list):
        data = {"segments": data}
    if not isinstance(data, dict) or not isinstance(data.get("segments"), list):
        raise UsageError(
            f"{path} is a pickle, but no memory snapshot: it has no list of segments.", hint=_WRITE
        )
    # A hostile pickle can refer to one list in many places, and each reference takes only two bytes.
    traces = data.get("device_traces")
    parts = list(traces) if isinstance(traces, list) else []
    parts += [part.get("blocks") for part in data["segments"] if isinstance(part, dict)]
    if sum(len(part) for part in parts if isinstance(part, list)) > num_bytes:
        raise UsageError(
            f"{path} is not an intact memory snapshot: it refers to more entries than a file of its size can "
            "hold."
        )
    try:
        return convert(data, _Snapshot)
    except ValueError as error:
        raise UsageError(f"{path} is a pickle, but no memory snapshot: {error}.", hint=_WRITE) from error


def _held(segment: _Segment, stacks: Stacks) -> list[tuple[Life, int]]:
    """Return active blocks with their sizes. Before torch 2.2 blocks had no address, but lay one after
    another."""
    found, address = [], segment.address
    for block in segment.blocks:
        start = address if block.address is None else block.address
        address += block.size
        if block.state.startswith("active"):
            requested = block.size if block.requested_size is None else block.requested_size
            life = Life(start & ADDRESS_MASK, requested, -1, 0, stacks.look(block.frames)[0])
            found.append((life, block.size))
    return found
