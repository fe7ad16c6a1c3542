"""What was seen of a run, in bounded room: seconds for ten minutes, then ever coarser, for 28 hours in all."""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import takewhile

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
        counts: how many values fell in each class of `WIDTH`, where quantiles are asked for.
    """

    __slots__ = ("begin_s", "counts", "first", "most", "num", "total")

    def __init__(self, begin_s: float, *, first: int = 0, counted: bool = False) -> None:
        self.begin_s, self.first = begin_s, first
        self.num, self.total, self.most = 0, 0.0, -math.inf
        self.counts: Counter[int] | None = Counter() if counted else None

    def add(self, value: float) -> None:
        self.num += 1
        self.total += value
        self.most = max(self.most, value)
        if self.counts is not None:
            self.counts[math.ceil(math.log(min(max(value, SHORTEST_S), LONGEST_S)) / math.log(WIDTH))] += 1

    def merge(self, other: Bin) -> None:
        self.num += other.num
        self.total += other.total
        self.most = max(self.most, other.most)
        if self.counts is not None:
            self.counts.update(other.counts or ())

    @property
    def mean(self) -> float:
        return self.total / self.num if self.num else math.nan

    def quantile(self, share: float) -> float:
        """The value that this share of them does not exceed, within 2%; NaN where there is none."""
        left = math.ceil(share * self.num)
        for at, num in sorted((self.counts or {}).items()):
            left -= num
            if left <= 0:
                return float(min(WIDTH ** (at - 0.5), self.most))
        return math.nan


class Series:
    """One value over time. What is older than a level keeps is in the coarser ones, which hold all that is complete."""

    def __init__(self, *, counted: bool = False) -> None:
        self._levels = [deque[Bin](maxlen=num) for _, num in LEVELS]
        self._counted = counted
        self.ever = Bin(0.0, counted=counted)
        self.first_s, self.last_s = math.inf, -math.inf

    def add(self, time_s: float, value: float, number: int = 0) -> None:
        """Add a value; one that comes late counts for the newest bin."""
        self._bin(0, time_s, number).add(value)
        self.ever.add(value)
        self.first_s, self.last_s = min(self.first_s, time_s), max(self.last_s, time_s)

    def _bin(self, level: int, time_s: float, number: int) -> Bin:
        """The newest bin, or a new one; the one before is then complete, and goes into the next level as well."""
        bins, length_s = self._levels[level], LEVELS[level][0]
        if bins and time_s < bins[-1].begin_s + length_s:
            return bins[-1]
        if bins and level + 1 < len(LEVELS):
            self._bin(level + 1, bins[-1].begin_s, bins[-1].first).merge(bins[-1])
        bins.append(Bin(time_s // length_s * length_s, first=number, counted=self._counted))
        return bins[-1]

    def all_bins(self, begin_s: float) -> list[Bin]:
        """From `begin_s` on, the finest that there are, in order of time; none is told twice."""
        chosen: list[Bin] = []
        until_s = math.inf
        for (length_s, _), bins in zip(LEVELS, self._levels, strict=True):
            chosen = [one for one in bins if begin_s <= one.begin_s and one.begin_s + length_s <= until_s] + chosen
            until_s = min(until_s, bins[0].begin_s if bins else math.inf)
        return chosen

    def bins(self, begin_s: float) -> list[Bin]:
        """The finest bins from `begin_s` on, in order of time; the price is theirs alone."""
        return list(takewhile(lambda each: each.begin_s >= begin_s, reversed(self._levels[0])))[::-1]

    def over(self, begin_s: float) -> Bin:
        """The same as one."""
        whole = Bin(begin_s, counted=self._counted)
        for each in self.bins(begin_s):
            whole.merge(each)
        return whole


class Store:
    """Series by what they are of (`step`, `gpu.power_w`, …) and whose (a rank, a GPU). Times: CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], Series] = {}

    def add(self, name: str, whose: str, time_s: float, value: float, number: int = 0) -> None:
        if (name, whose) not in self.series and len(self.series) < MOST_SERIES:
            self.series[name, whose] = Series(counted=name == "step")
        if series := self.series.get((name, whose)):
            series.add(time_s, value, number)

    def of(self, name: str, whose: str = "") -> Series:
        """The series; an empty one where there is none."""
        return self.series.get((name, whose)) or Series(counted=name == "step")

    def whose(self, name: str) -> list[str]:
        """Who has such a series, numbers in their order."""
        return sorted((of for known, of in self.series if known == name), key=lambda of: (len(of), of))
