"""Describe one process as its record does: steps, events and results of tasks."""

from pathlib import Path
from typing import TypeVar, cast

import msgspec

from dynotune.schema import document
from dynotune.schema.cycle import CyclePart
from dynotune.schema.errors import RecordError
from dynotune.schema.events import CycleFound, Event, ProcessBegun, TaskResult, kind_of
from dynotune.text import steps

E = TypeVar("E", bound=Event)

# Bits of a step's flags.
COMPILED = 1
"""Something was compiled."""

ALLOCATED = 2
"""Device memory was allocated."""

EPOCH = 4
"""A loader was started."""

GARBAGE = 8
"""Python collected the oldest generation of garbage, or collected for longer than a millisecond."""


class Step(msgspec.Struct, frozen=True):
    """One step of one process.

    Args:
        end_s: end of the step (s, CLOCK_MONOTONIC).
        num_samples: number of samples; None if unknown.
        flags: EPOCH always; COMPILED and ALLOCATED if a task asked for them; GARBAGE in an observed run.
    """

    end_s: float
    wait_s: float
    num_samples: int | None
    flags: int


class Record(msgspec.Struct):
    """Record of one process, as far as the record is written.

    Args:
        events: events by kind, in order.
        results: results of tasks by task number.
        dropped: number of damaged events, by kind; None: the kind cannot be read either.
    """

    path: Path
    pid: int
    start_s: float
    steps: list[Step] = []
    events: dict[type[Event], list[Event]] = {}
    results: dict[int, TaskResult] = {}
    dropped: dict[type[Event] | None, int] = {}

    def all(self, kind: type[E]) -> list[E]:
        """Return the events of a kind, in order."""
        return cast(list[E], self.events.get(cast(type[Event], kind), []))

    def last(self, kind: type[E]) -> E | None:
        """Return the last event of a kind; None without one."""
        events = self.all(kind)
        return events[-1] if events else None

    def take(self, raw: bytes) -> None:
        """Add the next event as the agent wrote it. Drop and count a damaged event; the events around it stay
        valid."""
        kind = None
        try:
            kind = kind_of(raw)
            if kind is not None:
                self.add(document.parse(raw, kind))
        except ValueError:
            self.dropped[kind] = self.dropped.get(kind, 0) + 1

    def refuse_dropped(self, *kinds: type[Event]) -> None:
        """Raise RecordError if an event of one of these kinds was dropped, because an answer would be
        incomplete."""
        if any(kind in self.dropped for kind in kinds):
            raise RecordError(f"{self.path} is damaged: an event is not as dynotune's agent writes events.")

    def add(self, event: Event) -> None:
        """Add the next event. A result that the record has already, because dynotune asked for it again, is
        left out.

        A cycle may turn out to be no step once the program trains; then its steps are dropped.
        """
        if isinstance(event, TaskResult) and event.task is not None:
            if event.task in self.results:
                return
            self.results[event.task] = event
        self.events.setdefault(type(event), []).append(event)
        if isinstance(event, CycleFound):
            del self.steps[: event.num_superseded or 0]

    @property
    def rank(self) -> int | None:
        """Return the rank in the process group when the step was found, else in the environment; None without
        one."""
        cycle, process = self.last(CycleFound), self.last(ProcessBegun)
        if cycle is not None and cycle.rank is not None:
            return cycle.rank
        return process.rank if process is not None else None

    @property
    def world_size(self) -> int | None:
        """Return the size of the process group when the step was found, else as in the environment; None
        without."""
        cycle, process = self.last(CycleFound), self.last(ProcessBegun)
        if cycle is not None and cycle.world_size is not None:
            return cycle.world_size
        return process.world_size if process is not None else None

    @property
    def step(self) -> str | None:
        """Return the description of a step; None before a step is found."""
        cycle = self.last(CycleFound)
        if cycle is None:
            return None
        return "" if cycle.parts is None else steps.description(cycle.parts, cycle.num_parts)

    @property
    def cycle(self) -> list[CyclePart]:
        """Return the first parts of the cycle that is a step; [] if none is found, or the program marks its
        steps."""
        found = self.last(CycleFound)
        return (found.parts or []) if found is not None else []

    @property
    def begin_s(self) -> float | None:
        """Return the time (s, CLOCK_MONOTONIC) at which the first step began."""
        cycle = self.last(CycleFound)
        return cycle.begin_s if cycle is not None else None

    @property
    def step_s(self) -> list[float]:
        begin = self.begin_s
        ends = [step.end_s for step in self.steps]
        if begin is None:
            return []
        return [end - start for start, end in zip([begin, *ends], ends, strict=False)]
