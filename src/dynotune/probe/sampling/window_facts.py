"""Compute the facts of a time window from samples."""

from collections.abc import Callable, Sequence
from statistics import fmean, median

from dynotune.probe.sampling.window import Window, covers
from dynotune.probe.sources import nvml
from dynotune.probe.sources.samples import Gpu, Sample
from dynotune.schema.facts import Facts, Unknown, Value, or_unknown

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
    """Return facts `window.*` from `begin_s` to `end_s` (CLOCK_MONOTONIC).

    They are Unknown if samples do not cover the window. GPU values come from the samples inside the window;
    counters are interpolated at both ends.

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
    by_share = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return [f"{name} {share:.2f}" for name, share in by_share]


def _throttled(window: Window) -> float:
    """Return the share of the window in which a CPU quota throttled the process; zero without a limit."""
    if all(sample.quota is None for sample in window.samples):
        return 0.0
    return window.growth("quota", "throttled_s") / window.length_s


def _swapped_pages(window: Window) -> float:
    return window.growth("vmstat", "pswpin") + window.growth("vmstat", "pswpout")


HOST: dict[str, Callable[[Window], Value | Unknown]] = {
    "window.tree_cpu_s_per_s": lambda window: window.growth("tree", "cpu_s") / window.length_s,
    "window.others_cpu_s_per_s": lambda window: window.other_cpu_s() / window.length_s,
    "window.throttled_s_per_s": _throttled,
    "window.swapped_pages": _swapped_pages,
    "window.major_faults": lambda window: window.growth("tree", "num_major_faults"),
    "window.numa_pte_updates": lambda window: window.growth("vmstat", "numa_pte_updates"),
    "window.cgroup_memory_high": lambda window: window.growth("memory_events", "high"),
    "window.cgroup_oom_kills": lambda window: window.growth("memory_events", "oom_kill"),
}

NAMES = (*(f"window.{name}" for name in GPU_NAMES), *HOST)
"""Facts that are always answered; further GPUs add facts such as `window1.sm_clock_mhz`."""
