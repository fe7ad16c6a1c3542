"""Find out which step of one rank is which of another, in a program that was joined while it ran.

Each rank counts its steps from when the agent came to it. Ranks that exchange gradients end a step together,
on one host's clock, so the ends tell how far their counts are apart.
"""

import bisect
import statistics
from collections.abc import Sequence

from dynotune.launch.records import Record

NUM_STEPS = 20


def skips(records: Sequence[Record]) -> dict[str, int]:
    """Return how many of its first steps each rank has to leave out, by process id, so that all have the same
    number for the same step."""
    first, *others = records
    ends_s = [step.end_s for step in first.steps]
    if len(ends_s) < 2:
        return {}
    apart = {first.pid: 0}
    for record in others:
        theirs_s = [step.end_s for step in record.steps]
        if len(theirs_s) < 2:
            return {}
        latest = [at for at in range(len(ends_s)) if ends_s[at] <= theirs_s[-1]][-NUM_STEPS:]
        pairs = [_nearest(theirs_s, ends_s[at]) - at for at in latest]
        apart[record.pid] = round(statistics.median(pairs)) if pairs else 0
    least = min(apart.values())
    return {str(pid): num - least for pid, num in apart.items()}


def _nearest(times_s: Sequence[float], time_s: float) -> int:
    at = bisect.bisect_left(times_s, time_s)
    around = [number for number in (at - 1, at) if 0 <= number < len(times_s)]
    return min(around, key=lambda number: abs(times_s[number] - time_s))
