"""What the GPUs took from the mains in a window: by NVML's counter of energy, else by the power that was sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from dynotune.probe.sampling.counter_deltas import covers, growth
from dynotune.probe.sources.samples import Gpu, Sample
from dynotune.schema.facts import Unknown


class Energy(msgspec.Struct, frozen=True, tag="energy"):
    """Of all GPUs that the program used, together.

    Args:
        source: `counter`: NVML counts it itself; `power`: sampled power, straight lines between samples.
    """

    joules: float
    source: Literal["counter", "power"]


def energy(samples: Sequence[Sample], begin_s: float, end_s: float) -> Energy | Unknown:
    """Energy of the window from `begin_s` to `end_s` (CLOCK_MONOTONIC), counters interpolated at both ends.

    Counted are the GPUs on which the tree has a process; where process ids cannot be compared, all it may use. Idle
    power is part of it.

    Raises:
        ValueError: the window ends before it begins.
    """
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} to {end_s} s")
    if not covers(samples, begin_s, end_s):
        return Unknown("the samples do not cover the window")
    places = _places(samples)
    if isinstance(places, Unknown):
        return places
    counted = _sum([growth(samples, _gpu_field(place, "energy_j"), begin_s, end_s) for place in places])
    # A counter that did not move is one that does not count: a GPU takes power even when idle.
    if not isinstance(counted, Unknown) and counted > 0:
        return Energy(counted, "counter")
    summed = _sum([_integral(samples, _gpu_field(place, "power_w"), begin_s, end_s) for place in places])
    if not isinstance(summed, Unknown) and summed > 0:
        return Energy(summed, "power")
    for found in (summed, counted):
        if isinstance(found, Unknown):
            return found
    return Unknown("the GPU says that it takes no power")


def _places(samples: Sequence[Sample]) -> list[int] | Unknown:
    """Which of the sampled GPUs count."""
    ours: set[int] = set()
    num_gpus = None
    for sample in samples:
        if isinstance(sample.gpus, Unknown):
            return sample.gpus
        num_gpus = len(sample.gpus) if num_gpus is None else min(num_gpus, len(sample.gpus))
        for place, gpu in enumerate(sample.gpus):
            if not isinstance(gpu.processes, Unknown) and any(process.ours for process in gpu.processes):
                ours.add(place)
    if not num_gpus:
        return Unknown("no GPU was sampled")
    return sorted(ours) or list(range(num_gpus))


def _gpu_field(place: int, field: str) -> Callable[[Sample], float | Unknown]:
    def value(sample: Sample) -> float | Unknown:
        if isinstance(sample.gpus, Unknown):
            return sample.gpus
        gpu: Gpu | None = sample.gpus[place] if place < len(sample.gpus) else None
        if gpu is None:
            return Unknown("this GPU was not sampled all along")
        found: float | Unknown = getattr(gpu, field)
        return found

    return value


def _integral(
    samples: Sequence[Sample], value: Callable[[Sample], float | Unknown], begin_s: float, end_s: float
) -> float | Unknown:
    """Of the straight lines between samples, over the window."""
    total = 0.0
    for left, right in pairwise(samples):
        since, until = max(begin_s, left.time_s), min(end_s, right.time_s)
        if since >= until:
            continue
        first, last = value(left), value(right)
        if isinstance(first, Unknown):
            return first
        if isinstance(last, Unknown):
            return last
        slope = (last - first) / (right.time_s - left.time_s)
        middle = first + slope * ((since + until) / 2 - left.time_s)
        total += middle * (until - since)
    return total


def _sum(values: Sequence[float | Unknown]) -> float | Unknown:
    total = 0.0
    for value in values:
        if isinstance(value, Unknown):
            return value
        total += value
    return total
