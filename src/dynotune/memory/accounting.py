"""Divide a process's memory into terms that add up to the driver's count, both at the peak and between two
steps.

Each block of the history gets one memory term: the term of the tensor that the agent found at the block's
address, or else a term by time and place of the allocation. Rounding, cache and fragments follow from
addresses. The driver's count beyond the allocator is the context with loaded modules, and memory that
libraries such as NCCL allocate themselves.
"""

import re
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynotune.schema.facts import Unknown
from dynotune.schema.memory import ORDER, DeviceOwners, Moment, Owners, RankMemory, Term, TermName
from dynotune.text import words
from dynotune.trace.snapshot import Life, Lives

NUM_PARTS, MOST_BLOCKS = 12, 512
_IN_A_LIST = re.compile(r"\.\d+(?=\.|$)")
# If two tensors share a block, such as a batch that a module also keeps, the earlier term gets the block.
PRIORITY: tuple[TermName, ...] = (
    "weights",
    "gradients",
    "optimizer",
    "buffers",
    "inputs",
    "workspaces",
    "kept",
)
Blocks = list[tuple[Life, TermName]]


def account(
    device: DeviceOwners, owners: Owners, lives: Lives | None, *, process_bytes: int | Unknown, **known: Any
) -> RankMemory:
    """Return the memory of one process on one device.

    Args:
        process_bytes: the driver's count for the process at the time of the snapshot.
        known: further fields of `RankMemory`.
    """
    told: dict[str, Any] = {
        "device": device.device,
        "total_bytes": device.total_bytes,
        "trains": owners.trains,
        "num_samples": owners.num_samples,
        "step_s": statistics.median(owners.step_s),
        "facts": owners.facts,
        "notes": owners.notes,
        **known,
    }
    if lives is None or lives.unknown:
        reason = Unknown("the snapshot does not contain this device" if lives is None else lives.unknown)
        return RankMemory(**told, peak=reason, steady=reason)
    offset = device.num_events - lives.num_events
    marks = _Marks(
        [max(0, position - offset) for _, position in device.marks], [name for name, _ in device.marks]
    )
    blocks = _blocks(device, lives, offset, marks, trains=owners.trains)
    outside = process_bytes if isinstance(process_bytes, Unknown) else process_bytes - device.reserved_bytes
    if not isinstance(outside, Unknown) and outside < 0:
        outside = Unknown("the driver counts less for the process than its allocator had reserved")
    if any(position < offset for _, position in device.marks):
        told["notes"] = [
            *told["notes"],
            "the allocator's history was full: the peak is that of its last part",
        ]
    told["facts"] = {**told["facts"], **_facts(lives, blocks, marks)}
    return RankMemory(**told, **_moments(lives, blocks, marks.begin, outside))


def of_snapshot(lives: Lives) -> RankMemory:
    """Return the contents of a device's snapshot: bytes by source line, at the peak and at the end of its
    history."""
    size, notes = words.num_bytes, []
    for event, asked, where in lives.failures[-3:]:
        _, room = lives.room(event)
        held = sum(life.size for life in lives.alive(event))
        notes.append(
            f"{size(asked)} was asked for by {where.function or 'an unknown line'} and not given: "
            f"{size(held)} was in "
            f"live tensors, {size(room['cache'])} in the cache, {size(room['fragmentation'])} free in pieces"
        )
    if given_back := sum(sign < 0 for _, sign, _ in lives.segment_events):
        notes.append(
            f"memory was given back to the driver {given_back} times: by empty_cache(), or for want of room"
        )
    if lives.unknown:
        notes.append(f"the peak is that of the snapshot's moment: {lives.unknown}")
    blocks: Blocks = [(life, "blocks") for life in lives.lives]
    alone = Unknown("a snapshot knows torch's allocator alone")
    return RankMemory(device=lives.device, notes=notes, **_moments(lives, blocks, 0, alone))


def _moments(lives: Lives, blocks: Blocks, begin: int, outside: int | Unknown) -> dict[str, Any]:
    peak = _moment(lives, blocks, lives.peak(begin), outside)
    return {"peak": peak, "steady": _moment(lives, blocks, lives.num_events, outside)}


