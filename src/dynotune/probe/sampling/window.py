"""Facts of a window: what the samples say of it, summed up. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median

from dynotune.probe.sampling.counter_deltas import counted, covers, growth, inside, total
from dynotune.probe.sampling.interference import other_cpu_s
from dynotune.probe.sampling.thread_counter import WATCHED
from dynotune.probe.sources import clock_reasons
from dynotune.probe.sources.counters import ENDED, REST
from dynotune.probe.sources.samples import ByName, Gpu, Sample
from dynotune.schema.facts import Facts, Unknown, Value, needed, or_unknown

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
"""Fact to the field of `Gpu` and how its values become one."""

GPU_NAMES = (*GPU_SUMMARIES, "clock_reasons", "pcie_replays")

MACHINE_COUNTERS = {
    "window.compact_stalls": "compact_stall",
    "window.thp_fault_fallbacks": "thp_fault_fallback",
    "window.numa_pte_updates": "numa_pte_updates",
    "window.allocstalls": "allocstall",
}
MEMORY_EVENTS = {"window.cgroup_memory_high": "high", "window.cgroup_oom_kills": "oom_kill"}

HOST_NAMES = (
    "window.tree_cpu_s_per_s",
    "window.others_cpu_s_per_s",
    "window.iowait_share",
    "window.throttled_s_per_s",
    "window.swapped_pages",
    "window.major_faults",
    "window.num_processes",
    "window.process_cpu",
    "window.pin_thread_cpu_s_per_s",
    *MACHINE_COUNTERS,
    *MEMORY_EVENTS,
)

NAMES = (*(f"window.{name}" for name in GPU_NAMES), *HOST_NAMES)
"""Always answered; of further GPUs besides, as `window1.sm_clock_mhz`, …."""


def over(samples: Sequence[Sample], begin_s: float, end_s: float) -> Facts:
    """Facts `window.*` from `begin_s` to `end_s` (CLOCK_MONOTONIC); Unknown where the samples do not cover it.

    GPU values are those of the samples inside; counters are interpolated at both ends.

    Raises ValueError: the window ends before it begins.
    """
    if not covers(samples, begin_s, end_s):
        return dict.fromkeys(NAMES, Unknown("the samples do not cover the window"))
    return _gpus(samples, begin_s, end_s) | _host(samples, begin_s, end_s)


def _gpus(samples: Sequence[Sample], begin_s: float, end_s: float) -> Facts:
    rows = [sample.gpus for sample in inside(samples, begin_s, end_s)]
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
        found[f"{prefix}.pcie_replays"] = growth(samples, counted("gpus", "pcie_replays", place), begin_s, end_s)
    return found


def _summary(gpus: Sequence[Gpu], field: str, summarise: Callable[[Numbers], float]) -> float | Unknown:
    values = [getattr(gpu, field) for gpu in gpus]
    known = [value for value in values if not isinstance(value, Unknown)]
    return summarise(known) if known else next(value for value in values if isinstance(value, Unknown))


def _reasons(gpus: Sequence[Gpu]) -> Value | Unknown:
    """Names that were seen, each with the share of samples that had it, the most frequent first."""
    masks = [gpu.clock_reasons for gpu in gpus if not isinstance(gpu.clock_reasons, Unknown)]
    if not masks:
        return next(gpu.clock_reasons for gpu in gpus if isinstance(gpu.clock_reasons, Unknown))
    shares: dict[str, float] = {}
    for name in (name for mask in masks for name in clock_reasons.names(mask)):
        shares[name] = shares.get(name, 0.0) + 1 / len(masks)
    return [f"{name} {share:.2f}" for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))]


def _host(samples: Sequence[Sample], begin_s: float, end_s: float) -> Facts:
    length_s = end_s - begin_s

    def grew(part: str, field: str) -> float | Unknown:
        return growth(samples, counted(part, field), begin_s, end_s)

    by_process = _between(samples, "process_cpu_s", begin_s, end_s)
    by_thread = _between(samples, "thread_cpu_s", begin_s, end_s)
    pin_s = by_thread if isinstance(by_thread, Unknown) else sum(by_thread.get(name, 0.0) for name in WATCHED)
    return {
        "window.tree_cpu_s_per_s": _per(grew("tree", "cpu_s"), length_s),
        "window.others_cpu_s_per_s": _per(other_cpu_s(samples, begin_s, end_s), length_s),
        "window.iowait_share": _iowait(samples, begin_s, end_s),
        "window.throttled_s_per_s": _throttled(samples, grew, length_s),
        "window.swapped_pages": total(grew("vmstat", name) for name in ("pswpin", "pswpout")),
        "window.major_faults": grew("tree", "num_major_faults"),
        "window.num_processes": _num_processes(inside(samples, begin_s, end_s)),
        "window.process_cpu": _rates(by_process, length_s),
        "window.pin_thread_cpu_s_per_s": _per(pin_s, length_s),
        **{fact: grew("vmstat", name) for fact, name in MACHINE_COUNTERS.items()},
        **{fact: grew("memory_events", name) for fact, name in MEMORY_EVENTS.items()},
    }


@or_unknown()
def _between(samples: Sequence[Sample], part: str, begin_s: float, end_s: float) -> dict[str, float]:
    """Summed by name over the window; of a sample that reaches beyond its ends, the share that lies within."""
    summed: dict[str, float] = {}
    for before, after in pairwise(samples):
        within_s = min(end_s, after.time_s) - max(begin_s, before.time_s)
        if within_s <= 0:
            continue
        grown: ByName = needed(getattr(after, part))
        for name, value in grown.values.items():
            summed[name] = summed.get(name, 0.0) + value * within_s / (after.time_s - before.time_s)
    return summed


@or_unknown()
def _rates(by_name: dict[str, float] | Unknown, length_s: float) -> Value:
    """`python 1.95`: cores used under a name, the most first; what has no name of its own comes last."""
    ordered = sorted(needed(by_name).items(), key=lambda item: (item[0] in (ENDED, REST), -item[1]))
    return [f"{name} {value / length_s:.2f}" for name, value in ordered if value / length_s >= 0.005]


@or_unknown()
def _per(value: float | Unknown, length_s: float) -> float:
    return needed(value) / length_s


@or_unknown()
def _iowait(samples: Sequence[Sample], begin_s: float, end_s: float) -> float | Unknown:
    """Of the time of our cores; Unknown where the kernel took back what it had counted."""
    waited_s = needed(growth(samples, counted("cores", "iowait_s"), begin_s, end_s))
    all_s = needed(growth(samples, counted("cores", "counted_s"), begin_s, end_s))
    return waited_s / all_s if all_s > 0 else Unknown("the kernel does not count the time of our cores")


def _throttled(
    samples: Sequence[Sample], grew: Callable[[str, str], float | Unknown], length_s: float
) -> float | Unknown:
    """Zero where no limit could throttle."""
    if all(sample.quota is None for sample in samples):
        return 0.0
    return _per(grew("quota", "throttled_s"), length_s)


@or_unknown()
def _num_processes(samples: Sequence[Sample]) -> int:
    return max(needed(sample.tree).num_processes for sample in samples)
