"""Store values of a run in bounded memory: one bin per second for the last half hour."""

from __future__ import annotations

import math
from collections import Counter, deque
from itertools import takewhile

MOST_BINS = 1800
"""Number of seconds (bins) that are stored."""
WIDTH = 1.04
"""Ratio of the upper to the lower end of a class of step times: quantiles are exact within 2%, half a
class."""
SHORTEST_S, LONGEST_S = 1e-7, 1e6
MOST_SERIES = 1024


class Bin:
    """Values of one interval of time, added up.

    Args:
        first: number of the first step in the bin, for bins of steps.
        counts: number of values in each class of `WIDTH`, for series that need quantiles.
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
        """Return the quantile at `share` of the values, within 2%; NaN without values."""
        left = math.ceil(share * self.num)
        for at, num in sorted((self.counts or {}).items()):
            left -= num
            if left <= 0:
                return float(min(WIDTH ** (at - 0.5), self.most))
        return math.nan


class Series:
    """The values of one quantity over time, in bins of one second."""

    def __init__(self, *, counted: bool = False) -> None:
        self._bins, self._counted = deque[Bin](maxlen=MOST_BINS), counted
        self.ever = Bin(0.0, counted=counted)
        self.last_s = -math.inf

    def add(self, time_s: float, value: float, number: int = 0) -> None:
        """Add a value; a value that arrives late counts for the newest bin."""
        if not self._bins or time_s >= self._bins[-1].begin_s + 1.0:
            self._bins.append(Bin(math.floor(time_s), first=number, counted=self._counted))
        self._bins[-1].add(value)
        self.ever.add(value)
        self.last_s = max(self.last_s, time_s)

    def bins(self, begin_s: float) -> list[Bin]:
        """Return the bins from `begin_s` on, in order of time; older bins cost no time."""
        return list(takewhile(lambda each: each.begin_s >= begin_s, reversed(self._bins)))[::-1]

    def over(self, begin_s: float) -> Bin:
        """Return the bins from `begin_s` on, merged into one."""
        whole = Bin(begin_s, counted=self._counted)
        for each in self.bins(begin_s):
            whole.merge(each)
        return whole


class Store:
    """Series by quantity (`step`, `gpu.power_w`, …) and owner (a rank, a GPU). Times: CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], Series] = {}

    def add(self, name: str, whose: str, time_s: float, value: float, number: int = 0) -> None:
        if (name, whose) not in self.series and len(self.series) < MOST_SERIES:
            self.series[name, whose] = Series(counted=name == "step")
        if series := self.series.get((name, whose)):
            series.add(time_s, value, number)

    def of(self, name: str, whose: str = "") -> Series:
        """Return the series of a quantity and an owner; an empty series if nothing was stored."""
        return self.series.get((name, whose)) or Series(counted=name == "step")

    def whose(self, name: str) -> list[str]:
        """Return the owners (ranks or GPUs) with a series of the quantity, sorted by number."""
        return sorted((of for known, of in self.series if known == name), key=lambda of: (len(of), of))
