"""Compute the energy that the program's GPUs used in a time window."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from dynotune.probe.sampling.window import Counter, counted, covers, growth, total
from dynotune.probe.sources.samples import Sample
from dynotune.schema.facts import Missing, Unknown, needed, or_unknown


class Energy(msgspec.Struct, frozen=True, tag="energy"):
    """Energy of all GPUs that the program used, together.

    `source`: `counter` is NVML's own energy counter; `power` integrates sampled power linearly.
    """

    joules: float
    source: Literal["counter", "power"]


@or_unknown()
def energy(samples: Sequence[Sample], begin_s: float, end_s: float) -> Energy | Unknown:
    """Return the energy of the window from `begin_s` to `end_s` (s, CLOCK_MONOTONIC).

    The energy is interpolated at both ends. The sum covers GPUs on which the tree has a process; if process
    ids cannot be compared, it covers all GPUs that the tree may use. Idle power is included.

    Raises ValueError: the window ends before it begins.
    """
    if not covers(samples, begin_s, end_s):
        return Unknown("the samples do not cover the window")
    places = _places(samples)
    counters = [counted("gpus", "energy_j", place) for place in places]
    by_counter = total(growth(samples, counter, begin_s, end_s) for counter in counters)
    # A counter that does not move does not count: a GPU uses power even when idle.
    if not isinstance(by_counter, Unknown) and by_counter > 0:
        return Energy(by_counter, "counter")
    powers = [counted("gpus", "power_w", place) for place in places]
    summed = needed(total(_integral(samples, power, begin_s, end_s) for power in powers))
    if summed > 0:
        return Energy(summed, "power")
    return by_counter if isinstance(by_counter, Unknown) else Unknown("the GPU reports a power of 0")


def _places(samples: Sequence[Sample]) -> list[int]:
    rows = [needed(sample.gpus) for sample in samples]
    num_gpus = min(map(len, rows))
    if not num_gpus:
        raise Missing(Unknown("no GPU was sampled"))
    ours = {
        place
        for row in rows
        for place, gpu in enumerate(row)
        if not isinstance(gpu.processes, Unknown) and any(process.ours for process in gpu.processes)
    }
    return sorted(ours) or list(range(num_gpus))


@or_unknown()
def _integral(samples: Sequence[Sample], value: Counter, begin_s: float, end_s: float) -> float:
    """Integrate the linear interpolation of the samples over the window."""
    found = 0.0
    for left, right in pairwise(samples):
        since, until = max(begin_s, left.time_s), min(end_s, right.time_s)
        if since >= until:
            continue
        first, last = value(left), value(right)
        slope = (last - first) / (right.time_s - left.time_s)
        middle = first + slope * ((since + until) / 2 - left.time_s)
        found += middle * (until - since)
    return found
