"""Whether something outside the arm's own process tree disturbed a window: arithmetic on samples."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dynotune.probe.counters import TICK_S
from dynotune.probe.samples import Cores, Gpu, GpuProcess, Quota, Sample
from dynotune.schema.facts import Unknown

FOREIGN_SHARE = 0.10
"""Of the cores we may use. Less is the ordinary background of a shared machine, which both arms meet and the
pairs average out; one busy process on a machine of up to eight cores is more."""

STEAL_SHARE = 0.05
"""Of the time our cores wanted to run: a step gets longer by as much, and no other core makes up for it."""

STEAL_CORES = 0.05
"""Below this much of one core, an idle host's share of stolen time is rounding."""

THROTTLED_SHARE = 0.01
"""Of the window. Throttling stops every thread at once, so it costs the step what it lasts."""

SWAP_PAGES_PER_S = 256.0
"""1 MiB/s of 4 KiB pages: what a disk does beside other work without being noticed."""

CLOCK_SHARE = 0.10
"""Of the samples in the window; a single sample may catch a moment of microseconds."""

MISMATCH_SHARE = 0.10
"""The tree cannot use more of our cores than they are busy; beyond this, different things are counted."""

MIN_TICKS = 20
"""The kernel counts in ticks of 10 ms: in a window of fewer than these, a share of 10% is a tick or two."""

SWAP_READAHEAD_PAGES = 8
"""One major fault brings in up to 2^`vm.page-cluster` pages, 8 by default."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
HW_SLOWDOWN, SYNC_BOOST, HW_THERMAL, HW_POWER_BRAKE = 0x8, 0x10, 0x40, 0x80

CLOCK_CAUSES: dict[str, Callable[[int], bool]] = {
    "power brake": lambda reasons: bool(reasons & HW_POWER_BRAKE),
    "sync boost with other GPUs": lambda reasons: bool(reasons & SYNC_BOOST),
    # Set beside its cause where there is one; heat is of the program's own making.
    "hardware slowdown": lambda reasons: reasons & (HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE) == HW_SLOWDOWN,
}
"""Clock event reasons from outside the program's own work. A power cap and heat are of its own making."""

MPS_SERVER = "nvidia-cuda-mps-server"


class Judgement(msgspec.Struct, frozen=True):
    """What can be said about one window.

    Args:
        foreign: causes outside the arm's process tree, in words; any of them voids the pair.
        unknown: what could not be judged, and why.
    """

    foreign: list[str] = []
    unknown: list[str] = []


def judge(samples: Sequence[Sample], begin_s: float, end_s: float) -> Judgement:
    """Judge the window from `begin_s` to `end_s` (CLOCK_MONOTONIC) by the samples around it.

    Counters are interpolated at both ends.

    Raises:
        ValueError: the window ends before it begins.
    """
    if not begin_s < end_s:
        raise ValueError(f"a window from {begin_s} to {end_s} s")
    if not samples or begin_s < samples[0].time_s or end_s > samples[-1].time_s:
        return Judgement(unknown=["outside causes: the samples do not cover the window"])
    window = _Window(samples, begin_s, end_s)
    found = Judgement([], [])
    for subject, rule in (("other processes", _cores), ("the CPU quota", _quota), ("swapping", _swap)):
        try:
            for reason in rule(window):
                found.foreign.append(reason)
        except _Missing as missing:
            found.unknown.append(f"{subject}: {missing}")
    for at, gpu in enumerate(samples[0].gpus):
        for subject, gpu_rule in (("other processes", _gpu_processes), ("clock", _gpu_clock)):
            try:
                for reason in gpu_rule(window, at):
                    found.foreign.append(reason)
            except _Missing as missing:
                found.unknown.append(f"{subject} of GPU {gpu.nvml_index}: {missing}")
    return found


def foreign(samples: Sequence[Sample], begin_s: float, end_s: float) -> list[str]:
    """Causes outside the arm's process tree. Empty does not say that all could be judged; `judge` does.

    Raises:
        ValueError: as `judge`.
    """
    return judge(samples, begin_s, end_s).foreign


