"""Replay the allocations of recorded steps in the model of the allocator: as recorded, or at any other batch.

The allocator's memory depends on all allocations since the start, because the first steps leave the holes
that later ones fill. In two runs with different batches, each allocation has the same size or grows with the
batch; so the segments for another batch follow, with their rounding and holes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dynotune.memory.allocator import SMALL_SEGMENT_BYTES, AllocatorSettings, CachingAllocator, OutOfMemory
from dynotune.schema.memory import DeviceOwners
from dynotune.trace.snapshot import Life, Lives, Range

MOST_EVENTS = 100_000
"""Replaying more events takes seconds for each predicted batch."""
POWERS = (1, 2)
"""Powers of growth with the argument: in proportion for a batch, with the square for an image's side."""
WORKSPACE_EVENTS = 3
MemoryBlock = tuple[int, int, int]
"""First event, last event and size of an allocation; the first is -1 for allocations older than the
history."""
Array = NDArray[Any]
MOST_DRIFT = 300
"""Largest shift between the allocations of two runs, in addition to the difference of their numbers."""
ROUNDING_BYTES = 512
GAP, SAME_SIZE, GROWN, OTHER, SAME_SPAN = -1.0, 3.0, 1.0, -1.0, 0.5
"""Scores: for leaving one out; for an equal or proportional size, one in between, any other; for an equal
life span."""
DIAGONAL, UP, LEFT = 0, 1, 2


def by_batch(
    first: Lives, second: Lives, batches: tuple[int, int], settings: AllocatorSettings
) -> Callable[..., int] | None:
    """Return a function for the most that the allocator reserves at any batch, from the matched blocks of two
    runs.

    A block that grows, but less than the batch, has a constant and a growing part. A kernel's workspace,
    which is released at once, is assumed to grow with the batch if its size differs or only one run has it:
    libraries choose kernels by the batch, which two runs cannot show.

    Returns:
        A function of the batch, and of a limit that the model keeps by emptying its cache. The function
        raises OutOfMemory if the limit is too low. None if the runs cannot be replayed.
    """
    one, other = _ordered(first), _ordered(second)
    if not one or not other or max(first.num_events, second.num_events) > MOST_EVENTS or settings.unmodelled:
        return None
    found = [(*aligned(one, other, (batches[1] / batches[0]) ** power), power) for power in POWERS]
    partners, _, power = max(found, key=lambda each: each[1])
    # Allocations after the last match are of a step that only one run recorded.
    num = max((at + 1 for at, partner in enumerate(partners) if partner is not None), default=0)
    blocks = [
        (
            life,
            _constant_bytes(
                life, 0 if partner is None else one[partner].size, (batches[1] / batches[0]) ** power
            ),
        )
        for life, partner in zip(other[:num], partners, strict=False)
    ]
    num_events = (
        second.num_events if num == len(other) else max((life.born + 1 for life, _ in blocks), default=0)
    )
    is_expandable = any(
        segment.is_split and segment.size > SMALL_SEGMENT_BYTES for segment in second.segments
    )
    settings, emptied = AllocatorSettings(settings.expandable_segments or is_expandable), _emptied(second)

    def reserved_bytes(batch: int, limit_bytes: int | None = None) -> int:
        model = CachingAllocator(settings, limit_bytes=limit_bytes)
        grown = (batch / batches[1]) ** power
        sized = (
            (life.born, life.died, max(1, round(stays + (life.size - stays) * grown)))
            for life, stays in blocks
        )
        _run(model, sized, num_events, emptied)
        return model.peak_reserved_bytes

    return reserved_bytes


def _constant_bytes(life: Life, before: int, ratio: float) -> float:
    """Return the constant part of a block that had `before` bytes with a batch smaller by the factor
    `ratio`."""
    if life.size == before:
        return life.size
    is_workspace = life.died - life.born <= WORKSPACE_EVENTS
    is_both = not is_workspace and before <= life.size <= before * ratio
    return (before * ratio - life.size) / (ratio - 1) if is_both else 0.0


