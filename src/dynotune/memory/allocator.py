"""Model the memory that torch's caching allocator reserves from the device for a sequence of allocations and
releases.

The model follows c10/cuda/CUDACachingAllocator.cpp. Blocks of up to 1 MiB lie in segments of 2 MiB, larger
ones in segments of 20 MiB or, from 10 MiB on, of their own size rounded up to 2 MiB. An allocation takes the
smallest free block of its stream and pool that is large enough, and splits it; a release joins a block with
its free neighbours. Nothing goes back to the device before an allocation would fail.
`garbage_collection_threshold` is not modelled: it acts only where the program has limited its memory.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from typing import NamedTuple

MIB = 1 << 20
_BLOCK = 512
_SMALL = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT = 10 * MIB
_LARGE_STEP = 2 * MIB
_RANGE = _LARGE_SEGMENT << 26
"""Addresses of an expandable segment, of which only the needed part has memory."""
_NO_LIMIT = 1 << 62
_UNMODELLED = ("backend", "max_split_size_mb", "roundup_power2_divisions")


class OutOfMemory(Exception):
    """Error: the device has no room for this many bytes, even after all free memory was returned."""


class AllocatorSettings(NamedTuple):
    """`PYTORCH_ALLOC_CONF`, as far as it changes sizes. `unmodelled`: a setting that this model ignores."""

    expandable_segments: bool = False
    unmodelled: str = ""

    @staticmethod
    def parse(text: str) -> AllocatorSettings:
        """Parse the variable's value; settings without a value there have their default."""
        found = dict(re.findall(r"(\w+)\s*:\s*(\[[^\]]*\]|[^,\s]+)", text))
        other = [f"{name}:{found[name]}" for name in _UNMODELLED if found.get(name, "native") != "native"]
        return AllocatorSettings(found.get("expandable_segments", "").lower() == "true", "".join(other[:1]))


class _Ranges:
    """Ranges of addresses by size. Adjacent ranges merge, except at the `edges` where segments begin."""

    def __init__(self, edges: dict[int, int]) -> None:
        self.by_size: list[tuple[int, int]] = []
        self._edges = edges
        self._sizes: dict[int, int] = {}
        self._begins: dict[int, int] = {}  # keyed by the end

    def size(self, address: int) -> int:
        """Return the bytes of the range that begins at `address`; 0 without such a range."""
        return self._sizes.get(address, 0)

    def begin(self, end: int) -> int:
        """Return the begin of the range that ends at `end`; `end` without such a range."""
        return end if end in self._edges else self._begins.get(end, end)

    def add(self, address: int, size: int) -> int:
        """Add a range, merge it with its neighbours, and return where the merged range begins."""
        end, begin = address + size, self.begin(address)
        if begin != address:
            self.take(begin)
        if end in self._sizes and end not in self._edges:
            end += self.take(end)
        insort(self.by_size, (end - begin, begin))
        self._sizes[begin], self._begins[end] = end - begin, begin
        return begin

    def take(self, address: int) -> int:
        """Remove the range that begins at `address`, and return its bytes."""
        size = self._sizes.pop(address)
        del self._begins[address + size], self.by_size[bisect_left(self.by_size, (size, address))]
        return size


class _Pool:
    """Segments of one stream and size class, by address: their sizes, free ranges, and ranges without
    memory."""

    def __init__(self, small: bool) -> None:
        self.page = SMALL_SEGMENT_BYTES if small else _LARGE_SEGMENT
        self.small = small
        self.segments: dict[int, int] = {}
        self.free, self.unmapped = _Ranges(self.segments), _Ranges(self.segments)

    def room(self, address: int, size: int) -> bool:
        """Return whether `size` bytes from `address` on are free or without memory, so that a block could lie
        there."""
        at = address
        while at - address < size and (more := self.free.size(at) or self.unmapped.size(at)):
            at += more
        return at - address >= size


class _Block(NamedTuple):
    pool: _Pool
    address: int
    size: int