def growth(
    samples: Sequence[Sample], counter: Callable[[Sample], float | Unknown], begin_s: float, end_s: float
) -> float | Unknown:
    """How much a counter grew from `begin_s` to `end_s`, both within the samples; linear between two of them.

    Unknown where one of the samples it rests on does not have it, or where it fell.
    """
    values = [_at(samples, counter, time_s) for time_s in (begin_s, end_s)]
    for value in values:
        if isinstance(value, Unknown):
            return value
    begin, end = values
    assert isinstance(begin, float) and isinstance(end, float)
    return end - begin if end >= begin else Unknown("the counter fell")


def _at(samples: Sequence[Sample], counter: Callable[[Sample], float | Unknown], time_s: float) -> float | Unknown:
    after_at = min(bisect_right(samples, time_s, key=lambda sample: sample.time_s), len(samples) - 1)
    left, right = samples[max(after_at - 1, 0)], samples[after_at]
    before, after = counter(left), counter(right)
    if isinstance(before, Unknown):
        return before
    if isinstance(after, Unknown):
        return after
    if after < before:
        return Unknown("the counter fell")
    span_s = right.time_s - left.time_s
    share = (time_s - left.time_s) / span_s if span_s > 0 else 1.0
    return float(before + share * (after - before))


class _Missing(Exception):
    """What a rule needs is not there; its text says why."""


class _Window:
    """The samples, the two ends, and the samples that say what held inside."""

    def __init__(self, samples: Sequence[Sample], begin_s: float, end_s: float) -> None:
        self.samples, self.begin_s, self.end_s = samples, begin_s, end_s
        self.length_s = end_s - begin_s
        inside = [sample for sample in samples if begin_s <= sample.time_s <= end_s]
        # A window shorter than the interval may hold none: then those beside it are the nearest there are.
        after = next(at for at, sample in enumerate(samples) if sample.time_s >= end_s)
        self.inside = inside or list(samples[max(0, after - 1) : after + 1])

    def growth(self, part: str, field: str) -> float:
        """Of one counter of a part of the samples.

        Raises:
            _Missing: it was not counted all along.
        """

        def counter(sample: Sample) -> float | Unknown:
            counters = getattr(sample, part)
            if counters is None:
                return Unknown("it was not counted")
            return counters if isinstance(counters, Unknown) else getattr(counters, field)

        grown = growth(self.samples, counter, self.begin_s, self.end_s)
        if isinstance(grown, Unknown):
            raise _Missing(grown.reason)
        return grown

    def gpus(self, at: int) -> list[Gpu]:
        """One GPU, by its place in the samples, at every moment inside."""
        return [sample.gpus[at] for sample in self.inside]

    def own_cpu_s(self) -> float:
        grown = growth(self.samples, lambda sample: sample.own_cpu_s, self.begin_s, self.end_s)
        if isinstance(grown, Unknown):
            raise _Missing(grown.reason)
        return grown


def other_cpu_s(samples: Sequence[Sample], begin_s: float, end_s: float) -> float | Unknown:
    """CPU time of our cores that neither the tree nor dynotune used; negative by what the counters disagree.

    Threads of the kernel count as others: nothing says for whom they work.
    """
    try:
        return _other_cpu_s(_Window(samples, begin_s, end_s))
    except _Missing as missing:
        return Unknown(str(missing))


def _other_cpu_s(window: _Window) -> float:
    return window.growth("cores", "busy_s") - window.growth("tree", "cpu_s") - window.own_cpu_s()


def _cores(window: _Window) -> Iterator[str]:
    if window.length_s < MIN_TICKS * TICK_S:
        raise _Missing("the window is too short for the kernel's CPU counters")
    others_s = _other_cpu_s(window)
    busy_s, steal_s = window.growth("cores", "busy_s"), window.growth("cores", "steal_s")
    first = window.inside[0]
    num_cpus = first.cores.num_cpus if isinstance(first.cores, Cores) else 0
    counted_s = busy_s + steal_s + window.growth("cores", "idle_s")
    # Some sandboxes show /proc/stat with zeros.
    if counted_s < 0.5 * num_cpus * window.length_s:
        raise _Missing("the kernel does not count the time of our cores")
    usable = min(float(num_cpus), first.quota.cores) if isinstance(first.quota, Quota) else float(num_cpus)
    usable_s = usable * window.length_s
    if -others_s > MISMATCH_SHARE * usable_s:
        raise _Missing("the counters of our cores and of our processes do not agree")
    # What others use of the cores beyond our quota takes nothing from us.
    taken_s = others_s - (num_cpus - usable) * window.length_s
    for who, used_s in (("other processes", taken_s), ("dynotune itself", window.own_cpu_s())):
        if used_s > FOREIGN_SHARE * usable_s:
            cores = used_s / window.length_s
            yield f"{who} used {cores:.2f} of {usable:g} cores ({used_s / usable_s:.0%})"
    if steal_s > STEAL_CORES * window.length_s and steal_s > STEAL_SHARE * (busy_s + steal_s):
        yield f"the hypervisor took {steal_s / (busy_s + steal_s):.0%} of the time our cores wanted to run"


