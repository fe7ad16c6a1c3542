"""The allocations of recorded steps, run through the model of the allocator: as they were, or at any other batch.

What the allocator holds follows from all that was asked of it since the start: where the first steps put things,
others find their holes. Of two runs with different batches each allocation has the same size in both, or follows the
batch, and the segments that another batch needs come out, with their rounding and holes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from dynotune.memory.alignment import aligned
from dynotune.memory.allocator import SMALL_SEGMENT_BYTES, AllocatorSettings, CachingAllocator, OutOfMemory
from dynotune.schema.memory import DeviceOwners
from dynotune.trace.snapshot import Life, Lives, Range

MOST_EVENTS = 100_000
"""To replay more takes seconds for each batch that is looked at."""
POWERS = (1, 2)
"""What follows the batch does so in proportion; what follows a side of a picture, with its square."""
WORKSPACE_EVENTS = 3
Block = tuple[int, int, int]
"""Born, died and size of one allocation; born is -1 for those that are older than the history."""


def by_batch(
    first: Lives, second: Lives, batches: tuple[int, int], settings: AllocatorSettings
) -> Callable[..., int] | None:
    """Return what the allocator reserves at most for any batch, by the matched blocks of two runs.

    What lies between the same size and proportion in both runs has a part of each. A kernel's workspace, which is
    released at once, is taken to grow like the rest where its size is another or only one run has it: libraries choose
    kernels by the batch, and no two runs tell which.

    Returns:
        A function of the batch, and of a limit that is kept by giving back the cache. It raises OutOfMemory if the
        limit is too low. None where the runs cannot be replayed.
    """
    one, other = _ordered(first), _ordered(second)
    if not one or not other or max(first.num_events, second.num_events) > MOST_EVENTS or settings.unmodelled:
        return None
    found = [(*aligned(one, other, (batches[1] / batches[0]) ** power), power) for power in POWERS]
    partners, _, power = max(found, key=lambda each: each[1])
    # What comes after the last match is of a step that only one of them recorded.
    num = max((at + 1 for at, partner in enumerate(partners) if partner is not None), default=0)
    blocks = [
        (life, _constant_bytes(life, 0 if partner is None else one[partner].size, (batches[1] / batches[0]) ** power))
        for life, partner in zip(other[:num], partners, strict=False)
    ]
    num_events = second.num_events if num == len(other) else max((life.born + 1 for life, _ in blocks), default=0)
    is_expandable = any(segment.is_split and segment.size > SMALL_SEGMENT_BYTES for segment in second.segments)
    settings, emptied = AllocatorSettings(settings.expandable_segments or is_expandable), _emptied(second)

    def reserved_bytes(batch: int, limit_bytes: int | None = None) -> int:
        model = CachingAllocator(settings, limit_bytes=limit_bytes)
        grown = (batch / batches[1]) ** power
        sized = ((life.born, life.died, max(1, round(stays + (life.size - stays) * grown))) for life, stays in blocks)
        _run(model, sized, num_events, emptied)
        return model.peak_reserved_bytes

    return reserved_bytes


def _constant_bytes(life: Life, before: int, ratio: float) -> float:
    """Return how much of a block does not follow the batch, if it had `before` bytes with one smaller by `ratio`."""
    if life.size == before:
        return life.size
    is_workspace = life.died - life.born <= WORKSPACE_EVENTS
    is_both = not is_workspace and before <= life.size <= before * ratio
    return (before * ratio - life.size) / (ratio - 1) if is_both else 0.0


def placed(
    device: DeviceOwners, lives: Lives, settings: AllocatorSettings, *, limit_bytes: int | None
) -> tuple[DeviceOwners, Lives]:
    """Return the same, where the allocator would have put the blocks that a pretended GPU gave their own addresses.

    Args:
        limit_bytes: that the program set itself.
    """
    model = CachingAllocator(settings, limit_bytes=limit_bytes)
    blocks = [(life.born, life.died, life.size) for life in lives.lives]
    try:
        addresses, changes = _run(model, blocks, lives.num_events, _emptied(lives))
    except OutOfMemory:  # what it would take is still to be told
        return placed(device, lives, settings, limit_bytes=None)
    moved = {life.address: address for life, address in zip(lives.lives, addresses, strict=True)}
    owners = [(term, moved.get(address, address), position) for term, address, position in device.owners]

    def reserved(address: int, size: int) -> Range:
        return Range(address, size, is_split=settings.expandable_segments or size <= SMALL_SEGMENT_BYTES)

    return msgspec.structs.replace(device, owners=owners), replace(
        lives,
        lives=[replace(life, address=address) for life, address in zip(lives.lives, addresses, strict=True)],
        segments=[reserved(address, size) for address, size in model.segments()],
        segment_events=[(event, sign, reserved(address, size)) for event, sign, address, size in changes],
    )


def _run(
    model: CachingAllocator, blocks: Iterable[Block], num_events: int, emptied: Sequence[int]
) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Allocate and release in order: the address of each block, and changes of what is reserved, by event."""
    begins: dict[int, tuple[int, int]] = {}
    ends: dict[int, int] = {}
    addresses: list[int] = []
    for name, (born, died, size) in enumerate(blocks):
        ends[died] = name
        addresses.append(model.allocate(name, size) if born < 0 else 0)
        if born >= 0:
            begins[born] = name, size
    changes = []
    given_back = set(emptied)
    for event in range(num_events):
        if event in given_back:
            model.empty_cache()
        if event in begins:
            name, size = begins[event]
            addresses[name] = model.allocate(name, size)
        elif event in ends:
            model.release(ends[event])
        changes += [(event, *change) for change in model.changes]
        model.changes.clear()
    return addresses, changes


def _emptied(lives: Lives) -> list[int]:
    return sorted({number for number, sign, _ in lives.segment_events if sign < 0})


def _ordered(lives: Lives) -> list[Life]:
    """Order by birth; those that are older by death, and by size: another run has other addresses."""
    shared = [life for life in lives.lives if not lives.is_private(life)]
    return sorted(shared, key=lambda life: (life.born, life.died, life.size))
