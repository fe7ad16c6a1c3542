"""The events that torch's caching allocator recorded, and the life of each memory block in this history: size, origin,
first and last event, and segment of the block.

The allocator logs an allocation and its release with the size that the program asked for, and a segment with its own
size. Addresses give the allocator's sizes: in the pool of large blocks a remainder of up to 1 MiB is not split off, so
a gap of up to 1 MiB belongs to the block before the gap; all other block sizes are multiples of 512 bytes
(c10/cuda/CUDACachingAllocator.cpp).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from dynotune.schema.errors import UsageError
from dynotune.schema.memory import TermName
from dynotune.schema.trace_summary import Place
from dynotune.trace.facts.source_files import is_of_library

ADDRESS_MASK = (1 << 62) - 1
"""Some devices' addresses have the highest bits set; without these bits they fit int64 and stay distinct."""

MODULE_FILE = "<dynotune module>"
"""File of the functions through which the agent calls modules; each is named by its module's path."""
BLOCKS = {"alloc": 1, "free_completed": -1}
SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Event(msgspec.Struct):
    """An allocator event, an entry of `device_traces` in the snapshot; an "oom" event has no address."""

    action: str
    size: Annotated[int, Meta(ge=0)] = 0
    addr: int | None = None
    frames: Any = None


class Stacks:
    """Code places of recorded stacks. Many events share one list of frames, and each list is examined once.

    Args:
        name: name of the file, for errors.
        budget: most frames that a file of this size can contain.
    """

    def __init__(self, name: str, budget: int) -> None:
        self._name, self._budget = name, budget
        # The lists of frames are kept with their results: otherwise a new list could get the id of a deleted list.
        self._known: dict[int, tuple[Any, tuple[Place, str]]] = {}

    def look(self, frames: Any) -> tuple[Place, str]:
        """Return the user's innermost function, else the innermost Python function; "" if there is none.

        The second value is the path of the innermost module whose forward pass is in the stack; "" if not recorded.
        """
        if not frames:
            return Place(), ""
        if (known := self._known.get(id(frames))) is None:
            known = self._known[id(frames)] = (frames, self._read(frames))
        return known[1]

    def _read(self, frames: Any) -> tuple[Place, str]:
        innermost, found, module = Place(), None, ""
        for file, line, function in self._fields(frames):
            if file == MODULE_FILE:
                module = module or printable(function)
                continue
            if found is not None or not (file.endswith(".py") or file.startswith("<")):
                continue
            place = Place(function=printable(f"{file}({line}): {function}"))
            innermost = innermost if innermost.function else place
            if not is_of_library(file):
                found = place
        return found or innermost, module

    def _fields(self, frames: Any) -> list[tuple[str, int, str]]:
        try:
            self._budget -= len(frames)
            fields = [(frame["filename"], frame["line"], frame["name"]) for frame in frames]
        except (TypeError, KeyError):
            self._budget = -1
        if self._budget < 0 or not all(
            isinstance(file, str) and isinstance(line, int) and isinstance(function, str)
            for file, line, function in fields
        ):
            raise UsageError(f"{self._name} is no memory snapshot: a stack holds something else than frames.")
        return fields


def printable(text: str) -> str:
    """Return `text` without halves of surrogate pairs, which a pickle can contain but JSON cannot."""
    return text.encode(errors="replace").decode()


GRANULE_BYTES = 512
UNSPLIT_BYTES = 1 << 20
NOWHERE = Place()
SMALL_SEGMENT_BYTES = 2 << 20
_DISAGREE = (
    "the history and the blocks at its end disagree: events were left out (skip_actions), "
    "or another thread allocated while the snapshot was taken"
)


@dataclass(frozen=True, slots=True)
class Life:
    """One block from its allocation to its release.

    Args:
        size: bytes that the program asked for.
        born: number of the block's allocation among all allocations and releases; -1 if older than the history.
        died: number of the block's release; the number of all events if the block outlives the history.
        module: path of the module in whose forward the block was allocated; "" outside of any module.
    """

    address: int
    size: int
    born: int
    died: int
    where: Place = NOWHERE
    module: str = ""


Held = Sequence[tuple[Life, int]]


@dataclass(frozen=True, slots=True)
class Range:
    """A segment: memory that the allocator reserved from the device.

    Args:
        is_split: whether blocks of any multiple of 512 bytes are split off (small pool, or expandable segment).
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
        failures: allocations that failed, as (number of block events before the failure, bytes asked for, code place).
        unknown: why the history is unusable, so that only the snapshot's own blocks are known; "" if it is usable.
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
        """Return the event count, at least `first`, after which the live blocks of all pools take the most memory."""
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
        """Return the reserved bytes after `event` events, and the bytes that the program did not ask for, by kind.

        `rounding`: bytes of live blocks beyond the requested bytes. `cache`: segments without live blocks.
        `fragmentation`: free bytes in other segments. `graph-pools`: all bytes of private pools, which count in no
        other kind.
        """
        blocks = sorted((life.address, life.size) for life in self.alive(event))
        starts = [address for address, _ in blocks]
        room: dict[TermName, int] = {"rounding": 0, "cache": 0, "fragmentation": 0, "graph-pools": 0}
        segments = self._segments_at(event)
        for one in segments:
            inside = blocks[bisect_right(starts, one.address - 1) : bisect_right(starts, one.address + one.size - 1)]
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


def lives_of(
    device: int, events: Sequence[Event], held: Held, segments: list[Range], stacks: Stacks, *, is_sized: bool
) -> Lives:
    """Return the lives of all blocks; of the snapshot's blocks only, if the history does not lead to the snapshot.

    Args:
        held: the snapshot's blocks with their sizes; `is_sized`: whether the snapshot has the requested size of each.
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
    """Return lives, number of events, and events of segments; None if the events do not lead to the blocks `held`."""
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
