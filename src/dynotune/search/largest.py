"""Find the largest value that holds limits: which value to run next, and what the runs so far prove.

Pure functions of the runs that are made, so that a search goes on after an interruption where it was. A value
is taken to hold if a smaller one than a value that holds; runs that contradict this leave values undecided.

The search doubles until a run breaks a limit, halves what lies between, and then repeats the runs at both
ends. A value is proved by two runs or more that hold all limits with their whole intervals, and refuted by as
many that break one. The interval of a run says nothing of other runs, so the mean of a value's runs has to do
the same with the interval that follows from how runs of one value differ. Two runs that contradict each
other, or four that do neither, leave a value undecided, and the next value takes its place.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dynotune.schema.largest import End, Limit, Measured, ValueRun, Verdict

RUNS = 2
"""Fewest runs of one verdict that prove a value, or refute it."""
MOST_RUNS = 4
"""Runs of one value after which it is undecided, though they do not contradict each other."""
OF_SPREAD = 0.98
"""Confidence of the interval of a mean. A search tests several values and ends at the luckiest: with 0.95, 5%
of searches over noisy runs would prove too large a value."""
MOST_ALL = 40
"""Runs of all values after which the search ends with what is proved by then."""
CLOSE = 0.02
"""Distance from an undecided value, relative to the value, within which no other is tried; it grows with the
square of the number of undecided values, so that few runs reach values that noise allows to decide."""


STEP = 0.1
"""Distance from the prediction, relative to it, at which it is tried next."""
FAR = 4
TRUSTED = 4
"""Values that hold, before any breaks, after which the search doubles whatever is predicted."""


class Found(NamedTuple):
    """What runs prove. `next_value`: the value to run next; None once `end` is known."""

    next_value: int | None
    end: End | None = None
    largest: int | None = None
    refuted: int | None = None
    undecided: tuple[int, ...] = ()


class _Value(NamedTuple):
    """Runs of one value.

    `is_proved`: all of them hold, and so does their mean; `is_refuted`: they break. `is_mixed`: one is open,
    or they contradict each other, so that further runs make it neither.
    """

    value: int
    num_runs: int
    holds: bool
    is_mixed: bool
    is_proved: bool
    is_refuted: bool

    @property
    def is_undecided(self) -> bool:
        most = RUNS if self.is_mixed else MOST_RUNS
        return self.num_runs >= most and not self.is_proved and not self.is_refuted

    def is_beside(self, undecided: Sequence[int]) -> bool:
        """Return whether runs of this value would be in vain, because one close to it is undecided."""
        return self.num_runs < RUNS and _beside(self.value, undecided)


def search(
    runs: Sequence[ValueRun], limits: list[Limit], *, least: int, most: int, predicted: int | None = None
) -> Found:
    """Return the next value to run, or what is proved.

    Args:
        runs: runs so far, in order. `least`, `most`: the values among which is searched.
        predicted: where the limit is expected, which saves runs and decides nothing.
    """
    values = _values(runs, limits)
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
    unsettled = [one.value for one in (holds, breaks) if one and not (one.is_proved or one.is_refuted)]
    if len(runs) >= MOST_ALL and (untried or unsettled):
        return _given_up(values)
    if untried:
        # A prediction that values above it held again and again is not asked any more.
        is_misled = breaks is None and len(held) > TRUSTED
        return Found(_next(untried, floor, breaks is None, None if is_misled else expected))
    if unsettled:
        return Found(unsettled[0])
    if holds is None:
        return Found(None, "open" if between else "none", None, breaks and breaks.value, between)
    if breaks is None:
        return Found(None, "ceiling" if holds.value == most else "open", holds.value, None, between)
    return Found(None, "proved", holds.value, breaks.value, between)


def _beside(value: int, undecided: Sequence[int]) -> bool:
    """Return whether a value is so close to an undecided one that it would not be decided either."""
    reach = max(1.0, CLOSE * value * len(undecided) ** 2)
    return any(abs(value - other) < reach for other in undecided)


def proved(runs: Sequence[ValueRun], limits: list[Limit]) -> tuple[int | None, int | None]:
    """Return the largest value that is proved, and the smallest above it that is refuted, where a search has
    stopped."""
    return _proved(_values(runs, limits))


def _proved(values: Sequence[_Value]) -> tuple[int | None, int | None]:
    largest = max((one.value for one in values if one.is_proved), default=None)
    above = [one.value for one in values if one.is_refuted and one.value > (largest or 0)]
    return largest, min(above, default=None)


def _given_up(values: Sequence[_Value]) -> Found:
    """Return what is proved after the most runs that a search makes."""
    largest, refuted = _proved(values)
    between = tuple(
        one.value
        for one in values
        if (largest or 0) < one.value < (refuted or math.inf) and not (one.is_proved or one.is_refuted)
    )
    end: End = "open" if largest is None or refuted is None else "proved"
    return Found(None, end, largest, refuted, between)


def _values(runs: Sequence[ValueRun], limits: list[Limit]) -> list[_Value]:
    """Judge the runs of each value, with the spread that runs of values on its side of the limits have.

    Values on the other side are left out, because a program that is late is late by another time in each run;
    so are those whose runs contradict each other, because such a program is late in some runs alone.
    """
    by_value: dict[int, list[ValueRun]] = {}
    for run in runs:
        by_value.setdefault(run.value, []).append(run)
    holds = {value: sum(run.leans(limits) for run in own) * 2 > len(own) for value, own in by_value.items()}
    verdicts_of = {value: [run.verdict(limits) for run in own] for value, own in by_value.items()}
    torn = {value for value, verdicts in verdicts_of.items() if {"holds", "breaks"} <= set(verdicts)}
    found = []
    for value, own in sorted(by_value.items()):
        verdicts = verdicts_of[value]
        alike = [other for other in by_value if holds[other] == holds[value] and other not in torn - {value}]
        side = [by_value[other] for other in alike]
        judged = [_of_mean(own, side, limit) for limit in limits]
        num_failed = sum(bool(run.failed) for run in own)
        is_proved = set(verdicts) == {"holds"} and set(judged) == {"holds"}
        is_refuted = set(verdicts) == {"breaks"} and ("breaks" in judged or num_failed >= RUNS)
        is_mixed = "open" in verdicts or len(set(verdicts)) > 1
        found.append(_Value(value, len(own), holds[value], is_mixed, is_proved, is_refuted))
    return found


def _of_mean(own: Sequence[ValueRun], side: Sequence[Sequence[ValueRun]], limit: Limit) -> Verdict:
    """Judge the mean of a value's runs; "open" with fewer than two.

    Args:
        own: the value's runs. `side`: runs of each value, these among them, whose spread counts.
    """
    groups = [_shown(runs, limit) for runs in side]
    is_log = all(value > 0 for values in groups for value in values) and limit.bound > 0
    if is_log:
        groups = [[math.log(value) for value in values] for values in groups]
    values = [math.log(value) if is_log else value for value in _shown(own, limit)]
    if len(values) < RUNS:
        return "open"
    from scipy.special import stdtrit

    df = sum(len(each) - 1 for each in groups if each)
    squares = math.fsum((value - statistics.fmean(each)) ** 2 for each in groups for value in each)
    mean = statistics.fmean(values)
    half = float(stdtrit(df, (1 + OF_SPREAD) / 2)) * math.sqrt(squares / df / len(values))
    low, high = ((math.exp(end) if is_log else end) for end in (mean - half, mean + half))
    middle = math.exp(mean) if is_log else mean
    return Measured(quantity=limit.quantity, value=middle, low=low, high=high).verdict(limit)


def _shown(runs: Sequence[ValueRun], limit: Limit) -> list[float]:
    return [one.value for run in runs for one in run.measured if one.quantity == limit.quantity]


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
