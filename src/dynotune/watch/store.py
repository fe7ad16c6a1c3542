"""What was seen of a run, in bounded room: seconds for ten minutes, then ever coarser, for 28 hours in all."""

from __future__ import annotations

import itertools
import math
from collections import deque

LEVELS = ((1.0, 600), (15.0, 960), (120.0, 720))
"""Length of a bin in seconds and the number of bins that are kept, the finest first."""
WIDTH = 1.04
"""Ratio of the ends of a class of step times: a quantile is right within half of it, 2%."""
SHORTEST_S, LONGEST_S = 1e-7, 1e6
MOST_SERIES = 1024


class Bin:
    """Values of one stretch of time, added up.

    Args:
        first: number of its first step, for those that hold steps.
        counts: how many values fell in each class of `WIDTH`; None where nobody asks for quantiles.
    """

    __slots__ = ("begin_s", "counts", "first", "most", "num", "total")

    def __init__(self, begin_s: float, *, first: int = 0, counted: bool = False) -> None:
        self.begin_s, self.first = begin_s, first
        self.num, self.total, self.most = 0, 0.0, -math.inf
        self.counts: dict[int, int] | None = {} if counted else None

    def add(self, value: float) -> None:
        self.num += 1
        self.total += value
        self.most = max(self.most, value)
        if self.counts is not None:
            at = class_of(value)
            self.counts[at] = self.counts.get(at, 0) + 1

    def merge(self, other: Bin) -> None:
        self.num += other.num
        self.total += other.total
        self.most = max(self.most, other.most)
        if self.counts is not None:
            for at, num in (other.counts or {}).items():
                self.counts[at] = self.counts.get(at, 0) + num

    @property
    def mean(self) -> float:
        return self.total / self.num if self.num else math.nan

    def quantile(self, share: float) -> float:
        """The value that this share of them does not exceed, within 2%; NaN where there is none."""
        left = math.ceil(share * self.num)
        for at in sorted(self.counts or ()):
            left -= (self.counts or {})[at]
            if left <= 0:
                return float(min(WIDTH ** (at - 0.5), self.most))
        return math.nan


def class_of(value: float) -> int:
    return math.ceil(math.log(min(max(value, SHORTEST_S), LONGEST_S)) / math.log(WIDTH))


class Series:
    """One value over time. What is older than a level keeps is in the coarser ones, which hold all that is complete."""

    def __init__(self, *, counted: bool = False) -> None:
        self._levels = [deque[Bin](maxlen=num) for _, num in LEVELS]
        self._counted = counted
        self.ever = Bin(0.0, counted=counted)
        self.first_s, self.last_s = math.inf, -math.inf

    def add(self, time_s: float, value: float, number: int = 0) -> None:
        """Add a value; one that comes late counts for the newest bin."""
        newest = self._levels[0][-1] if self._levels[0] else None
        if newest is None or time_s >= newest.begin_s + LEVELS[0][0]:
            newest = self._begin(0, time_s, number)
        newest.add(value)
        self.ever.add(value)
        self.first_s, self.last_s = min(self.first_s, time_s), max(self.last_s, time_s)

    def _begin(self, level: int, time_s: float, number: int) -> Bin:
        """Begin a bin; the one before is complete, and goes into the next level as well."""
        bins, length_s = self._levels[level], LEVELS[level][0]
        if bins and level + 1 < len(LEVELS):
            done, coarser = bins[-1], self._levels[level + 1]
            into = coarser[-1] if coarser else None
            if into is None or done.begin_s >= into.begin_s + LEVELS[level + 1][0]:
                into = self._begin(level + 1, done.begin_s, done.first)
            into.merge(done)
        begun = Bin(time_s // length_s * length_s, first=number, counted=self._counted)
        bins.append(begun)
        return begun

    def bins(self, begin_s: float = -math.inf) -> list[Bin]:
        """From `begin_s` on, the finest that there are, in order of time; none is told twice."""
        chosen: list[Bin] = []
        until_s = math.inf
        for (length_s, _), bins in zip(LEVELS, self._levels, strict=True):
            found = [each for each in bins if begin_s <= each.begin_s and each.begin_s + length_s <= until_s]
            chosen = found + chosen
            until_s = min(until_s, bins[0].begin_s if bins else math.inf)
        return chosen

    def newest(self, begin_s: float) -> list[Bin]:
        """The finest bins from `begin_s` on, in order of time; the price is theirs alone."""
        found = list(itertools.takewhile(lambda each: each.begin_s >= begin_s, reversed(self._levels[0])))
        return found[::-1]

    def over(self, begin_s: float) -> Bin:
        """The finest bins from `begin_s` on, as one."""
        whole = Bin(begin_s, counted=self._counted)
        for each in self.newest(begin_s):
            whole.merge(each)
        return whole


class Store:
    """Series by what they are of (`step`, `gpu.power_w`, …) and whose (a rank, a GPU). Times: CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], Series] = {}

    def add(self, name: str, whose: str, time_s: float, value: float, number: int = 0) -> None:
        series = self.series.get((name, whose))
        if series is None:
            if len(self.series) >= MOST_SERIES:
                return
            series = self.series[name, whose] = Series(counted=name == "step")
        series.add(time_s, value, number)

    def of(self, name: str, whose: str = "") -> Series:
        """The series; an empty one where there is none."""
        return self.series.get((name, whose)) or Series(counted=name == "step")

    def whose(self, name: str) -> list[str]:
        """Who has such a series, numbers in their order."""
        return sorted((of for known, of in self.series if known == name), key=lambda of: (len(of), of))
