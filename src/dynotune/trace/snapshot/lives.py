"""The life of each memory block of one device, and the memory that live blocks and segments take at a time.

The allocator logs an allocation and its release with the size that the program asked for, and a segment with
its own size. Addresses give the allocator's sizes: in the pool of large blocks a remainder of up to 1 MiB is
not split off, so a gap of up to 1 MiB belongs to the block before the gap; all other block sizes are
multiples of 512 bytes (c10/cuda/CUDACachingAllocator.cpp).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dynotune.schema.memory import TermName
from dynotune.schema.trace_summary import Place

GRANULE_BYTES = 512
UNSPLIT_BYTES = 1 << 20
NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Life:
    """One block from its allocation to its release.

    Args:
        size: bytes that the program asked for.
        born: number of the block's allocation among all allocations and releases; -1 if older than the
            history.
        died: number of the block's release; the number of all events if the block outlives the history.
        module: path of the module in whose forward the block was allocated; "" outside of any module.
    """

    address: int
    size: int
    born: int
    died: int
    where: Place = NOWHERE
    module: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """A segment: memory that the allocator reserved from the device.

    Args:
        is_split: whether blocks of any multiple of 512 bytes are split off (small pool, or expandable
            segment).
        is_private: whether the segment is in a private pool, such as a CUDA graph's.
    """

    address: int
    size: int
    is_split: bool = False
    is_private: bool = False


@dataclass(frozen=True, slots=True)
class Lives:
    """The blocks of one device.

    Args:
        num_events: number of allocations and releases in the history.
        segment_events: changes of segments, as (number of block events before the change, sign, range).
        failures: allocations that failed, as (number of block events before the failure, bytes asked for,
            code place).
        unknown: why the history is unusable, so that only the snapshot's own blocks are known; "" if usable.
    """

    device: int
    lives: list[Life]
    num_events: int
    segments: list[Range]
    segment_events: list[tuple[int, int, Range]] = field(default_factory=list)
    failures: list[tuple[int, int, Place]] = field(default_factory=list)
    unknown: str = ""
    _private: list[tuple[int, int]] = field(default_factory=list)

    def peak(self, first: int = 0) -> int:
        """Return the event count, at least `first`, after which all live blocks take the most memory."""
        change = np.zeros(self.num_events + 2, dtype=np.int64)
        for life in self.lives:
            change[life.born + 1] += life.size
            change[min(life.died, self.num_events) + 1] -= life.size
        return first + int(np.cumsum(change)[first:-1].argmax())

    def alive(self, event: int) -> list[Life]:
        """Return blocks that are live after `event` events."""
        return [life for life in self.lives if life.born < event <= life.died]

    def is_private(self, life: Life) -> bool:
        """Tell whether the block lies in a private pool."""
        return any(start <= life.address < start + size for start, size in self._private)

    def room(self, event: int) -> tuple[int, dict[TermName, int]]:
        """Return the reserved bytes after `event` events, and the bytes the program did not ask for, by kind.

        `rounding`: bytes of live blocks beyond the requested bytes. `cache`: segments without live blocks.
        `fragmentation`: free bytes in other segments. `graph-pools`: all bytes of private pools, which count
        in no other kind.
        """
        blocks = sorted((life.address, life.size) for life in self.alive(event))
        starts = [address for address, _ in blocks]
        room: dict[TermName, int] = {"rounding": 0, "cache": 0, "fragmentation": 0, "graph-pools": 0}
        segments = self._segments_at(event)
        for one in segments:
            num_before = bisect_right(starts, one.address - 1)
            num_until = bisect_right(starts, one.address + one.size - 1)
            inside = blocks[num_before:num_until]
            if one.is_private or not inside:
                room["graph-pools" if one.is_private else "cache"] += one.size
                continue
            room["fragmentation"] += one.size
            ends = [address for address, _ in inside[1:]] + [one.address + one.size]
            for (address, size), end in zip(inside, ends, strict=True):
                real = min(max(GRANULE_BYTES, -(-size // GRANULE_BYTES) * GRANULE_BYTES), end - address)
                gap = end - address - real
                real += gap if not one.is_split and gap <= UNSPLIT_BYTES else 0
                room["rounding"] += real - size
                room["fragmentation"] -= real
        return sum(one.size for one in segments), room

    def _segments_at(self, event: int) -> list[Range]:
        """Return the segments after `event` events: the snapshot's segments with all later changes undone."""
        found = list(self.segments)
        for number, sign, one in reversed(self.segment_events):
            if number < event:
                break
            found = _without(found, one) if sign > 0 else [*found, one]
        return found


def _without(ranges: Sequence[Range], gone: Range) -> list[Range]:
    found, end = [], gone.address + gone.size
    for one in ranges:
        one_end = one.address + one.size
        if end <= one.address or one_end <= gone.address:
            found.append(one)
            continue
        for start, stop in ((one.address, gone.address), (end, one_end)):
            if start < stop:
                found.append(Range(start, stop - start, one.is_split, one.is_private))
    return found
