"""The pace of the host's core: how long a fixed piece of Python code takes now.

A core that another program shares runs the same code up to 1.7 times as long as before, for minutes. Steps
that wait for the host then take longer, too, though nobody changed the process. What changed the machine
shows in this loop; what changed the process (a profiler that stayed attached to CUDA) does not.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

NUM_LOOPS, LOOP_LENGTH = 7, 2000
"""Loops of about 0.06 ms; the middle one counts, so an interruption of one or two loops does not show."""


def pace_s() -> float:
    """Return seconds of a loop in pure Python."""
    times = []
    for _ in range(NUM_LOOPS):
        begin_s, total = perf_counter(), 0
        for number in range(LOOP_LENGTH):
            total += number
        times.append(perf_counter() - begin_s)
    return median(times)
