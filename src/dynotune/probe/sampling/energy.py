"""What the GPUs took from the mains in a window: by NVML's counter of energy, else by the power that was sampled."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from dynotune.probe.sampling.counter_deltas import Counter, counted, covers, growth, total
from dynotune.probe.sources.samples import Sample
from dynotune.schema.facts import Missing, Unknown, needed, or_unknown


class Energy(msgspec.Struct, frozen=True, tag="energy"):
    """Energy of all GPUs that the program used, together.

    `source`: `counter`: NVML counts it itself; `power`: sampled power, straight lines between samples.
    """

    joules: float
    source: Literal["counter", "power"]


@or_unknown()
def energy(samples: Sequence[Sample], begin_s: float, end_s: float) -> Energy | Unknown:
    """Return energy of the window from `begin_s` to `end_s` (CLOCK_MONOTONIC), counters interpolated at both ends.

    Counted are the GPUs on which the tree has a process; where process ids cannot be compared, all it may use. Idle
    power is part of it.

    Raises ValueError: the window ends before it begins.
    """
    if not covers(samples, begin_s, end_s):
        return Unknown("the samples do not cover the window")
    places = _places(samples)
    by_counter = total(growth(samples, counted("gpus", "energy_j", place), begin_s, end_s) for place in places)
    # A counter that did not move is one that does not count: a GPU takes power even when idle.
    if not isinstance(by_counter, Unknown) and by_counter > 0:
        return Energy(by_counter, "counter")
    powers = [counted("gpus", "power_w", place) for place in places]
    summed = needed(total(_integral(samples, power, begin_s, end_s) for power in powers))
    if summed > 0:
        return Energy(summed, "power")
    return by_counter if isinstance(by_counter, Unknown) else Unknown("the GPU says that it takes no power")


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
    """Integrate the straight lines between samples, over the window."""
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