@dataclass(frozen=True, slots=True)
class _Marks:
    """The agent's phase marks in order, each with the number of events of the history before the mark."""

    at: list[int]
    names: list[str]

    @property
    def begin(self) -> int:
        return self.at[0] if self.at else 0

    def phase(self, event: int) -> str:
        """Return the phase at an event, the last mark before; `inputs` if the step's first forward pass comes
        next."""
        following = bisect_right(self.at, event)
        name = self.names[max(0, following - 1)] if self.names else ""
        is_first = name in ("begin", "step") and self.names[following : following + 1] == ["forward"]
        return "inputs" if is_first else name

    def outlives(self, life: Life) -> bool:
        """Tell whether a block from a forward pass is still alive at the end of that pass."""
        following = bisect_right(self.at, life.born)
        while following < len(self.at) and self.names[following] == "forward":
            following += 1  # a module called from within another module
        return following < len(self.at) and life.died >= self.at[following]


def _blocks(device: DeviceOwners, lives: Lives, offset: int, marks: _Marks, *, trains: bool) -> Blocks:
    """Return each memory block with its memory term."""
    at: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, life in enumerate(lives.lives):
        at[life.address].append((life.born, index))
    for rows in at.values():
        rows.sort()
    found: dict[int, TermName] = {}
    for term, address, position in sorted(device.owners, key=lambda owner: PRIORITY.index(owner[0])):
        event = max(0, position - offset)
        rows = at.get(address & ((1 << 62) - 1), [])
        row = bisect_right(rows, (event - 1, 1 << 62)) - 1
        if row >= 0 and lives.lives[rows[row][1]].died >= event:
            found.setdefault(rows[row][1], term)
    return [
        (life, found.get(index) or _unowned(life, marks, trains)) for index, life in enumerate(lives.lives)
    ]


def _unowned(life: Life, marks: _Marks, trains: bool) -> TermName:
    """Choose a term by the time of allocation, for a block without a tensor that Python holds between
    steps."""
    if life.born < marks.begin:
        return "unknown"
    phase = marks.phase(life.born)
    if phase == "update":
        return "temporary"
    if phase == "forward":
        return "temporary" if trains and not marks.outlives(life) else "activations"
    if not life.module and not life.where.function:
        return "temporary"  # a device's backward pass runs in a thread of its own, without Python
    return "inputs" if not life.module and phase == "inputs" else "activations"


def _of_lists(modules: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of modules that are members of module lists, each with all modules below it."""
    held: Counter[str] = Counter()
    for name, size in modules.items():
        for match in _IN_A_LIST.finditer(name):
            held[name[: match.end()]] += size
    return dict(held.most_common(MOST_BLOCKS))


def _moment(lives: Lives, blocks: Blocks, event: int, outside: int | Unknown) -> Moment:
    reserved, room = lives.room(event)
    sizes: Counter[TermName] = Counter()
    modules: dict[TermName, Counter[str]] = defaultdict(Counter)
    lines: dict[TermName, Counter[str]] = defaultdict(Counter)
    for life, term in blocks:
        if not life.born < event <= life.died or lives.is_private(life):
            continue
        sizes[term] += life.size
        if life.module:
            modules[term][life.module] += life.size
        if life.where.function:
            lines[term][life.where.function] += life.size
    requested = sizes.total()
    sizes.update(room)
    sizes["unknown"] += reserved - sizes.total()  # 0, unless addresses contradict each other
    if not isinstance(outside, Unknown):
        sizes["context"] = outside
    return Moment(
        process_bytes=outside if isinstance(outside, Unknown) else outside + reserved,
        reserved_bytes=reserved,
        requested_bytes=requested,
        terms=[
            Term(
                name=name,
                num_bytes=sizes[name],
                modules=dict(modules[name].most_common(NUM_PARTS)),
                blocks=_of_lists(modules[name]) if name == "activations" else {},
                lines=dict(lines[name].most_common(NUM_PARTS)),
            )
            for name in ORDER
            if sizes[name]
        ],
    )


def _facts(lives: Lives, blocks: Blocks, marks: _Marks) -> dict[str, bool | int]:
    """Return the facts that findings need, besides those that the agent reported."""
    event = lives.peak(marks.begin)
    alive = [(life, term) for life, term in blocks if life.born < event <= life.died]
    in_forward = [
        life for life, term in alive if term == "activations" and marks.phase(life.born) == "forward"
    ]
    old = [life.size for life, term in alive if term == "gradients" and life.born < marks.begin]
    modules = (life for life in lives.lives if life.module and life.born >= 0)
    return {
        "graph_bytes": sum(life.size for life in in_forward if marks.outlives(life)),
        "old_gradient_bytes": sum(old),
        "peak_in_update": marks.phase(event - 1) == "update",
        "recomputes": any(marks.phase(life.born) != "forward" for life in modules),
    }
