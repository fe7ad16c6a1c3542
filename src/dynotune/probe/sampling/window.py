"""Facts of a window: what the samples say of it, summed up. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median

from dynotune.probe.sampling.counter_deltas import Window, covers
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


def over(samples: Sequence[Sample], begin_s: float, end_s: float) -> Facts:
    """Facts `window.*` from `begin_s` to `end_s` (CLOCK_MONOTONIC); Unknown where the samples do not cover it.

    GPU values are those of the samples inside; counters are interpolated at both ends.

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
    """Names that were seen, each with the share of samples that had it, the most frequent first."""
    masks = [gpu.clock_reasons for gpu in gpus if not isinstance(gpu.clock_reasons, Unknown)]
    if not masks:
        return next(gpu.clock_reasons for gpu in gpus if isinstance(gpu.clock_reasons, Unknown))
    shares: dict[str, float] = {}
    for name in (name for mask in masks for name in clock_reasons.names(mask)):
        shares[name] = shares.get(name, 0.0) + 1 / len(masks)
    return [f"{name} {share:.2f}" for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))]


def _between(window: Window, part: str) -> dict[str, float]:
    """Summed by name over the window; of a sample that reaches beyond its ends, the share that lies within."""
    summed: dict[str, float] = {}
    for before, after in pairwise(window.samples):
        within_s = min(window.end_s, after.time_s) - max(window.begin_s, before.time_s)
        if within_s <= 0:
            continue
        grown: ByName = needed(getattr(after, part))
        for name, value in grown.values.items():
            summed[name] = summed.get(name, 0.0) + value * within_s / (after.time_s - before.time_s)
    return summed


def _process_cpu(window: Window) -> Value:
    """`python 1.95`: cores used under a name, the most first; what has no name of its own comes last."""
    by_process = _between(window, "process_cpu_s").items()
    ordered = sorted(by_process, key=lambda item: (item[0] in (ENDED, REST), -item[1]))
    cores = ((name, value / window.length_s) for name, value in ordered)
    return [f"{name} {share:.2f}" for name, share in cores if share >= 0.005]


def _pin_thread(window: Window) -> float:
    by_thread = _between(window, "thread_cpu_s")
    return sum(by_thread.get(name, 0.0) for name in WATCHED) / window.length_s


def _iowait(window: Window) -> float | Unknown:
    """Of the time of our cores; Unknown where the kernel took back what it had counted."""
    waited_s, all_s = window.growth("cores", "iowait_s"), window.growth("cores", "counted_s")
    return waited_s / all_s if all_s > 0 else Unknown("the kernel does not count the time of our cores")


def _throttled(window: Window) -> float:
    """Zero where no limit could throttle."""
    if all(sample.quota is None for sample in window.samples):
        return 0.0
    return window.growth("quota", "throttled_s") / window.length_s


HOST: dict[str, Callable[[Window], Value | Unknown]] = {
    "window.tree_cpu_s_per_s": lambda window: window.growth("tree", "cpu_s") / window.length_s,
    "window.others_cpu_s_per_s": lambda window: window.other_cpu_s() / window.length_s,
    "window.iowait_share": _iowait,
    "window.throttled_s_per_s": _throttled,
    "window.swapped_pages": lambda window: window.growth("vmstat", "pswpin") + window.growth("vmstat", "pswpout"),
    "window.major_faults": lambda window: window.growth("tree", "num_major_faults"),
    "window.num_processes": lambda window: max(needed(sample.tree).num_processes for sample in window.inside),
    "window.process_cpu": _process_cpu,
    "window.pin_thread_cpu_s_per_s": _pin_thread,
    "window.compact_stalls": lambda window: window.growth("vmstat", "compact_stall"),
    "window.thp_fault_fallbacks": lambda window: window.growth("vmstat", "thp_fault_fallback"),
    "window.numa_pte_updates": lambda window: window.growth("vmstat", "numa_pte_updates"),
    "window.allocstalls": lambda window: window.growth("vmstat", "allocstall"),
    "window.cgroup_memory_high": lambda window: window.growth("memory_events", "high"),
    "window.cgroup_oom_kills": lambda window: window.growth("memory_events", "oom_kill"),
}

NAMES = (*(f"window.{name}" for name in GPU_NAMES), *HOST)
"""Always answered; of further GPUs besides, as `window1.sm_clock_mhz`, …."""
