"""The events that torch's caching allocator recorded, replayed: how high memory stood, when, and who held it.

The allocator logs an allocation and its release with the size that the program asked for, and a segment with its own
(c10/cuda/CUDACachingAllocator.cpp). The history may be the last part of a longer one, so levels are reckoned back from
the state at the snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_snapshot import History, Holder, Peak
from dynotune.schema.trace_summary import Place
from dynotune.trace.facts.source_locations import is_of_library

Ints = NDArray[np.int64]
NUM_HOLDERS = 10
ADDRESS_MASK = (1 << 62) - 1
"""Some devices' addresses have the highest bits set; without them they fit int64 and stay distinct."""

MODULE_FILE = "<dynotune module>"
"""File of the functions that the agent calls modules through; their name is the module's path."""
BLOCKS = {"alloc": 1, "free_completed": -1}
SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
# What the allocator does of its own accord between two calls of the program.
_BETWEEN = ("free_completed", "snapshot", "workspace_snapshot", "user_defined")
_TAKING = ("segment_alloc", "segment_map", "oom")
_LARGEST_SUM_BYTES = 1 << 62
_DISAGREE = (
    "the history and the blocks at its end disagree: events were left out (skip_actions), "
    "or another thread allocated while the snapshot was taken"
)


class Event(msgspec.Struct):
    """An entry of `device_traces`; one of "oom" has no address."""

    action: str
    size: Annotated[int, Meta(ge=0)] = 0
    addr: int | None = None
    frames: Any = None
    time_us: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """An active block at the time of the snapshot."""

    address: int
    size: int
    requested_size: int
    where: Place


class Stacks:
    """Places of recorded stacks. Many events share one list, and each list is looked at once.

    Args:
        name: of the file, for errors.
        budget: number of frames that the file can hold at most.
    """

    def __init__(self, name: str, budget: int) -> None:
        self._name, self._budget = name, budget
        # The lists are kept with their answers: else another could get the id of one that is gone.
        self._known: dict[int, tuple[Any, Place, bool, str]] = {}

    def place(self, frames: Any) -> Place:
        """The user's innermost function, else the innermost one of Python; "" where there is none."""
        return self._look(frames)[1]

    def empties_cache(self, frames: Any) -> bool:
        """Whether the stack passes through torch's `empty_cache`."""
        return self._look(frames)[2]

    def module(self, frames: Any) -> str:
        """Path of the innermost module whose forward the stack is in, where the agent recorded it; else ""."""
        return self._look(frames)[3]

    def _look(self, frames: Any) -> tuple[Any, Place, bool, str]:
        if not frames:
            return (None, Place(), False, "")
        if (known := self._known.get(id(frames))) is None:
            known = self._known[id(frames)] = (frames, *self._read(frames))
        return known

    def _read(self, frames: Any) -> tuple[Place, bool, str]:
        innermost, empties, module = Place(), False, ""
        found = None
        for file, line, function in self._fields(frames):
            if file == MODULE_FILE:
                module = module or printable(function)
                continue
            empties |= function == "empty_cache" and is_of_library(file)
            if found is not None or not (file.endswith(".py") or file.startswith("<")):
                continue
            place = Place(function=printable(f"{file}({line}): {function}"))
            innermost = innermost if innermost.function else place
            if not is_of_library(file):
                found = place
        return found or innermost, empties, module

    def _fields(self, frames: Any) -> list[tuple[str, int, str]]:
        try:
            self._budget -= len(frames)
            fields = [(frame["filename"], frame["line"], frame["name"]) for frame in frames]
        except (TypeError, KeyError) as error:
            raise UsageError(
                f"{self._name} is no memory snapshot: a stack holds something else than frames."
            ) from error
        if self._budget < 0 or not all(
            isinstance(file, str) and isinstance(line, int) and isinstance(function, str)
            for file, line, function in fields
        ):
            raise UsageError(f"{self._name} is no memory snapshot: a stack holds something else than frames.")
        return fields


