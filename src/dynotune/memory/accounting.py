"""The memory of a process in terms that add up to what the driver counts, at the peak and between two steps.

Each block of the history gets one term: that of the tensor which the agent found at its address, else by when and
where it was allocated. Rounding, cache and fragments follow from addresses. What the driver counts beyond the allocator
is the context with loaded modules, and with what libraries allocate by themselves (NCCL).
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from dynotune.schema.facts import Unknown
from dynotune.schema.memory import (
    DeviceOwners,
    HookCost,
    Levels,
    Moment,
    Owners,
    Part,
    RankMemory,
    Term,
    TermName,
)
from dynotune.trace.snapshot import Life, Lives

NUM_PARTS = 12
NUM_POINTS = 400
LEAST_BUCKET_BYTES = 1 << 20
# Who is asked first where two tensors share a block: a gradient in DDP's bucket, a batch that a module also keeps.
PRIORITY: tuple[TermName, ...] = ("weights", "gradients", "optimizer", "buffers", "inputs", "workspaces", "kept")
ORDER: tuple[TermName, ...] = (
    *("weights", "gradients", "optimizer", "buffers", "inputs", "activations", "temporary", "kept", "workspaces"),
    *("graph-pools", "rounding", "cache", "fragmentation", "context", "unknown"),
)


def account(
    device: DeviceOwners,
    owners: Owners,
    lives: Lives | Unknown,
    *,
    process_bytes: int | Unknown,
    others_bytes: int | Unknown,
    pid: int,
    rank: int | None = None,
    before_s: float | None = None,
) -> RankMemory:
    """What one process held on one device.

    Args:
        process_bytes: what the driver counts for the process at the time of the snapshot.
        before_s: median step before the recorded ones.
    """
    hooks = HookCost(step_s=statistics.median(owners.step_s), before_s=before_s, host_bytes=owners.host_bytes)
    nothing = RankMemory(
        rank=rank,
        pid=pid,
        device=device.device,
        total_bytes=device.total_bytes,
        others_bytes=others_bytes,
        peak=Unknown("no history"),
        steady=Unknown("no history"),
        levels=Unknown("no history"),
        trains=owners.trains,
        num_samples=owners.num_samples,
        hooks=hooks,
        facts=owners.facts,
        notes=owners.notes,
    )
    if isinstance(lives, Unknown):
        return msgspec.structs.replace(nothing, peak=lives, steady=lives, levels=lives)
    steps = _Steps.of(device, lives)
    terms = _terms_of(device, steps, lives, trains=owners.trains)
    if owners.facts.get("bucket_view") is False:
        terms = _with_buckets(terms, lives)
    outside = process_bytes if isinstance(process_bytes, Unknown) else process_bytes - device.reserved_bytes
    event = lives.peak(steps.begin)
    notes = list(owners.notes)
    if steps.is_cut:
        notes.append("the allocator's history was full: the peak is that of its last part")
    if not isinstance(outside, Unknown) and outside < 0:
        outside = Unknown("the driver counts less for the process than its allocator had reserved")
    return msgspec.structs.replace(
        nothing,
        peak=_moment(lives, terms, event, outside),
        steady=_moment(lives, terms, lives.num_events, outside),
        levels=_levels(lives, terms, steps),
        facts={**owners.facts, **_facts(lives, terms, steps, event)},
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The agent's marks, as numbers of events in the history.

    Args:
        begin: of the recorded steps; `ends`: of each.
        forwards, updates: begins and ends of outermost calls and of optimizers' steps, in order.
        offset: events before the history; `is_cut`: some of the recorded steps are among them.
    """

    begin: int
    ends: list[int]
    forwards: list[tuple[int, int]]
    updates: list[tuple[int, int]]
    offset: int
    is_cut: bool

    @staticmethod
    def of(device: DeviceOwners, lives: Lives) -> _Steps:
        offset = device.num_events - lives.num_events
        at: dict[str, list[int]] = defaultdict(list)
        for name, position in device.marks:
            at[name].append(max(0, position - offset))
        begun = next((position for name, position in device.marks if name == "begin"), offset)
        return _Steps(
            begin=max(0, begun - offset),
            ends=at["step"],
            forwards=_spans(device.marks, "forward", ("forward_end",), offset),
            updates=_spans(device.marks, "update", ("forward", "step"), offset),
            offset=offset,
            is_cut=begun < offset,
        )

    def forward(self, event: int) -> tuple[int, int] | None:
        """The outermost call during which the event came."""
        return _within(self.forwards, event)

    def in_update(self, event: int) -> bool:
        return _within(self.updates, event) is not None

    def is_before_forward(self, event: int) -> bool:
        """Whether the event's step had not called a module yet."""
        at = bisect_right(self.ends, event) - 1
        step_begin = self.ends[at] if at >= 0 else self.begin
        first = next((begin for begin, _ in self.forwards if begin >= step_begin), None)
        return first is not None and event < first


