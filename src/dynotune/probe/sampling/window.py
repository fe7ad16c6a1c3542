"""Compute facts of a time window from samples, and the energy that GPUs used in the window."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

import msgspec

from dynotune.probe.sources import nvml
from dynotune.probe.sources.samples import ByName, Gpu, Sample
from dynotune.schema.facts import Facts, Missing, Unknown, Value, needed, or_unknown

Counter = Callable[[Sample], float]
"""Read a counter of a sample. Raises Missing if the sample lacks it."""

FELL = Unknown("the counter fell")


@or_unknown()
def growth(samples: Sequence[Sample], counter: Counter, begin_s: float, end_s: float) -> float | Unknown:
    """Return a counter's growth from `begin_s` to `end_s`, both within the samples, by linear interpolation.

    The growth is Unknown if a needed sample lacks the counter, or if the counter fell.
    """
    begin, end = _at(samples, counter, begin_s), _at(samples, counter, end_s)
    return end - begin if end >= begin else FELL


def _at(samples: Sequence[Sample], counter: Counter, time_s: float) -> float:
    after_at = min(bisect_right(samples, time_s, key=lambda sample: sample.time_s), len(samples) - 1)
    left, right = samples[max(after_at - 1, 0)], samples[after_at]
    before, after = counter(left), counter(right)
    if after < before:
        raise Missing(FELL)
    span_s = right.time_s - left.time_s
    share = (time_s - left.time_s) / span_s if span_s > 0 else 1.0
    return float(before + share * (after - before))


def counted(part: str, field: str, place: int = 0) -> Counter:
    """Return a reader for `growth` of one counter in `part` of the samples; `place` selects a GPU in the samples."""

    def counter(sample: Sample) -> float:
        counters = needed(getattr(sample, part))
        if isinstance(counters, list):
            absent = Unknown("this GPU was not sampled all along")
            counters = counters[place] if place < len(counters) else needed(absent)
        if isinstance(counters, ByName):
            return needed(counters.values.get(field, Unknown(f"this kernel does not count {field}")))
        value: float = needed(Unknown("it was not counted") if counters is None else getattr(counters, field))
        return value

    return counter


@or_unknown()
def total(values: Iterable[float | Unknown]) -> float:
    return sum(map(needed, values))


def covers(samples: Sequence[Sample], begin_s: float, end_s: float) -> bool:
    """Tell whether samples reach from before to after the window. Raises ValueError: the window's end comes first."""
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} to {end_s} s")
    return bool(samples) and samples[0].time_s <= begin_s and end_s <= samples[-1].time_s


