"""A model of torch's caching allocator: what it reserves from the device for a sequence of allocations and releases.

It follows c10/cuda/CUDACachingAllocator.cpp. Blocks of up to 1 MiB lie in segments of 2 MiB, larger ones in segments of
20 MiB or, from 10 MiB on, of their own size rounded up to 2 MiB. An allocation takes the smallest free block of its
stream and pool that is large enough, and splits it; a release joins a block with its free neighbours. Nothing goes back
to the device before an allocation would fail.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
_BLOCK = 512
_SMALL = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT = 10 * MIB
_LARGE_STEP = 2 * MIB
_NO_LIMIT = 1 << 62


class OutOfMemory(Exception):
    """The device has no room for an allocation of so many bytes, after all that is free was given back."""


@dataclass(frozen=True)
class AllocatorSettings:
    """`PYTORCH_ALLOC_CONF`, as far as it changes sizes.

    Args:
        roundup_divisions: by the largest power of two that is not above the size in MiB; 0 rounds to 512 bytes.
        max_split_bytes: blocks of this size and more are not split.
        garbage_collection_threshold: share of the limit above which free segments are given back; 0 for never. Like
            torch, the model looks at it only where the program has limited its memory.
    """

    expandable_segments: bool = False
    max_split_bytes: int = _NO_LIMIT
    roundup_divisions: Mapping[int, int] = field(default_factory=dict)
    garbage_collection_threshold: float = 0.0
    backend: str = "native"

    @staticmethod
    def parse(text: str) -> AllocatorSettings:
        """The settings that a value of the variable says; what it does not name has its default.

        Raises:
            ValueError: a number cannot be read.
        """
        found = dict(re.findall(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,\s]+)", text))
        split = int(found.get("max_split_size_mb", 0))
        return AllocatorSettings(
            expandable_segments=found.get("expandable_segments", "").lower() == "true",
            max_split_bytes=split * MIB if split else _NO_LIMIT,
            roundup_divisions=_divisions(found.get("roundup_power2_divisions", "")),
            garbage_collection_threshold=float(found.get("garbage_collection_threshold", 0)),
            backend=found.get("backend", "native"),
        )


def _divisions(text: str) -> dict[int, int]:
    if not text.startswith("["):
        return {1 << power: int(text) for power in range(16)} if text else {}
    divisions, last = {}, 0
    pairs = dict(re.findall(r"(\d+|>)\s*:\s*(\d+)", text))
    for power in range(16):
        last = int(pairs.get(str(1 << power), last if ">" not in pairs else 0))
        divisions[1 << power] = last
    above = [int(size) for size in pairs if size != ">"]
    for size in divisions if ">" in pairs else ():
        if size > max(above, default=0):
            divisions[size] = int(pairs[">"])
    return divisions


@dataclass(eq=False)
class _Block:
    """Part of a segment. Where it is not `mapped`, as at the end of an expandable one, it has no memory."""

    segment: _Segment
    address: int
    size: int
    free: bool = True
    mapped: bool = True
    before: _Block | None = None
    after: _Block | None = None
    released_at: int = 0


@dataclass(eq=False)
class _Segment:
    pool: _Pool
    address: int
    expandable: bool = False


@dataclass(eq=False)
class _Pool:
    """Free blocks of one stream and kind, by size and address; what has no memory yet, by address."""

    small: bool
    free: list[tuple[int, int, _Block]] = field(default_factory=list)
    unmapped: list[_Block] = field(default_factory=list)

    def add(self, block: _Block) -> None:
        insort(self.free, (block.size, block.address, block))

    def remove(self, block: _Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class CachingAllocator:
    """The allocator of one device.

    Args:
        limit_bytes: that segments may take together; None for no limit.
        limited_by_program: the program set the limit itself, with `set_per_process_memory_fraction`.

    Attributes:
        reserved_bytes, allocated_bytes, requested_bytes: now; and `peak_…`: the highest it was.
        changes: of what is reserved: (1 or -1, address, bytes) of each part that came or went.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        limit_bytes: int | None = None,
        limited_by_program: bool = False,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self._limit = _NO_LIMIT if limit_bytes is None else limit_bytes
        self._collects = limited_by_program and self.settings.garbage_collection_threshold > 0
        self._pools: dict[tuple[bool, int], _Pool] = {}
        self._live: dict[int, tuple[_Block, int]] = {}
        self._next_address = 1 << 40
        self._num_calls = 0
        self.reserved_bytes = self.allocated_bytes = self.requested_bytes = 0
        self.peak_reserved_bytes = 0
        self.num_retries = 0
        self.changes: list[tuple[int, int, int]] = []

    def allocate(self, name: int, num_bytes: int, stream: int = 0) -> int:
        """Give the allocation `name` a block, whose address is returned.

        Raises:
            OutOfMemory: the limit does not allow it.
        """
        size = self.rounded(num_bytes)
        small = size <= _SMALL
        pool = self._pools.setdefault((small, stream), _Pool(small))
        self._num_calls += 1
        block = self._found(pool, size) or self._fresh(pool, size)
        self._split(pool, block, size)
        block.free = False
        self._live[name] = block, num_bytes
        self.allocated_bytes += block.size
        self.requested_bytes += num_bytes
        return block.address

    def release(self, name: int) -> None:
        block, num_bytes = self._live.pop(name)
        self.allocated_bytes -= block.size
        self.requested_bytes -= num_bytes
        block.free = True
        pool = block.segment.pool
        for other in (block.before, block.after):
            if other is not None and other.free and other.mapped:
                pool.remove(other)
                block = _joined(block, other)
        block.released_at = self._num_calls
        pool.add(block)

    def segments(self) -> list[tuple[int, int]]:
        """Address and bytes of each stretch that is reserved, as a snapshot has them."""
        found: list[tuple[int, int]] = []
        last = None
        for block in sorted(self._blocks(), key=lambda block: block.address):
            if last is not None and block.before is last:
                found[-1] = found[-1][0], found[-1][1] + block.size
            else:
                found.append((block.address, block.size))
            last = block
        return found

    def empty_cache(self) -> int:
        """Give back what is wholly free. Gives the bytes."""
        before = self.reserved_bytes
        for pool in self._pools.values():
            for _, _, block in list(pool.free):
                if block.segment.expandable:
                    self._unmap(pool, block)
                elif block.before is None and block.after is None:
                    self._give_back(pool, block)
        return before - self.reserved_bytes

    def rounded(self, num_bytes: int) -> int:
        """The size of the block for so many bytes."""
        if num_bytes < _BLOCK:
            return _BLOCK
        divisions = 0
        if self.settings.roundup_divisions:
            power = max(0, min(15, (num_bytes // MIB).bit_length() - 1)) if num_bytes >= MIB else 0
            divisions = self.settings.roundup_divisions.get(1 << power, 0)
        if divisions > 1 and num_bytes > _BLOCK * divisions:
            floor = 1 << (num_bytes.bit_length() - 1)
            step = floor >> (divisions.bit_length() - 1)
            return num_bytes if floor == num_bytes else -(-num_bytes // step) * step
        return -(-num_bytes // _BLOCK) * _BLOCK

    # Finding a block

    def _found(self, pool: _Pool, size: int) -> _Block | None:
        at = bisect_left(pool.free, (size, 0))
        if at == len(pool.free):
            return None
        if self.settings.expandable_segments:
            # The free end of a segment counts as large as it can grow.
            while at + 1 < len(pool.free) and _grown(pool.free[at + 1][2]) < _grown(pool.free[at][2]):
                at += 1
        block = pool.free[at][2]
        most = self.settings.max_split_bytes
        if (size < most <= block.size) or (size >= most and block.size >= size + _LARGE_SEGMENT):
            return None
        del pool.free[at]
        return block

    def _fresh(self, pool: _Pool, size: int) -> _Block:
        """A block of new memory, for which all that is free goes back to the device if need be."""
        if self._collects:
            self._collect(pool)
        if self.settings.expandable_segments:
            return self._expanded(pool, size)
        segment_size = _segment_bytes(size)
        if self.reserved_bytes + segment_size > self._limit:
            self.num_retries += 1
            self._release_oversized(pool, size)
            if self.reserved_bytes + segment_size > self._limit:
                self.empty_cache()
        segment = _Segment(pool, self._addresses(segment_size))
        self._reserve(segment.address, segment_size, size)
        return _Block(segment, segment.address, segment_size)

    def _release_oversized(self, pool: _Pool, size: int) -> None:
        """With a limit to splitting, one block that was not split goes back first, or several, the largest first."""
        most = self.settings.max_split_bytes
        if most == _NO_LIMIT:
            return
        wanted = max(size, most)
        at = bisect_left(pool.free, (wanted, 0))
        if at < len(pool.free):
            block = pool.free[at][2]
            if block.before is None and block.after is None:
                self._give_back(pool, block)
            return
        released = 0
        for num_bytes, _, block in reversed(list(pool.free)):
            if num_bytes < most or released >= wanted:
                return
            if block.before is None and block.after is None:
                released += num_bytes
                self._give_back(pool, block)

    def _collect(self, pool: _Pool) -> None:
        """Give back free segments, those unused for longest first, until the threshold holds."""
        target = self.reserved_bytes - int(self.settings.garbage_collection_threshold * self._limit)
        whole = [b for _, _, b in pool.free if b.before is None and b.after is None and not pool.small]
        if target <= 0 or not whole:
            return
        ages = [self._num_calls - block.released_at for block in whole]
        mean = sum(ages) / len(ages)
        for age, block in zip(ages, list(whole), strict=True):
            if target > 0 and age >= mean:
                target -= block.size
                self._give_back(pool, block)

    def _reserve(self, address: int, num_bytes: int, asked: int) -> None:
        if self.reserved_bytes + num_bytes > self._limit:
            raise OutOfMemory(asked)
        self._change(1, address, num_bytes)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _change(self, sign: int, address: int, num_bytes: int) -> None:
        self.reserved_bytes += sign * num_bytes
        self.changes.append((sign, address, num_bytes))

    def _addresses(self, num_bytes: int) -> int:
        address = self._next_address
        self._next_address += -(-num_bytes // _LARGE_STEP) * _LARGE_STEP
        return address

    def _give_back(self, pool: _Pool, block: _Block) -> None:
        pool.remove(block)
        self._change(-1, block.address, block.size)

    def _split(self, pool: _Pool, block: _Block, size: int) -> None:
        rest = block.size - size
        if pool.small or self.settings.expandable_segments:
            splits = rest >= _BLOCK
        else:
            splits = size < self.settings.max_split_bytes and rest > _SMALL
        if splits:
            other = _Block(block.segment, block.address + size, rest, released_at=block.released_at)
            _link(block, other, block.after)
            block.size = size
            pool.add(other)

    # Expandable segments: one range of addresses a pool, of which only what is needed has memory

    def _expanded(self, pool: _Pool, size: int) -> _Block:
        end = next((block for block in pool.unmapped if _room(block, size)), None)
        if end is None:
            room = 1 << 50
            segment = _Segment(pool, self._next_address, expandable=True)
            self._next_address += room
            end = _Block(segment, segment.address, room, mapped=False)
            pool.unmapped.append(end)
        block = end.before if end.before is not None and end.before.free else None
        if block is not None and block.size >= size:
            pool.remove(block)
        page = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT
        while block is None or block.size < size:
            end = end if block is None or block.after is None else block.after
            have = 0 if block is None else block.size
            grown = min(-(-(size - have) // page) * page, end.size)
            if self.reserved_bytes + grown > self._limit:
                self.num_retries += 1
                if block is not None and block is not end.before:
                    pool.add(block)
                if not self.empty_cache():
                    raise OutOfMemory(size)
                return self._expanded(pool, size)
            self._reserve(end.address, grown, size)
            block = self._mapped(pool, end, grown)
        return block

    def _mapped(self, pool: _Pool, end: _Block, num_bytes: int) -> _Block:
        """Put memory behind the first bytes of `end`; joined with the free block before."""
        fresh = _Block(end.segment, end.address, num_bytes)
        _link(end.before, fresh, end)
        end.address, end.size = end.address + num_bytes, end.size - num_bytes
        if not end.size:
            _link(fresh, end.after)
            pool.unmapped.remove(end)
        for other in (fresh.before, fresh.after):
            if other is not None and other.free and other.mapped:
                pool.remove(other)
                fresh = _joined(fresh, other)
        return fresh

    def _unmap(self, pool: _Pool, block: _Block) -> None:
        """Give back the whole pages of a free block."""
        page = _SMALL_SEGMENT if pool.small else _LARGE_SEGMENT
        start = block.segment.address
        first = start - (-(block.address - start) // page) * page
        last = start + (block.address + block.size - start) // page * page
        if last <= first:
            return
        pool.remove(block)
        gap = _Block(block.segment, first, last - first, mapped=False)
        parts = [
            _Block(block.segment, block.address, first - block.address),
            gap,
            _Block(block.segment, last, block.address + block.size - last),
        ]
        _link(block.before, *(part for part in parts if part.size), block.after)
        for part in parts:
            if part.size and part.mapped:
                pool.add(part)
        for other in (gap.before, gap.after):
            if other is not None and not other.mapped:
                pool.unmapped.remove(other)
                gap = _joined(gap, other)
        pool.unmapped.append(gap)
        pool.unmapped.sort(key=lambda block: block.address)
        self._change(-1, first, last - first)

    def _blocks(self) -> list[_Block]:
        live = [block for block, _ in self._live.values()]
        return live + [block for pool in self._pools.values() for _, _, block in pool.free]


def _segment_bytes(size: int) -> int:
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _OWN_SEGMENT else -(-size // _LARGE_STEP) * _LARGE_STEP


def _grown(block: _Block) -> int:
    return block.size + (block.after.size if block.after is not None and not block.after.mapped else 0)


def _room(end: _Block, size: int) -> bool:
    """Whether the free blocks from the one before `end` on are large enough together."""
    block = end.before if end.before is not None and end.before.free else end
    found, at = 0, block
    while at is not None and at.free and found < size:
        found, at = found + at.size, at.after  # type: ignore[assignment]
    return found >= size


def _joined(block: _Block, other: _Block) -> _Block:
    """The two neighbours as one, which is the first of them."""
    first, second = (other, block) if block.before is other else (block, other)
    first.size += second.size
    first.free = True
    _link(first, second.after)
    return first


def _link(*blocks: _Block | None) -> None:
    """Make neighbours of these; None stands for the end of a segment."""
    for left, right in itertools.pairwise(blocks):
        if left is not None:
            left.after = right
        if right is not None:
            right.before = left
