"""The allocations of the recorded steps at any batch, run through the model of the allocator.

Two runs with different batches allocate and release in the same order where nothing depends on data. Each allocation is
then a constant and so much a sample, and the segments that another batch needs follow, with their rounding and holes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynotune.memory.allocator import AllocatorSettings, CachingAllocator
from dynotune.trace.snapshot import Life, Lives

MOST_EVENTS = 100_000
"""To replay more takes seconds for each batch that is looked at."""
SMALL_SEGMENT_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Sequence:
    """Blocks of two runs, matched.

    Args:
        blocks: (born, died, size in the first run, size in the second), born -1 for those older than the history.
    """

    batches: tuple[int, int]
    num_events: int
    blocks: list[tuple[int, int, int, int]]
    is_expandable: bool

    @staticmethod
    def of(first: Lives, second: Lives, batches: tuple[int, int]) -> Sequence | None:
        """Match the blocks of two runs; None where they differ in more than sizes, or are too many."""
        one, other = _ordered(first), _ordered(second)
        same = [(life.born, life.died) for life in one] == [(life.born, life.died) for life in other]
        if not same or first.num_events > MOST_EVENTS:
            return None
        # What is older lies as it was once allocated: in the order of addresses, more or less.
        pairs = sorted(zip(one, other, strict=True), key=lambda pair: (pair[0].born, pair[0].address))
        blocks = [(a.born, a.died, a.size, b.size) for a, b in pairs]
        is_expandable = any(segment.is_split and segment.size > SMALL_SEGMENT_BYTES for segment in first.segments)
        return Sequence(batches, first.num_events, blocks, is_expandable)

    def reserved_bytes(self, batch: int) -> int:
        """What the allocator would have reserved at most."""
        allocator = CachingAllocator(AllocatorSettings(expandable_segments=self.is_expandable))
        share = (batch - self.batches[0]) / (self.batches[1] - self.batches[0])
        begins: dict[int, tuple[int, int]] = {}
        ends: dict[int, int] = {}
        for name, (born, died, first, second) in enumerate(self.blocks):
            size = max(1, round(first + share * (second - first)))
            ends[died] = name
            if born < 0:
                allocator.allocate(name, size)
            else:
                begins[born] = name, size
        for event in range(self.num_events):
            if event in begins:
                allocator.allocate(*begins[event])
            elif event in ends:
                allocator.release(ends[event])
        return allocator.peak_reserved_bytes


def _ordered(lives: Lives) -> list[Life]:
    """By birth; older ones by death, and those that outlive the history by size: another run has other addresses."""
    shared = [life for life in lives.lives if not lives.is_private(life)]
    return sorted(shared, key=lambda life: (life.born, life.died, life.size))