def inside(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[Sample]:
    """Return the samples inside a window that the samples cover; for a window between two samples, return those two."""
    found = [sample for sample in samples if begin_s <= sample.time_s <= end_s]
    after = next(at for at, sample in enumerate(samples) if sample.time_s >= end_s)
    return found or list(samples[max(0, after - 1) : after + 1])


class Window:
    """A time window: all samples, the window's begin and end, and the samples inside the window."""

    def __init__(self, samples: Sequence[Sample], begin_s: float, end_s: float) -> None:
        self.samples, self.begin_s, self.end_s = samples, begin_s, end_s
        self.length_s = end_s - begin_s
        self.inside = inside(samples, begin_s, end_s)

    def growth(self, part: str, field: str, place: int = 0) -> float:
        """Return the growth of one counter in a part of the samples. Raises Missing: some sample lacks the counter."""
        return self._growth(counted(part, field, place))

    def own_cpu_s(self) -> float:
        return self._growth(lambda sample: sample.own_cpu_s)

    def _growth(self, counter: Counter) -> float:
        return needed(growth(self.samples, counter, self.begin_s, self.end_s))

    def other_cpu_s(self) -> float:
        """Return CPU time (s) of our cores that neither the tree nor dynotune used; counter errors can make it < 0.

        Kernel threads count as others, because their work cannot be attributed.
        """
        return self.growth("cores", "busy_s") - self.growth("tree", "cpu_s") - self.own_cpu_s()


Numbers = Sequence[float]

GPU_SUMMARIES: dict[str, tuple[str, Callable[[Numbers], float]]] = {
    "gpu_utilisation_percent": ("utilisation_percent", fmean),
    "gpu_memory_used_bytes": ("memory_used_bytes", max),
    "sm_clock_mhz": ("sm_clock_mhz", median),
    "memory_clock_mhz": ("memory_clock_mhz", median),
    "power_w": ("power_w", fmean),
    "temperature_c": ("temperature_c", max),
    "pcie_rx_bytes_per_s": ("pcie_rx_bytes_per_s", fmean),
    "pcie_rx_bytes_per_s_max": ("pcie_rx_bytes_per_s", max),
    "pcie_tx_bytes_per_s": ("pcie_tx_bytes_per_s", fmean),
    "pcie_tx_bytes_per_s_max": ("pcie_tx_bytes_per_s", max),
    "pcie_generation": ("pcie_generation", max),
    "pcie_width": ("pcie_width", max),
}
"""Map each fact to the field of `Gpu` and the function that summarises its values."""

GPU_NAMES = (*GPU_SUMMARIES, "clock_reasons", "pcie_replays")


def over(samples: Sequence[Sample], begin_s: float, end_s: float) -> Facts:
    """Return facts `window.*` from `begin_s` to `end_s` (CLOCK_MONOTONIC); Unknown if samples do not cover the window.

    GPU values come from the samples inside the window; counters are interpolated at both ends.

    Raises ValueError: the window ends before it begins.
    """
    if not covers(samples, begin_s, end_s):
        return dict.fromkeys(NAMES, Unknown("the samples do not cover the window"))
    window = Window(samples, begin_s, end_s)
    return _gpus(window) | {name: or_unknown()(question)(window) for name, question in HOST.items()}


def _gpus(window: Window) -> Facts:
    rows = [sample.gpus for sample in window.inside]
    why = next((row for row in rows if isinstance(row, Unknown)), None)
    known = [row for row in rows if not isinstance(row, Unknown)]
    num_gpus = min(map(len, known), default=0)
    if why is not None or not num_gpus:
        return dict.fromkeys((f"window.{name}" for name in GPU_NAMES), why or Unknown("no GPU was sampled"))
    found: Facts = {}
    for place in range(num_gpus):
        gpus = [row[place] for row in known]
        prefix = f"window{place or ''}"
        for name, (field, summarise) in GPU_SUMMARIES.items():
            found[f"{prefix}.{name}"] = _summary(gpus, field, summarise)
        found[f"{prefix}.clock_reasons"] = _reasons(gpus)
        found[f"{prefix}.pcie_replays"] = or_unknown()(window.growth)("gpus", "pcie_replays", place)
    return found


def _summary(gpus: Sequence[Gpu], field: str, summarise: Callable[[Numbers], float]) -> float | Unknown:
    values = [getattr(gpu, field) for gpu in gpus]
    known = [value for value in values if not isinstance(value, Unknown)]
    return summarise(known) if known else next(value for value in values if isinstance(value, Unknown))


def _reasons(gpus: Sequence[Gpu]) -> Value | Unknown:
    """Return the observed reasons for GPU clocks, each with its share of samples, the most frequent first."""
    masks = [gpu.clock_reasons for gpu in gpus if not isinstance(gpu.clock_reasons, Unknown)]
    if not masks:
        return next(gpu.clock_reasons for gpu in gpus if isinstance(gpu.clock_reasons, Unknown))
    shares: dict[str, float] = {}
    for name in (name for mask in masks for name in nvml.reason_names(mask)):
        shares[name] = shares.get(name, 0.0) + 1 / len(masks)
    return [f"{name} {share:.2f}" for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))]


def _throttled(window: Window) -> float:
    """Return the share of the window in which a CPU quota throttled the process; zero without a limit."""
    if all(sample.quota is None for sample in window.samples):
        return 0.0
    return window.growth("quota", "throttled_s") / window.length_s


HOST: dict[str, Callable[[Window], Value | Unknown]] = {
    "window.tree_cpu_s_per_s": lambda window: window.growth("tree", "cpu_s") / window.length_s,
    "window.others_cpu_s_per_s": lambda window: window.other_cpu_s() / window.length_s,
    "window.throttled_s_per_s": _throttled,
    "window.swapped_pages": lambda window: window.growth("vmstat", "pswpin") + window.growth("vmstat", "pswpout"),
    "window.major_faults": lambda window: window.growth("tree", "num_major_faults"),
    "window.numa_pte_updates": lambda window: window.growth("vmstat", "numa_pte_updates"),
    "window.cgroup_memory_high": lambda window: window.growth("memory_events", "high"),
    "window.cgroup_oom_kills": lambda window: window.growth("memory_events", "oom_kill"),
}

NAMES = (*(f"window.{name}" for name in GPU_NAMES), *HOST)
"""Facts that are always answered; further GPUs add facts such as `window1.sm_clock_mhz`."""


class Energy(msgspec.Struct, frozen=True, tag="energy"):
    """Energy of all GPUs that the program used, together.

    `source`: `counter` is NVML's own energy counter; `power` integrates sampled power linearly.
    """

    joules: float
    source: Literal["counter", "power"]


@or_unknown()
def energy(samples: Sequence[Sample], begin_s: float, end_s: float) -> Energy | Unknown:
    """Return the energy of the window from `begin_s` to `end_s` (s, CLOCK_MONOTONIC), interpolated at both ends.

    The sum covers GPUs on which the tree has a process; if process ids cannot be compared, it covers all GPUs that the
    tree may use. Idle power is included.

    Raises ValueError: the window ends before it begins.
    """
    if not covers(samples, begin_s, end_s):
        return Unknown("the samples do not cover the window")
    places = _places(samples)
    by_counter = total(growth(samples, counted("gpus", "energy_j", place), begin_s, end_s) for place in places)
    # A counter that does not move does not count: a GPU uses power even when idle.
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