class CachingAllocator:
    """The allocator of one device.

    Args:
        limit_bytes: limit in bytes of all segments together; None for no limit.

    Attributes:
        live: blocks by the name of their allocation.
        changes: of the reserved memory: (1 or -1, address, bytes) of each range that was added or removed.
    """

    def __init__(self, settings: AllocatorSettings | None = None, *, limit_bytes: int | None = None) -> None:
        self.settings = settings or AllocatorSettings()
        self._limit = _NO_LIMIT if limit_bytes is None else limit_bytes
        self._pools: dict[tuple[bool, int], _Pool] = {}
        self._next_address = _LARGE_SEGMENT << 16
        self.live: dict[int, _Block] = {}
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.changes: list[tuple[int, int, int]] = []

    def allocate(self, name: int, num_bytes: int, stream: int = 0) -> int:
        """Allocate a block for `name`, and return the block's address.

        Raises OutOfMemory: the limit leaves no room for the block.
        """
        size = rounded(num_bytes)
        pool = self.pool(size, stream)
        address = self._found(pool, size) or self._fresh(pool, size)
        rest = pool.free.take(address) - size
        if rest >= _BLOCK if pool.small or self.settings.expandable_segments else rest > _SMALL:
            pool.free.add(address + size, rest)
        else:
            size += rest
        self.live[name] = _Block(pool, address, size)
        return address

    def release(self, name: int) -> None:
        pool, address, size = self.live.pop(name)
        pool.free.add(address, size)

    def pool(self, size: int, stream: int) -> _Pool:
        """Return the pool for blocks of this size."""
        small = size <= _SMALL
        return self._pools.setdefault((small, stream), _Pool(small))

    def segments(self) -> list[tuple[int, int]]:
        """Return address and bytes of each reserved stretch, as a snapshot lists them."""
        edges = {address for pool in self._pools.values() for address in pool.segments}
        blocks = [(block.address, block.size) for block in self.live.values()]
        blocks += [(address, size) for pool in self._pools.values() for size, address in pool.free.by_size]
        found: list[tuple[int, int]] = []
        for address, size in sorted(blocks):
            if found and sum(found[-1]) == address and address not in edges:
                found[-1] = found[-1][0], found[-1][1] + size
            else:
                found.append((address, size))
        return found

    def empty_cache(self) -> bool:
        """Return all wholly free memory to the device; the result is whether any memory was free."""
        before = self.reserved_bytes
        for pool in self._pools.values():
            for size, address in list(pool.free.by_size):
                if self.settings.expandable_segments:
                    self._unmap(pool, address, size)
                elif pool.segments.get(address) == size:
                    del pool.segments[address]
                    self._change(-1, address, pool.free.take(address))
        return self.reserved_bytes < before

    # Finding a block

    def _found(self, pool: _Pool, size: int) -> int | None:
        free = pool.free.by_size
        at = bisect_left(free, (size, 0))
        if at == len(free):
            return None

        def grown(at: int) -> int:
            """Return the size to which the free end of an expandable segment can grow."""
            size, address = free[at]
            return size + pool.unmapped.size(address + size)

        while at + 1 < len(free) and grown(at + 1) < grown(at):
            at += 1
        return free[at][1]

    def _fresh(self, pool: _Pool, size: int) -> int:
        """Reserve new memory for a free range, after returning all free memory to the device if necessary."""
        if self.settings.expandable_segments:
            return self._expanded(pool, size)
        num_bytes = pool.page
        if size >= _OWN_SEGMENT:
            num_bytes = -(-size // _LARGE_STEP) * _LARGE_STEP
        if self.reserved_bytes + num_bytes > self._limit:
            self.empty_cache()
        address = self._addresses(num_bytes)
        self._change(1, address, num_bytes)
        pool.segments[address] = num_bytes
        return pool.free.add(address, num_bytes)

    def _expanded(self, pool: _Pool, size: int) -> int:
        """Reserve new memory by mapping pages to the addresses behind a free range."""
        begins = (pool.free.begin(gap) for gap in sorted(gap for _, gap in pool.unmapped.by_size))
        begin = next((begin for begin in begins if pool.room(begin, size)), None)
        if begin is None:
            begin = self._addresses(_RANGE)
            pool.segments[begin] = _RANGE
            pool.unmapped.add(begin, _RANGE)
        while (have := pool.free.size(begin)) < size:
            gap = begin + have
            num_bytes = min(-(-(size - have) // pool.page) * pool.page, pool.unmapped.size(gap))
            if self.reserved_bytes + num_bytes > self._limit and self.empty_cache():
                return self._expanded(pool, size)
            self._change(1, gap, num_bytes)
            if rest := pool.unmapped.take(gap) - num_bytes:
                pool.unmapped.add(gap + num_bytes, rest)
            pool.free.add(gap, num_bytes)
        return begin

    def _addresses(self, num_bytes: int) -> int:
        address = self._next_address
        self._next_address += num_bytes
        return address

    # Memory of the device

    def _change(self, sign: int, address: int, num_bytes: int) -> None:
        if self.reserved_bytes + sign * num_bytes > self._limit:
            raise OutOfMemory(num_bytes)
        self.reserved_bytes += sign * num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.changes.append((sign, address, num_bytes))

    def _unmap(self, pool: _Pool, address: int, size: int) -> None:
        """Return the whole pages of a free range to the device."""
        end = address + size
        first, last = -(-address // pool.page) * pool.page, end // pool.page * pool.page
        if last <= first:
            return
        pool.free.take(address)
        for begin, after in ((address, first), (last, end)):
            if begin < after:
                pool.free.add(begin, after - begin)
        pool.unmapped.add(first, last - first)
        self._change(-1, first, last - first)


def rounded(num_bytes: int) -> int:
    """Return the size of the block for an allocation of `num_bytes`."""
    return max(_BLOCK, -(-num_bytes // _BLOCK) * _BLOCK)