def replayed(
    events: Sequence[Event], held: Sequence[Held] | None, reserved_bytes: int, stacks: Stacks, *, name: str
) -> History | Unknown:
    """What the history of one device says.

    Args:
        events: in the order recorded.
        held: active blocks at the snapshot; None where their requested sizes are not told.
        reserved_bytes: at the snapshot.
    """
    actions = Counter(event.action for event in events)
    if len(events) < 2 or not (actions.keys() & (BLOCKS.keys() | SEGMENTS.keys() | {"oom"})):
        return Unknown('the snapshot has no history: record with torch.cuda.memory._record_memory_history("all")')
    sizes = np.array([event.size for event in events], dtype=object)
    if int(sizes.sum()) >= _LARGEST_SUM_BYTES:
        raise UsageError(f"{name} is no memory snapshot: its sizes add up to more than any memory.")
    sizes = sizes.astype(np.int64)
    times = [event.time_us for event in events if event.time_us is not None]
    reserved = _levels(events, SEGMENTS, sizes, reserved_bytes)
    is_late = _second_half(times, len(events))
    taken = np.array([SEGMENTS.get(event.action, 0) > 0 for event in events])
    flushes, num_empty_caches = _releases(events, stacks)
    failures = Counter(stacks.place(event.frames) for event in events if event.action == "oom")
    return History(
        num_events=len(events),
        duration_s=(times[-1] - times[0]) / 1e6 if len(times) == len(events) else None,
        peak=_peak(events, sizes, held, times, stacks),
        peak_reserved_bytes=int(reserved.max())
        if int(reserved.min()) >= 0
        else Unknown("the history and the reserved memory at its end disagree"),
        num_segment_allocs=actions["segment_alloc"] + actions["segment_map"],
        num_segment_frees=actions["segment_free"] + actions["segment_unmap"],
        num_late_segment_allocs=int((taken & is_late).sum()),
        num_flushes=None if flushes is None else flushes.total(),
        num_empty_caches=num_empty_caches,
        num_ooms=actions["oom"],
        flushed_from=_most(flushes or Counter()),
        oom_from=_most(failures),
    )


def printable(text: str) -> str:
    """`text` without the halves of characters that a pickle can hold and JSON cannot."""
    return text.encode(errors="replace").decode()


def holders(blocks: Iterable[tuple[Place, int]]) -> list[Holder]:
    """The places that hold most, of blocks with their places and requested sizes."""
    held: Counter[Place] = Counter()
    num: Counter[Place] = Counter()
    for where, requested_bytes in blocks:
        held[where] += requested_bytes
        num[where] += 1
    ordered = sorted(held, key=lambda where: (-held[where], where.function))
    return [Holder(where=where, requested_bytes=held[where], num_blocks=num[where]) for where in ordered[:NUM_HOLDERS]]


def _levels(events: Sequence[Event], signs: dict[str, int], sizes: Ints, end_bytes: int) -> Ints:
    """The level before the first event and after each one, reckoned back from the end's."""
    changes = np.array([signs.get(event.action, 0) for event in events], dtype=np.int64) * sizes
    return end_bytes - int(changes.sum()) + np.concatenate(([0], np.cumsum(changes)))


def _second_half(times: Sequence[int], num_events: int) -> NDArray[np.bool_]:
    """By time where every event has one, else by number."""
    if len(times) < num_events:
        return np.arange(num_events) >= num_events / 2
    return np.array(times) - times[0] > (times[-1] - times[0]) / 2


def _peak(
    events: Sequence[Event], sizes: Ints, held: Sequence[Held] | None, times: Sequence[int], stacks: Stacks
) -> Peak | Unknown:
    if held is None:
        return Unknown("the snapshot does not tell requested sizes: it is of a torch older than 2.1")
    numbers = np.array([number for number, event in enumerate(events) if event.action in BLOCKS], dtype=np.int64)
    if not len(numbers):
        return Unknown("the history has no allocations: they were left out with skip_actions")
    if any(events[number].addr is None for number in numbers.tolist()):
        return Unknown("events have no addresses")
    lives = _Lives.of(events, numbers)
    levels = _levels(events, BLOCKS, sizes, sum(block.requested_size for block in held))
    if int(levels.min()) < 0 or lives.disagree(sizes, held):
        return Unknown(_DISAGREE)
    event = int(levels.argmax())
    allocated, older = lives.at(event)
    touched = set(lives.address.tolist())
    return Peak(
        requested_bytes=int(levels[event]),
        event=event,
        at_s=None if len(times) < len(events) else (times[event - 1] - times[0]) / 1e6 if event else 0.0,
        start_bytes=int(levels[0]),
        holders=holders(
            [(stacks.place(events[number].frames), events[number].size) for number in allocated.tolist()]
            + [(Place(), events[number].size) for number in older.tolist()]
            + [(block.where, block.requested_size) for block in held if block.address not in touched]
        ),
    )


