"""Tell which process of a command the wall clock is accounted for at each moment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dynotune.launch.records import Record
from dynotune.schema.events import ProcessBegun, ProcessCreated, ProcessExited, StacksSampled, StartSpan


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """A Python process of the command, and the time in which it lived (CLOCK_MONOTONIC).

    `exited_s`: when the program's exit handlers had run; None if the process ended otherwise. `seen_s`: the
    last time at which its record was written.
    """

    record: Record
    begin_s: float
    end_s: float
    exited_s: float | None
    seen_s: float


def main_record(records: Sequence[Record]) -> Record | None:
    """Return the process to account for: of those with steps the first rank's, the one with most steps; else
    the first.

    None if no Python of the command began a record.
    """
    with_steps = [record for record in records if record.steps]
    if with_steps:
        return min(with_steps, key=lambda record: (record.rank or 0, -len(record.steps)))
    begun = [record for record in records if record.last(ProcessBegun)] or list(records)
    return min(begun, key=lambda record: record.start_s, default=None)


def lives(
    records: Sequence[Record], main: Record, launched_s: float, ended_s: float, *, by_shell: bool = False
) -> list[Life]:
    """Return the processes that take turns in the account of `main`: itself, the processes that started it,
    and processes that the command ran before and after.

    The first one begins at the launch, and the end of the command is its own, unless a shell runs them
    (`by_shell`) or ran one after it. A process that replaced its program has two records, which follow each
    other.
    """
    begun_s = {id(record): _began_s(record, records) for record in records}
    parents = _parents(records, main)
    before = [
        record
        for record in records
        if record.last(ProcessBegun) and record not in parents and _seen_s(record) <= begun_s[id(main)]
    ]
    is_over_s = _seen_s(parents[0])
    beside = [each for each in records if each not in parents and _is_beside(each, parents[0])]
    after = [each for each in beside if begun_s[id(each)] >= is_over_s]
    is_by_shell = by_shell or bool(after)
    taking_part = sorted([*parents, *before, *after], key=lambda record: begun_s[id(record)])
    first, last = parents[0], taking_part[-1]
    found = []
    for record in taking_part:
        exit_ = record.last(ProcessExited)
        exited_s, seen_s = (exit_.at_s if exit_ is not None else None), _seen_s(record)
        is_first = record is first or (record is last and record.pid == first.pid)
        is_to_the_end = is_first and not is_by_shell
        begin_s = launched_s if record is taking_part[0] else max(launched_s, begun_s[id(record)])
        end_s = ended_s if is_to_the_end else min(exited_s or seen_s, ended_s)
        found.append(Life(record, begin_s, end_s, exited_s, seen_s))
    return found


def turns(found: Sequence[Life], launched_s: float, ended_s: float) -> list[tuple[float, float, Life | None]]:
    """Cut the time from launch to end into pieces, each with the living process that began last."""
    edges = {edge for life in found for edge in (life.begin_s, life.end_s) if launched_s < edge < ended_s}
    cut: list[tuple[float, float, Life | None]] = []
    for at_s, until_s in itertools.pairwise(sorted({launched_s, ended_s} | edges)):
        alive = [life for life in found if life.begin_s <= at_s < life.end_s]
        owner = max(alive, key=lambda life: life.begin_s, default=None)
        if cut and cut[-1][2] is owner:
            cut[-1] = cut[-1][0], until_s, owner
        else:
            cut.append((at_s, until_s, owner))
    return cut


def _parents(records: Sequence[Record], main: Record) -> list[Record]:
    """Return `main` after the processes that started it, the first ancestor first."""
    found = [main]
    while True:
        begun = found[0].last(ProcessBegun)
        pids = {found[0].pid, begun.ppid if begun is not None else None}
        earlier = [record for record in records if record.pid in pids and record.start_s < found[0].start_s]
        if not earlier:
            return found
        # A program that was replaced comes before the process that started it.
        found.insert(0, max(earlier, key=lambda record: (record.pid == found[0].pid, record.start_s)))


def _is_beside(record: Record, first: Record) -> bool:
    """Tell whether the same process started both, as a shell does."""
    begun, other = record.last(ProcessBegun), first.last(ProcessBegun)
    return begun is not None and other is not None and begun.ppid == other.ppid and record.pid != first.pid


def _began_s(record: Record, records: Sequence[Record]) -> float:
    """Return when the process began, or when its program replaced another one in the same process."""
    first_s = min([record.start_s, *(span.begin_s for span in record.all(StartSpan))])
    created = record.last(ProcessCreated)
    replaced = any(other.pid == record.pid and other.start_s < record.start_s for other in records)
    return first_s if created is None or replaced else min(created.started_s, first_s)


def _seen_s(record: Record) -> float:
    exit_ = record.last(ProcessExited)
    sampled = record.last(StacksSampled)
    return max(
        record.start_s,
        record.steps[-1].end_s if record.steps else 0.0,
        sampled.seen[-1][0] if sampled is not None and sampled.seen else 0.0,
        (exit_.at_s or 0.0) if exit_ is not None else 0.0,
        max((span.end_s for span in record.all(StartSpan)), default=0.0),
    )