def _spans(marks: Sequence[tuple[str, int]], begin: str, ends: Sequence[str], offset: int) -> list[tuple[int, int]]:
    """From each mark `begin` to the next one of `ends`; those begun within another are part of it."""
    found: list[tuple[int, int]] = []
    start: int | None = None
    for name, position in marks:
        if start is not None and name in ends:
            found.append((max(0, start - offset), max(0, position - offset)))
            start = None
        if name == begin and start is None:
            start = position
    return found


def _within(spans: Sequence[tuple[int, int]], event: int) -> tuple[int, int] | None:
    at = bisect_right(spans, (event, 1 << 62)) - 1
    return spans[at] if at >= 0 and event < spans[at][1] else None


def _terms_of(device: DeviceOwners, steps: _Steps, lives: Lives, *, trains: bool) -> list[TermName]:
    """The term of each life."""
    at: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, life in enumerate(lives.lives):
        at[life.address].append((life.born, index))
    for rows in at.values():
        rows.sort()
    found: dict[int, TermName] = {}
    for term, address, position in sorted(device.owners, key=lambda owner: PRIORITY.index(owner[0])):
        event = max(0, position - steps.offset)
        rows = at.get(address & ((1 << 62) - 1), [])
        row = bisect_right(rows, (event - 1, 1 << 62)) - 1
        if row >= 0 and lives.lives[rows[row][1]].died >= event:
            found.setdefault(rows[row][1], term)
    return [found.get(index) or _unowned(life, steps, trains) for index, life in enumerate(lives.lives)]


def _with_buckets(terms: Sequence[TermName], lives: Lives) -> list[TermName]:
    """The same, with DistributedDataParallel's copies of the gradients: as large as these, and unknown to Python."""
    pairs = list(zip(lives.lives, terms, strict=True))
    gradients = sum(life.size for life, term in pairs if term == "gradients" and life.died == lives.num_events)
    buckets = sum(life.size for life, term in pairs if term == "unknown" and life.size >= LEAST_BUCKET_BYTES)
    if not 0.9 * gradients <= buckets <= 1.1 * gradients:
        return list(terms)
    return ["gradients" if term == "unknown" and life.size >= LEAST_BUCKET_BYTES else term for life, term in pairs]


def _unowned(life: Life, steps: _Steps, trains: bool) -> TermName:
    """By when it was allocated: no tensor that Python holds between steps is in it."""
    if life.born < 0:
        return "unknown"
    if steps.in_update(life.born):
        return "temporary"
    forward = steps.forward(life.born)
    if forward is not None:
        return "temporary" if trains and life.died < forward[1] else "activations"
    if not life.module and not life.where.function:
        return "temporary"  # the backward pass of a device runs in a thread of its own, without Python
    if not life.module and steps.is_before_forward(life.born):
        return "inputs"
    return "activations"


