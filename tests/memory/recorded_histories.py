"""Histories that torch recorded on real GPUs, replayed through the model of its allocator.

What was reserved and allocated before the first recorded event is reckoned back from the snapshot at its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynotune.memory import allocator
from dynotune.memory.allocator import MIB, AllocatorSettings, CachingAllocator
from dynotune.trace.snapshot import plain_pickle

FOLDER = Path(
    os.environ.get("DYNOTUNE_SNAPSHOTS", Path(__file__).parents[2].parent / "shared" / "traces" / "snapshots")
)
_TAKES = {"segment_alloc": 1, "segment_free": -1}


@dataclass(frozen=True)
class Replay:
    """What was recorded beside what the model did.

    Args:
        taken, model_taken: bytes of each segment that was taken, in order.
        segments, model_segments: bytes of the segments at the end, sorted.
        num_placed: allocations that the model put at the address where torch put them.
        peak_bytes, model_peak_bytes: highest reserved memory.
    """

    num_allocations: int
    num_placed: int
    taken: list[int]
    model_taken: list[int]
    segments: list[int]
    model_segments: list[int]
    peak_bytes: int
    model_peak_bytes: int


def replays(folder: Path = FOLDER) -> Iterator[tuple[str, Replay]]:
    for path in sorted(folder.glob("*.pickle")):
        snapshot = plain_pickle.load(path.read_bytes(), name=str(path))
        for index, events in enumerate(snapshot["device_traces"]):
            final = [part for part in snapshot["segments"] if part["device"] == index]
            if any(event["action"] == "segment_alloc" for event in events):
                yield f"{path.stem}-{index}", _replayed(events, final)


def _replayed(events: list[dict[str, Any]], final: list[dict[str, Any]]) -> Replay:
    model = CachingAllocator(AllocatorSettings())
    _begin_with(model, events, final)
    addresses = iter([event["addr"] for event in events if event["action"] == "segment_alloc"])
    # Where the driver puts a segment is not the allocator's to say.
    model._addresses = lambda num_bytes: next(addresses, 1 << 60)  # type: ignore[method-assign]
    taken: list[int] = []
    reserved = peak = model.reserved_bytes
    model.peak_reserved_bytes = reserved
    num = num_placed = 0
    is_emptying = False
    for event in events:
        action = event["action"]
        reserved += _TAKES.get(action, 0) * event["size"]
        peak = max(peak, reserved)
        if action == "alloc":
            before = model.reserved_bytes
            model.allocate(event["addr"], event["size"], event["stream"])
            num += 1
            num_placed += model.live[event["addr"]].address == event["addr"]
            if model.reserved_bytes > before:
                taken.append(model.reserved_bytes - before)
        elif action == "free_completed":
            model.release(event["addr"])
        elif action == "segment_free" and not is_emptying:
            model.empty_cache()
        is_emptying = action == "segment_free"
    return Replay(
        num_allocations=num,
        num_placed=num_placed,
        taken=[event["size"] for event in events if event["action"] == "segment_alloc"],
        model_taken=taken,
        segments=sorted(part["total_size"] for part in final),
        model_segments=sorted(size for _, size in model.segments()),
        peak_bytes=peak,
        model_peak_bytes=model.peak_reserved_bytes,
    )


def _begin_with(model: CachingAllocator, events: list[dict[str, Any]], final: list[dict[str, Any]]) -> None:
    """Give the model the segments and live blocks of the time before the first event."""
    segments = {part["address"]: (part["total_size"], part["stream"]) for part in final}
    live = {}
    for part in final:
        at = part["address"]
        for block in part["blocks"]:
            if block["state"] == "active_allocated":
                live[at] = block.get("requested_size", block["size"]), block["size"]
            at += block["size"]
    for event in reversed(events):
        action, address = event["action"], event.get("addr")
        if action == "segment_alloc":
            del segments[address]
        elif action == "segment_free":
            segments[address] = event["size"], event["stream"]
        elif action == "alloc":
            del live[address]
        elif action == "free_completed":
            live[address] = event["size"], 0
    for address, (size, stream) in segments.items():
        inside = sorted((at, *live[at]) for at in live if address <= at < address + size)
        _adopt(model, address, size, stream, inside)


def _adopt(
    model: CachingAllocator, address: int, size: int, stream: int, live: list[tuple[int, int, int]]
) -> None:
    small = size == 2 * MIB
    pool = model.pool(1 if small else size, stream)
    model.reserved_bytes += size
    pool.segments[address] = size
    at = address
    for (start, requested, known), following in zip(live, [*live, (address + size, 0, 0)][1:], strict=True):
        if start > at:
            pool.free.add(at, start - at)
        room = following[0] - start
        block_size = known or allocator.rounded(requested)
        # Of a large block so little is never split off, nor free by itself.
        block_size = room if not known and not small and room - block_size <= MIB else block_size
        model.live[start] = allocator._Block(pool, start, block_size)
        at = start + block_size
    if at < address + size:
        pool.free.add(at, address + size - at)