@dataclass(frozen=True, slots=True)
class _Lives:
    """Allocations and releases sorted by address, then by number.

    Args:
        number: of the event.
        sign: 1 for an allocation, -1 for a release.
        is_next_same: whether the next row has the same address; one shorter than the others.
    """

    address: Ints
    number: Ints
    sign: Ints
    is_next_same: NDArray[np.bool_]

    @staticmethod
    def of(events: Sequence[Event], numbers: Ints) -> _Lives:
        address = np.array([(events[number].addr or 0) & ADDRESS_MASK for number in numbers.tolist()], dtype=np.int64)
        order = np.lexsort((numbers, address))
        address, numbers = address[order], numbers[order]
        sign = np.array([BLOCKS[events[number].action] for number in numbers.tolist()], dtype=np.int64)
        return _Lives(address, numbers, sign, address[1:] == address[:-1])

    def disagree(self, sizes: Ints, held: Sequence[Held]) -> bool:
        """Whether these cannot be all events that there were until the blocks of the end."""
        if (self.is_next_same & (self.sign[1:] == self.sign[:-1])).any():
            return True
        is_last = ~np.append(self.is_next_same, False)
        alive = np.array(sorted(block.address for block in held), dtype=np.int64)
        ended = np.isin(self.address[is_last], alive) == (self.sign[is_last] > 0)
        if not ended.all():
            return True
        # A block that no event names was there all the time, so nothing was allocated in its place.
        old = sorted((block.address, block.size) for block in held)
        start = np.array([address for address, _ in old], dtype=np.int64)
        kept = ~np.isin(start, self.address)
        start, end = start[kept], start[kept] + np.array([size for _, size in old], dtype=np.int64)[kept]
        fresh = self.sign > 0
        first, last = self.address[fresh], self.address[fresh] + sizes[self.number[fresh]]
        before = np.searchsorted(start, first, side="right")
        covered = np.concatenate(([0], end))[before] > first
        return bool((covered | (np.searchsorted(start, last, side="left") > before)).any())

    def at(self, event: int) -> tuple[Ints, Ints]:
        """Numbers of the allocations alive after `event` events, and of the releases yet to come of older ones."""
        after = np.append(np.where(self.is_next_same, self.number[1:], event), event)
        is_first = ~np.insert(self.is_next_same, 0, False)
        alive = (self.sign > 0) & (self.number < event) & (after >= event)
        older = is_first & (self.sign < 0) & (self.number >= event)
        return self.number[alive], self.number[older]


def _releases(events: Sequence[Event], stacks: Stacks) -> tuple[Counter[Place] | None, int | None]:
    """Places of the allocations that flushed the cache, and the number of calls that emptied it.

    The allocator logs all that one allocation does with one and the same stack, which the snapshot keeps as one list.
    """
    flushes: Counter[Place] = Counter()
    num_empty_caches = 0
    steps = [event for event in events if event.action not in _BETWEEN]
    for number, event in enumerate(steps):
        if SEGMENTS.get(event.action, 0) >= 0:
            continue
        following = steps[number + 1] if number + 1 < len(steps) else None
        is_same = following is not None and following.frames is event.frames
        if following is not None and is_same and SEGMENTS.get(following.action, 0) < 0:
            continue
        if not event.frames:
            return None, None
        if stacks.empties_cache(event.frames):
            num_empty_caches += 1
        elif following is not None and is_same and following.action in _TAKING:
            flushes[stacks.place(event.frames)] += 1
    return flushes, num_empty_caches


def _most(places: Counter[Place]) -> Place:
    return min(places, key=lambda where: (-places[where], where.function), default=Place())