def _moment(lives: Lives, terms: Sequence[TermName], event: int, outside: int | Unknown) -> Moment:
    alive = [
        (life, term)
        for life, term in zip(lives.lives, terms, strict=True)
        if life.born < event <= life.died and not lives.is_private(life)
    ]
    room = lives.room(event)
    sizes: Counter[TermName] = Counter()
    modules: dict[TermName, Counter[str]] = defaultdict(Counter)
    lines: dict[TermName, Counter[str]] = defaultdict(Counter)
    for life, term in alive:
        sizes[term] += life.size
        if life.module:
            modules[term][life.module] += life.size
        if life.where.function:
            lines[term][life.where.function] += life.size
    requested = sum(life.size for life, _ in alive)
    sizes["rounding"], sizes["cache"] = room.rounding, room.cache
    sizes["fragmentation"], sizes["graph-pools"] = room.fragments, room.private
    if not isinstance(outside, Unknown):
        sizes["context"] = outside
    inside = sum(num for name, num in sizes.items() if name != "context")
    sizes["unknown"] += room.reserved - inside  # nothing, unless addresses contradict each other
    return Moment(
        process_bytes=outside if isinstance(outside, Unknown) else outside + room.reserved,
        reserved_bytes=room.reserved,
        requested_bytes=requested,
        terms=[
            Term(name=name, num_bytes=sizes[name], modules=_parts(modules[name]), lines=_parts(lines[name]))
            for name in ORDER
            if sizes[name]
        ],
    )


def _parts(counted: Counter[str]) -> list[Part]:
    return [Part(name, size) for name, size in counted.most_common(NUM_PARTS)]


def _levels(lives: Lives, terms: Sequence[TermName], steps: _Steps) -> Levels:
    """Live bytes by term over the recorded steps, at as many points as can be drawn; each stretch's highest is kept."""
    num = lives.num_events
    names = [name for name in ORDER if name in set(terms)]
    changes = {name: np.zeros(num + 2, dtype=np.int64) for name in names}
    for life, term in zip(lives.lives, terms, strict=True):
        changes[term][life.born + 1] += life.size
        changes[term][min(life.died, num) + 1] -= life.size
    levels = {name: np.cumsum(change)[: num + 1] for name, change in changes.items()}
    total = sum(levels.values(), start=np.zeros(num + 1, dtype=np.int64))
    edges = np.unique(np.linspace(steps.begin, num + 1, NUM_POINTS + 1).astype(int))
    points = [int(low + total[low:high].argmax()) for low, high in pairwise(edges)]
    newest = {life.born + 1: life.module for life in lives.lives if life.module}
    return Levels(
        events=[point - steps.begin for point in points],
        bytes={name: [int(levels[name][point]) for point in points] for name in names},
        modules=[newest.get(point, "") for point in points],
        steps=[end - steps.begin for end in steps.ends],
    )


def _facts(lives: Lives, terms: Sequence[TermName], steps: _Steps, event: int) -> Mapping[str, bool | int]:
    """What the findings ask besides what the agent told."""
    pairs = list(zip(lives.lives, terms, strict=True))
    update = [life for life, term in pairs if term == "temporary" and steps.in_update(life.born)]
    outlive = [
        life.size
        for life, term in pairs
        if term == "activations" and life.born < event <= life.died
        if (forward := steps.forward(life.born)) is not None and life.died >= forward[1]
    ]
    held = [life.size for life, term in pairs if term == "gradients" and life.born < steps.begin and life.died >= event]
    return {
        "update_temporary_bytes": _highest(update),
        "graph_bytes": sum(outlive),
        "old_gradient_bytes": sum(held),
        "peak_in_update": steps.in_update(event - 1),
        "recomputes": any(life.module and life.born >= 0 and steps.forward(life.born) is None for life, _ in pairs),
    }


def _highest(lives: Sequence[Life]) -> int:
    """The highest level of these blocks together."""
    changes = sorted([(life.born, life.size) for life in lives] + [(life.died, -life.size) for life in lives])
    level = highest = 0
    for _, change in changes:
        level += change
        highest = max(highest, level)
    return highest
