"""Follow the allocator's events to the life of each memory block: origin, first and last event, and size."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from dynotune.trace.snapshot.allocator_events import ADDRESS_MASK, BLOCKS, SEGMENTS, Event
from dynotune.trace.snapshot.lives import Life, Lives, Range
from dynotune.trace.snapshot.stacks import Stacks

SMALL_SEGMENT_BYTES = 2 << 20
_DISAGREE = (
    "the history and the blocks at its end disagree: events were left out (skip_actions), "
    "or another thread allocated while the snapshot was taken"
)

Held = Sequence[tuple[Life, int]]


def lives_of(
    device: int,
    events: Sequence[Event],
    held: Held,
    segments: list[Range],
    stacks: Stacks,
    *,
    is_sized: bool,
) -> Lives:
    """Return the lives of all blocks; of the snapshot's blocks only, if the history does not lead to them.

    Args:
        held: the snapshot's blocks with their sizes; `is_sized`: whether the snapshot has the requested size
            of each.
    """
    private = sorted((one.address, one.size) for one in segments if one.is_private)
    unknown = _why_unknown(events, is_sized=is_sized)
    found = _followed([] if unknown else events, held, stacks)
    if found is None:
        unknown, found = _DISAGREE, _followed([], held, stacks)
    assert found is not None
    lives, number, segment_events = found
    failures, before = [], 0
    for event in events:
        before += event.action in BLOCKS
        if event.action == "oom":
            failures.append((min(before, number), event.size, stacks.look(event.frames)[0]))
    return Lives(device, lives, number, segments, segment_events, failures, unknown, private)


def _why_unknown(events: Sequence[Event], *, is_sized: bool) -> str:
    actions = {event.action for event in events}
    if len(events) < 2 or not actions & {*BLOCKS, *SEGMENTS, "oom"}:
        return 'the snapshot has no history: record with torch.cuda.memory._record_memory_history("all")'
    if not is_sized:
        return "the snapshot does not tell requested sizes: it is of a torch older than 2.1"
    if not actions & BLOCKS.keys():
        return "the history has no allocations: they were left out with skip_actions"
    if any(event.addr is None for event in events if event.action in BLOCKS):
        return "events have no addresses"
    return ""


def _followed(
    events: Sequence[Event], held: Held, stacks: Stacks
) -> tuple[list[Life], int, list[tuple[int, int, Range]]] | None:
    """Return lives, number of events, and events of segments.

    Return None if the events do not lead to the blocks `held`.
    """
    named = {(event.addr or 0) & ADDRESS_MASK for event in events if event.action in BLOCKS}
    # A block without an event existed all the time, so no other block was allocated at its address.
    kept = sorted((one.address, one.address + size) for one, size in held if one.address not in named)
    starts = [start for start, _ in kept]
    born: dict[int, tuple[int, Event]] = {}
    lives: list[Life] = []
    segment_events: list[tuple[int, int, Range]] = []
    touched: set[int] = set()
    number = 0
    for event in events:
        address = (event.addr or 0) & ADDRESS_MASK
        if (sign := SEGMENTS.get(event.action)) is not None:
            split = event.size <= SMALL_SEGMENT_BYTES or event.action.endswith("map")
            segment_events.append((number, sign, Range(address, event.size, is_split=split)))
        if event.action not in BLOCKS:
            continue
        if event.action == "alloc":
            before = bisect_right(starts, address)
            covered = before > 0 and kept[before - 1][1] > address
            if address in born or covered or bisect_left(starts, address + event.size) > before:
                return None
            born[address] = number, event
        elif address in touched and address not in born:
            return None
        else:
            lives.append(_life(stacks, address, event, born.pop(address, None), number))
        touched.add(address)
        number += 1
    if born.keys() != touched & {one.address for one, _ in held}:
        return None
    lives += [_life(stacks, address, event, (at, event), number) for address, (at, event) in born.items()]
    lives += [replace(one, died=number) for one, _ in held if one.address not in named]
    return lives, number, segment_events


def _life(stacks: Stacks, address: int, event: Event, begun: tuple[int, Event] | None, died: int) -> Life:
    if begun is None:
        return Life(address, event.size, -1, died)
    number, first = begun
    return Life(address, first.size, number, died, *stacks.look(first.frames))
