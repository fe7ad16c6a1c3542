"""Measure how long calls take, without waiting for any call."""

import math
import time
from collections import deque
from typing import Any, Protocol

import torch

_KEPT = 4096  # newest samples, from which percentiles are read
_PENDING = 256  # pairs of events that wait to be read


class CallTimer(Protocol):
    def begin(self) -> Any: ...
    def end(self, mark: Any) -> None: ...
    def samples_s(self) -> list[float]: ...


class HostTimer:
    """Times every call, for devices on which the work is done when a call returns."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_KEPT)

    def begin(self) -> float:
        return time.perf_counter()

    def end(self, mark: float) -> None:
        self._samples.append(time.perf_counter() - mark)

    def samples_s(self) -> list[float]:
        return list(self._samples)


class DeviceTimer:
    """Times every nth call with events on the current stream, which are read once the device has passed them.

    `every`: how many calls there are for each timed call; timing every call would slow small models by a
        percent.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._num_calls = 0
        self._samples: deque[float] = deque(maxlen=_KEPT)
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._free: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        self._num_calls += 1
        if self._num_calls % self._every:
            return None
        if len(self._pending) >= _PENDING:
            self._read()
            if len(self._pending) >= _PENDING:
                return None  # the device is far behind: this call goes untimed
        if not self._free:
            self._free.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        pair = self._free.pop()
        pair[0].record()
        return pair

    def end(self, mark: tuple[torch.cuda.Event, torch.cuda.Event] | None) -> None:
        if mark is not None:
            mark[1].record()
            self._pending.append(mark)

    def samples_s(self) -> list[float]:
        self._read()
        return list(self._samples)

    def _read(self) -> None:
        while self._pending and self._pending[0][1].query():
            start, end = self._pending.popleft()
            self._samples.append(start.elapsed_time(end) / 1000)
            self._free.append((start, end))


def percentile(samples: list[float], share: float) -> float | None:
    """Return the smallest sample that at least `share` of the samples do not exceed; None without samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
