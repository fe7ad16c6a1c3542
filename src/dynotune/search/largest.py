"""Find the largest value that holds limits: which value to run next, and what the runs so far prove.

Pure functions of the runs that are made, so that a search goes on after an interruption where it was. A value
is taken to hold if a smaller one than a value that holds; runs that contradict this leave values undecided.

The search doubles until a run breaks a limit, halves what lies between, and then repeats the runs at both
ends: a value is proved by two runs that hold all limits with their whole intervals, and refuted by two that
break one. Three runs that do neither leave a value undecided, and the next value takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dynotune.schema.largest import End, Limit, ValueRun, Verdict

RUNS = 2
"""Runs of one verdict that prove a value, or refute it."""
MOST_RUNS = 3
"""Runs of one value after which it is undecided."""
CLOSE = 0.02
"""Distance from an undecided value, relative to the value, within which no other is tried; it grows with the
number of undecided values."""


STEP = 0.1
"""Distance from the prediction, relative to it, at which it is tried next."""
FAR = 4


class Found(NamedTuple):
    """What runs prove. `next_value`: the value to run next; None once `end` is known."""

    next_value: int | None
    end: End | None = None
    largest: int | None = None
    refuted: int | None = None
    undecided: tuple[int, ...] = ()


class _Value(NamedTuple):
    value: int
    verdicts: list[Verdict]
    leans: list[bool]

    def is_settled(self, verdict: Verdict) -> bool:
        return len(self.verdicts) >= RUNS and set(self.verdicts) == {verdict}

    @property
    def is_undecided(self) -> bool:
        is_mixed = len(set(self.leans)) > 1 or "open" in self.verdicts
        return len(self.verdicts) >= MOST_RUNS and is_mixed

    def is_beside(self, undecided: Sequence[int]) -> bool:
        """Return whether runs of this value would be in vain, because one close to it is undecided."""
        return len(self.verdicts) < RUNS and _beside(self.value, undecided)

    @property
    def holds(self) -> bool:
        return sum(self.leans) * 2 > len(self.leans)


def search(
    runs: Sequence[ValueRun], limits: list[Limit], *, least: int, most: int, predicted: int | None = None
) -> Found:
    """Return the next value to run, or what is proved.

    Args:
        runs: runs so far, in order. `least`, `most`: the values among which is searched.
        predicted: where the limit is expected, which saves runs and decides nothing.
    """
    values = [_value(value, runs, limits) for value in sorted({run.value for run in runs})]
    if not values:
        return Found(least)
    undecided = [one.value for one in values if one.is_undecided]
    known = [one for one in values if not one.is_undecided and not one.is_beside(undecided)]
    breaks = next((one for one in known if not one.holds), None)
    held = [one for one in known if one.holds and (breaks is None or one.value < breaks.value)]
    holds = held[-1] if held else None
    floor = least - 1 if holds is None else holds.value
    top = most + 1 if breaks is None else breaks.value
    between = tuple(value for value in undecided if floor < value < top)
    tried = {one.value for one in values}
    untried = [value for value in range(floor + 1, top) if value not in tried and not _beside(value, between)]
    expected = None if predicted is None or between else min(predicted, most)
    if untried:
        return Found(_next(untried, floor, breaks is None, expected))
    for one, verdict in ((holds, "holds"), (breaks, "breaks")):
        if one is not None and not one.is_settled(verdict):  # type: ignore[arg-type]
            return Found(one.value)
    if holds is None:
        return Found(None, "open" if between else "none", None, breaks and breaks.value, between)
    if breaks is None:
        return Found(None, "ceiling" if holds.value == most else "open", holds.value, None, between)
    return Found(None, "proved", holds.value, breaks.value, between)


def _beside(value: int, undecided: Sequence[int]) -> bool:
    """Return whether a value is so close to an undecided one that it would not be decided either."""
    reach = max(1.0, CLOSE * value * len(undecided))
    return any(abs(value - other) < reach for other in undecided)


def proved(runs: Sequence[ValueRun], limits: list[Limit]) -> tuple[int | None, int | None]:
    """Return the largest value that is proved, and the smallest above it that is refuted, where a search has
    stopped."""
    values = [_value(value, runs, limits) for value in sorted({run.value for run in runs})]
    largest = max((one.value for one in values if one.is_settled("holds")), default=None)
    above = [one.value for one in values if one.is_settled("breaks") and one.value > (largest or 0)]
    return largest, min(above, default=None)


def _value(value: int, runs: Sequence[ValueRun], limits: list[Limit]) -> _Value:
    own = [run for run in runs if run.value == value]
    return _Value(value, [run.verdict(limits) for run in own], [run.leans(limits) for run in own])


def _next(untried: list[int], floor: int, is_open: bool, predicted: int | None) -> int:
    """Return the value to try: the prediction, then a tenth more or less; then, as without a
    prediction, the double, or the middle (of their ratio, as long as they are far apart)."""
    ceiling = untried[-1] + 1
    if predicted is not None and floor < predicted < ceiling:
        wanted = float(predicted)
    elif predicted is not None and floor == predicted and is_open:
        wanted = predicted * (1 + STEP)
    elif predicted is not None and ceiling == predicted and floor < predicted / (1 + STEP):
        wanted = predicted / (1 + STEP)
    elif is_open:
        wanted = 2.0 * max(floor, 1)
    else:
        is_far = ceiling > FAR * max(floor, 1)
        wanted = math.sqrt(max(floor, 1) * ceiling) if is_far else (floor + ceiling) / 2
    return min(untried, key=lambda value: abs(value - wanted))