def placed(
    device: DeviceOwners, lives: Lives, settings: AllocatorSettings, *, limit_bytes: int | None
) -> tuple[DeviceOwners, Lives]:
    """Move the blocks of a pretended GPU, which have arbitrary addresses, to where the allocator would place
    them.

    Args:
        limit_bytes: limit that the program set for itself.
    """
    model = CachingAllocator(settings, limit_bytes=limit_bytes)
    blocks = [(life.born, life.died, life.size) for life in lives.lives]
    try:
        addresses, changes = _run(model, blocks, lives.num_events, _emptied(lives))
    except OutOfMemory:  # the memory that it would need is still wanted
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
    model: CachingAllocator, blocks: Iterable[MemoryBlock], num_events: int, emptied: Sequence[int]
) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Allocate and release in order; return each block's address, and the changes of reserved memory by
    event."""
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
    """Order by birth, and blocks older than the history by death and size, as addresses differ between
    runs."""
    shared = [life for life in lives.lives if not lives.is_private(life)]
    return sorted(shared, key=lambda life: (life.born, life.died, life.size))


def aligned(first: Sequence[Life], second: Sequence[Life], ratio: float) -> tuple[list[int | None], float]:
    """Align the allocations of two runs.

    Args:
        first, second: in order of birth.
        ratio: factor by which sizes grow that depend on the batch.

    Returns:
        For each of `second` the index of its partner in `first`, None without one; and the score of the
        alignment.
    """
    num_first, num_second = len(first), len(second)
    width = 2 * (MOST_DRIFT + abs(num_first - num_second)) + 1
    size, span = _columns(first), _columns(second)
    rows: list[tuple[int, Array]] = []
    best: Array = np.empty(0)
    begin = 0
    for row in range(num_first + 1):
        at = max(0, min(num_second, row * num_second // max(1, num_first)) - width // 2)
        columns = np.arange(at, min(num_second, at + width - 1) + 1)
        if row == 0:
            scores, steps = GAP * columns, np.full(len(columns), LEFT, dtype=np.int8)
        else:
            pair = np.maximum(columns - 1, 0)
            scored = _scores(size[:, row - 1], span[:, pair], ratio)
            diagonal = np.where(columns > 0, _at(best, pair - begin) + scored, -np.inf)
            up = _at(best, columns - begin) + GAP
            scores, steps = np.maximum(diagonal, up), np.where(diagonal >= up, DIAGONAL, UP).astype(np.int8)
            # Leaving out several of `second` in a row is a running maximum.
            left = np.maximum.accumulate(scores - GAP * columns) + GAP * columns
            steps[left > scores] = LEFT
            scores = left
        rows.append((at, steps))
        best, begin = scores, at
    partners: list[int | None] = [None] * num_second
    row, column = num_first, num_second
    while row > 0 and column > 0:
        at, steps = rows[row]
        step = steps[column - at] if 0 <= column - at < len(steps) else UP
        if step == DIAGONAL:
            partners[column - 1] = row - 1
        row, column = row - (step != LEFT), column - (step != UP)
    return partners, float(best[-1])


def _columns(lives: Sequence[Life]) -> Array:
    return np.array([(life.size, life.died - life.born) for life in lives], dtype=float).reshape(-1, 2).T


def _at(values: Array, index: Array) -> Array:
    inside = (index >= 0) & (index < len(values))
    found: Array = np.where(inside, values[np.clip(index, 0, max(0, len(values) - 1))], -np.inf)
    return found


def _scores(one: Array, others: Array, ratio: float) -> Array:
    size, span = one
    sizes, spans = others
    same = (sizes == size) | (np.abs(sizes - size * ratio) <= ROUNDING_BYTES)
    between = (sizes >= size) & (sizes <= size * ratio)
    found: Array = np.where(same, SAME_SIZE, np.where(between, GROWN, OTHER)) + SAME_SPAN * (spans == span)
    return found
