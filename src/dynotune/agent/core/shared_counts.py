"""Numbers that a process and those forked from it add to, and any of them reads."""

from __future__ import annotations

import mmap
import os

_ROWS = 256


class SharedCounts:
    """`num` numbers, 0 at first. Each process adds to a row of its own, by its id: none waits for another."""

    def __init__(self, num: int) -> None:
        self._num, self._values = num, memoryview(mmap.mmap(-1, _ROWS * num * 8)).cast("d")

    def add(self, index: int, value: float = 1.0) -> None:
        self._values[os.getpid() % _ROWS * self._num + index] += value

    def each(self, index: int) -> list[float]:
        """Of all processes."""
        return list(self._values[index :: self._num])
