"""Blocks of stretches: the data of a comparison within one live run, and what the stretches tell."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dynotune.schema import document
from dynotune.schema.run import Readback

CONFIDENCE = 0.95
# Lasting effects of a candidate show in the stretches without it: those after it differ from those before by this.
LEFT_BEHIND, LEFT_BEHIND_ERROR = 0.03, 0.001


class Stretch(msgspec.Struct, frozen=True):
    """Consecutive steps, timed as a whole, with the device synchronised at both ends.

    `pace_s`: seconds of a fixed loop in Python, on average just before the stretch and just after it; None if unknown.
    """

    seconds: float
    num_steps: int
    num_samples: int | None
    pace_s: float | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Two stretches with the candidate (given by its index) and two without, in `order`, where A means without.

    `begin_s`, `end_s`: of the whole block, including steps that are not counted; CLOCK_MONOTONIC. `readback`: of the
    candidate's settings, at the end of the block, as far as switches report it.
    """

    arm: int
    number: int
    order: Literal["ABBA", "BAAB"]
    begin_s: float
    end_s: float
    baseline: list[Stretch]
    candidate: list[Stretch]
    readback: list[Readback] = []

    def unit_s(self, *, by_sample: bool) -> tuple[float, float]:
        """Return seconds per sample, or per step, of the baseline and of the candidate."""
        return unit_s(self.baseline, by_sample=by_sample), unit_s(self.candidate, by_sample=by_sample)


def block_of(event: dict[str, Any]) -> Block | None:
    """Return the block that the agent's event describes; None if the event is incomplete."""
    try:
        block = document.convert(event, Block)
    except ValueError:
        return None
    stretches = [*block.baseline, *block.candidate]
    is_whole = block.baseline and block.candidate and all(s.seconds > 0 and s.num_steps > 0 for s in stretches)
    return block if is_whole else None


def mean_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean, its standard error, and half the width of its Student's t interval.

    Raises statistics.StatisticsError: there are fewer than two values.
    """
    from scipy.special import stdtrit

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), spread, float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * spread


def counts_samples(blocks: Sequence[Block]) -> bool:
    """Tell whether every stretch of the blocks has its number of samples."""
    return all(stretch.num_samples for block in blocks for stretch in [*block.baseline, *block.candidate])


def unit_s(stretches: Sequence[Stretch], *, by_sample: bool) -> float:
    """Return the seconds of a sample, or of a step, in the stretches together."""
    units = sum((stretch.num_samples or 0) if by_sample else stretch.num_steps for stretch in stretches)
    return sum(stretch.seconds for stretch in stretches) / units


def why_left_behind(blocks: Sequence[Block]) -> str:
    """Return why the baseline changed after the candidate was switched off; empty if the baseline did not change.

    In a block ABBA, one stretch of the baseline comes before the candidate and one after it.
    """
    from scipy.special import stdtr

    by_sample = counts_samples(blocks)
    shifts = [
        math.log(unit_s(block.baseline[1:], by_sample=by_sample) / unit_s(block.baseline[:1], by_sample=by_sample))
        for block in blocks
        if block.order == "ABBA" and len(block.baseline) == 2
    ]
    if len(shifts) < 3:
        return ""
    mean, spread, _ = mean_of(shifts)
    p = 2 * float(stdtr(len(shifts) - 1, -abs(mean) / spread)) if spread else float(mean == 0)
    if abs(mean) <= LEFT_BEHIND or p > LEFT_BEHIND_ERROR:
        return ""
    change = f"{abs(math.expm1(mean)):.0%} {'more' if mean > 0 else 'less'} time"
    return f"once it is off again, a step takes {change} than before, so no block counts"