def _quota(window: _Window) -> Iterator[str]:
    if all(sample.quota is None for sample in window.samples):
        return
    throttled_s = window.growth("quota", "throttled_s")
    if throttled_s <= THROTTLED_SHARE * window.length_s:
        return
    others_s = window.growth("quota", "usage_s") - window.growth("tree", "cpu_s") - window.own_cpu_s()
    cores = next(sample.quota.cores for sample in window.inside if isinstance(sample.quota, Quota))
    # A tree that runs into its quota by itself is what is being measured.
    if others_s > FOREIGN_SHARE * cores * window.length_s:
        yield (
            f"the CPU quota throttled us for {throttled_s:.1f} s, while others under it used "
            f"{others_s / window.length_s:.2f} of its {cores:g} cores"
        )


def _swap(window: _Window) -> Iterator[str]:
    limit = SWAP_PAGES_PER_S * window.length_s
    num_in, num_out = window.growth("swap", "num_in"), window.growth("swap", "num_out")
    if num_in <= limit and num_out <= limit:
        return
    if num_in <= limit:
        raise _Missing("pages were swapped out, and the kernel does not say whose")
    # Every page swapped in for the tree is a major fault of the tree, so what it did not wait for is others'.
    others = num_in - window.growth("tree", "num_major_faults") * SWAP_READAHEAD_PAGES
    if others <= limit:
        raise _Missing("pages were swapped in, perhaps for the command itself")
    yield f"other processes swapped in {others * PAGE_BYTES / 1e6:.0f} MB"


def _gpu_processes(window: _Window, at: int) -> Iterator[str]:
    gpus = window.gpus(at)
    ours = {process.pid for sample in window.samples for process in _known(sample.gpus[at].processes) if process.ours}
    strangers: dict[int, list[GpuProcess]] = {}
    missing = [gpu.processes.reason for gpu in gpus if isinstance(gpu.processes, Unknown)]
    for gpu in gpus:
        for process in _known(gpu.processes):
            if process.pid not in ours:
                strangers.setdefault(process.pid, []).append(process)
    if not ours and not window.inside[0].pids_comparable:
        raise _Missing("in this container the driver's process ids need not be ours")
    for pid, seen in strangers.items():
        name = next((process.name for process in seen if process.name), None)
        if name == MPS_SERVER:
            missing.append("programs share it through MPS, which does not say whose work it does")
        # A process that holds a context and runs nothing disturbs nothing.
        elif any(process.sm_percent != 0 for process in seen):
            yield f"process {pid} ({name or 'name unknown'}) computes on GPU {gpus[0].nvml_index}"
    if missing:
        raise _Missing(missing[0])


def _gpu_clock(window: _Window, at: int) -> Iterator[str]:
    gpus = window.gpus(at)
    known = [gpu.clock_reasons for gpu in gpus if not isinstance(gpu.clock_reasons, Unknown)]
    for name, holds in CLOCK_CAUSES.items():
        if known and sum(map(holds, known)) >= CLOCK_SHARE * len(known) and any(map(holds, known)):
            yield f"the clock of GPU {gpus[0].nvml_index} was held down from outside ({name})"
    for gpu in gpus:
        if isinstance(gpu.clock_reasons, Unknown):
            raise _Missing(gpu.clock_reasons.reason)


def _known(processes: list[GpuProcess] | Unknown) -> list[GpuProcess]:
    return [] if isinstance(processes, Unknown) else processes
