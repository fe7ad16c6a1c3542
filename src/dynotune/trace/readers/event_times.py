"""Times of chrome trace events: microseconds in the file, whole nanoseconds in the columns."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.errors import UsageError
from dynotune.trace.readers.chrome_events import Event, written_times
from dynotune.trace.timeline import Ints

# Below this, a float64 of microseconds is within half a nanosecond of the decimal number in the file.
_EXACT_BELOW_US = 2.0**43
_LATEST_US = 2.0**52  # the year 2112; the sum of two times up to this one still fits 64 bits of nanoseconds


class EventTimes:
    """Times of the events of a slice, in whole nanoseconds."""

    def __init__(self, path: Path, events: list[Event], text: memoryview, first: int) -> None:
        self._path = path
        self._events = events
        self._text = text
        self._first = first
        self._written: dict[int, Decimal] = {}

    def of(self, found: list[Event]) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the times (ns) of selected events, 0 without a time; and which events have a time."""
        times = [event.ts for event in found]
        times_us = np.fromiter(times, np.float64, len(found))
        is_known = ~np.isnan(times_us)
        self.check(times_us, found)
        if np.abs(times_us).max(initial=0, where=is_known) >= _EXACT_BELOW_US and float in map(type, times):
            if not self._written:
                exact = zip(self._events, written_times(self._text), strict=True)
                self._written = {id(event): time_us for event, time_us in exact}
            written = self._written
            times_ns = [round(written[id(event)] * 1000) for event in found]
            return np.fromiter(times_ns, np.int64, len(found)), is_known
        return nanoseconds(np.where(is_known, times_us, 0.0)), is_known

    def check(self, times_us: NDArray[np.float64], found: list[Event]) -> None:
        """Check the range of all times. Raises UsageError: a time is out of range."""
        beyond = np.flatnonzero(np.abs(times_us) > _LATEST_US)
        if len(beyond):
            index = next(i for i, event in enumerate(self._events) if event is found[beyond[0]])
            raise UsageError(
                f"{self._path}: `traceEvents[{self._first + index}]` has a time beyond {_LATEST_US:.0e} µs",
                hint="times of a chrome trace are microseconds; was it written in another unit?",
            )


def nanoseconds(times_us: NDArray[np.float64]) -> Ints:
    """Round microseconds to whole nanoseconds.

    The whole part and the fraction are converted separately, because a float64 product rounds twice.
    """
    whole = np.floor(times_us)
    fraction_ns = np.rint((times_us - whole) * 1000).astype(np.int64)
    return whole.astype(np.int64) * 1000 + fraction_ns
