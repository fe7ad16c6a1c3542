"""Divide the time of a step, or of a sample, into the parts that a diagnosis saw."""

from __future__ import annotations

from dataclasses import dataclass

from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import Diagnosis
from dynotune.schema.facts import Unknown
from dynotune.schema.timing import Timing


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The time of a step or of a sample, in parts.

    Args:
        name: label of its bar and of its columns.
        whole_s: seconds of the whole; None if it was not timed.
        has_device: whether the parts are those of a device, not of operators on the CPU.
        of_what: "step" or "sample".
    """

    name: str
    shares: Shares
    whole_s: float | None
    has_device: bool
    of_what: str = "step"

    @classmethod
    def of(cls, name: str, diagnosis: Diagnosis | Unknown) -> Breakdown | Unknown:
        """Return the step of a diagnosis; Unknown if the diagnosis, or its shares, are."""
        if isinstance(diagnosis, Unknown):
            return diagnosis
        if isinstance(diagnosis.shares, Unknown):
            return diagnosis.shares
        step_s = diagnosis.steps.step_s if isinstance(diagnosis.steps, Timing) else None
        return cls(name, diagnosis.shares, step_s, diagnosis.busy_share is not None)
