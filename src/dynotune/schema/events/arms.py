"""Events of arms that are switched on and off within one running program. `arm`: the arm's index in its
task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from dynotune.schema.events.process import Int
from dynotune.schema.events.tasks import Digest
from dynotune.schema.reasons import Reason
from dynotune.schema.run import Readback


class Stretch(msgspec.Struct, frozen=True):
    """Consecutive steps, timed as a whole, with the device synchronised at both ends.

    `pace_s`: seconds of a fixed loop in Python, on average just before the stretch and just after it; None if
        unknown.
    """

    seconds: float
    num_steps: int
    num_samples: int | None
    pace_s: float | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="arm_block"):
    """Two stretches with the candidate and two without, in `order`, where A means without.

    `begin_s`, `end_s`: of the whole block, including steps that are not counted; CLOCK_MONOTONIC. `readback`:
    of the candidate's settings, at the end of the block, as far as switches report it.
    """

    arm: Int
    number: Int
    order: Literal["ABBA", "BAAB"]
    begin_s: float
    end_s: float
    baseline: list[Stretch]
    candidate: list[Stretch]
    readback: list[Readback] = []

    @property
    def is_whole(self) -> bool:
        """Return whether it has stretches with and without the candidate, all with steps that took time."""
        stretches = [*self.baseline, *self.candidate]
        has_both = bool(self.baseline and self.candidate)
        return has_both and all(stretch.seconds > 0 and stretch.num_steps > 0 for stretch in stretches)

    def unit_s(self, *, by_sample: bool) -> tuple[float, float]:
        """Return seconds per sample, or per step, of the baseline and of the candidate."""
        return unit_s(self.baseline, by_sample=by_sample), unit_s(self.candidate, by_sample=by_sample)

    def repeats(self, *, by_sample: bool) -> tuple[float, ...]:
        """Return the log ratio of an arm's first stretch to its second, of each arm that has two."""
        both = (_repeat(two, by_sample=by_sample) for two in (self.baseline, self.candidate))
        return tuple(one for one in both if one is not None)

    def baseline_repeat(self, *, by_sample: bool) -> float | None:
        """Return that of the baseline; None if it has not two stretches."""
        return _repeat(self.baseline, by_sample=by_sample)


def _repeat(stretches: Sequence[Stretch], *, by_sample: bool) -> float | None:
    if len(stretches) != 2:
        return None
    first, second = (unit_s([one], by_sample=by_sample) for one in stretches)
    return math.log(first / second)


def unit_s(stretches: Sequence[Stretch], *, by_sample: bool) -> float:
    """Return the seconds of a sample, or of a step, in the stretches together."""
    units = sum((stretch.num_samples or 0) if by_sample else stretch.num_steps for stretch in stretches)
    return sum(stretch.seconds for stretch in stretches) / units


class ArmSwitched(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="arm_switched"):
    """An arm is being switched on; None: the arm before was switched off."""

    arm: Int | None = None


class ArmGivenUp(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="arm_given_up"):
    """An arm gets no more blocks.

    Args:
        code: why, if anybody acts on the reason.
        reason: the words that the sentence of `code` needs; the whole reason without a code.
        blamed: knobs without which a failed call succeeded.
        unsuited: knobs that cannot be switched in this program, or that did not act.
    """

    arm: Int
    code: Reason = Reason.OTHER
    reason: str = ""
    blamed: list[str] = []
    unsuited: list[str] = []


class ArmResults(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="arm_results"):
    """Results of calls or updates without and with an arm, in the block that began at `begin_s` (s,
    CLOCK_MONOTONIC).

    Args:
        what: outputs of calls of modules, or updates of parameters by optimizers.
        knobs: knobs of the arm of which these results tell.
        baseline, candidate: for each call, digests of its outputs; or for each parameter's update, one digest
            of the change.
        redrawn: without the arm, but with other random numbers; empty if the modules draw none.
        reference, rounded: of a copy of the module in a wider type, and of one whose numbers are rounded; or
            empty.
        draws, precision: as in `ResultsRead`.
    """

    arm: Int
    begin_s: float | None = None
    what: Literal["outputs", "updates"] = "outputs"
    knobs: list[str] = []
    baseline: list[list[Digest]] = []
    candidate: list[list[Digest]] = []
    redrawn: list[list[Digest]] = []
    reference: list[list[Digest]] = []
    rounded: list[list[Digest]] = []
    draws: list[str] = []
    precision: str = ""


class ArmsCompared(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="switched"):
    """All arms of the task had their blocks or were given up; `task` and `done_s` as in `events.tasks`."""

    task: Int | None = None
    done_s: float | None = None
