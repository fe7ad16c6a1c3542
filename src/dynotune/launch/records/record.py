"""Describe one process as its record does: steps, events and results of tasks."""

from pathlib import Path
from typing import Any

import msgspec

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
        events: events by name, in order.
        results: results of tasks by task number.
        is_damaged: whether an event was dropped because one of its fields has the wrong type.
    """

    path: Path
    pid: int
    start_s: float
    steps: list[Step] = []
    events: dict[str, list[dict[str, Any]]] = {}
    results: dict[int, dict[str, Any]] = {}
    is_damaged: bool = False

    def last(self, event: str) -> dict[str, Any] | None:
        found = self.events.get(event)
        return found[-1] if found else None

    def among_ranks(self, field: str) -> int | None:
        """Return `rank` or `world_size`.

        This is the process group's value when the step was found, else the environment's.
        """
        for event in ("cycle", "process"):
            value = (self.last(event) or {}).get(field)
            if isinstance(value, int):
                return value
        return None

    @property
    def begin_s(self) -> float | None:
        """Return the time (s, CLOCK_MONOTONIC) at which the first step began."""
        return (self.last("cycle") or {}).get("begin_s")

    @property
    def step_s(self) -> list[float]:
        begin = self.begin_s
        ends = [step.end_s for step in self.steps]
        if begin is None:
            return []
        return [end - start for start, end in zip([begin, *ends], ends, strict=False)]
