"""Decide from samples whether something outside the measured process tree disturbed a window."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from dynotune.probe.sampling.window import Window, covers
from dynotune.probe.sources import counters
from dynotune.probe.sources.counters import TICK_S
from dynotune.probe.sources.nvml import HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, SYNC_BOOST
from dynotune.probe.sources.samples import Cores, Gpu, GpuProcess, Quota, Sample
from dynotune.schema.facts import Missing, Unknown, needed

FOREIGN_SHARE = 0.10
"""Share of usable cores. Less is the normal background of a shared machine, which affects baseline and
candidate alike and averages out. On a machine of up to eight cores, one busy process is more."""

STEAL_SHARE = 0.05
"""Share of the time that our cores wanted to run. A step gets longer by this share; no other core makes up
for it."""

STEAL_CORES = 0.05
"""Below this fraction of one core, an idle host's share of stolen time is rounding."""

THROTTLED_SHARE = 0.01
"""Share of the window. Throttling stops all threads at once, so it lengthens a step by its whole duration."""

SWAP_PAGES_PER_S = 256.0
"""1 MiB/s in pages of 4 KiB, which a disk transfers beside other work without a noticeable effect."""

CLOCK_SHARE = 0.10
"""Share of the samples in the window; a single sample may catch an event of microseconds."""

TAKEN_SHARE = 0.2
"""Share of the samples in which another process uses the GPU; above it, the window measures both programs."""

MISMATCH_SHARE = 0.10
"""The tree cannot use our cores more than they are busy; a larger excess means that the counters disagree."""

MIN_TICKS = 20
"""The kernel counts in ticks of 10 ms; in a window of fewer ticks, a share of 10% is one or two ticks."""

SWAP_READAHEAD_PAGES = 8
"""One major fault reads up to 2^`vm.page-cluster` pages, 8 by default."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

CLOCK_CAUSES: dict[str, Callable[[int], bool]] = {
    "power brake": lambda reasons: bool(reasons & HW_POWER_BRAKE),
    "sync boost with other GPUs": lambda reasons: bool(reasons & SYNC_BOOST),
    # NVML sets this reason beside its cause, if there is one; the program itself causes heat.
    "hardware slowdown": lambda reasons: reasons & (HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE) == HW_SLOWDOWN,
}
"""Clock event reasons from outside the program. Power caps and heat result from the program's own work."""

MPS_SERVER = "nvidia-cuda-mps-server"

LOOK_S = 0.3


class Interference(msgspec.Struct, frozen=True):
    """Disturbances of one window.

    Args:
        foreign: descriptions of causes outside the measured process tree. Such causes add noise, which widens
            an interval.
        void: the causes because of which the window did not measure the program at all.
    """

    foreign: list[str] = []
    void: list[str] = []
    unknown: list[str] = []


def judge(samples: Sequence[Sample], begin_s: float, end_s: float) -> Interference:
    """Judge the window from `begin_s` to `end_s` (s, CLOCK_MONOTONIC) by the samples around it.

    Counters are interpolated at both ends of the window.

    Raises ValueError: the window ends before it begins.
    """
    if not covers(samples, begin_s, end_s):
        return Interference(unknown=["outside causes: the samples do not cover the window"])
    window = Window(samples, begin_s, end_s)
    found = Interference([], [], [])
    for subject, rule in _rules(window):
        try:
            # Apply rules one by one: a rule may report something before another rule lacks data.
            for reason in rule():
                found.foreign.append(str(reason))
                if isinstance(reason, _Void):
                    found.void.append(str(reason))
        except Missing as missing:
            found.unknown.append(f"{subject}: {missing}")
    return found


def _rules(window: Window) -> Iterator[tuple[str, Callable[[], Iterator[str]]]]:
    yield "other processes", partial(_cores, window)
    yield "the CPU quota", partial(_quota, window)
    yield "swapping", partial(_swap, window)
    gpus = window.inside[0].gpus
    if isinstance(gpus, Unknown):
        yield "the GPUs", partial(needed, gpus)
        return
    uses = [_has_ours(window, at) for at in range(len(gpus))]
    for at, gpu in enumerate(gpus):
        if window.inside[0].pids_comparable and True in uses and uses[at] is False:
            continue  # the command computes on other GPUs alone
        yield f"other processes on GPU {gpu.nvml_index}", partial(_gpu_processes, window, at)
        yield f"the clock of GPU {gpu.nvml_index}", partial(_gpu_clock, window, at)


class _Void(str):
    """A cause that takes the device away from the program."""

    __slots__ = ()


def _missing(reason: str) -> Missing:
    return Missing(Unknown(reason))


def _one_gpu(samples: Sequence[Sample], at: int) -> list[Gpu]:
    """Return the GPU at the place `at` in every sample."""
    return [sample.gpus[at] for sample in samples if not isinstance(sample.gpus, Unknown)]


def _cores(window: Window) -> Iterator[str]:
    if window.length_s < MIN_TICKS * TICK_S:
        raise _missing("the window is too short for the kernel's CPU counters")
    others_s = window.other_cpu_s()
    busy_s, steal_s = window.growth("cores", "busy_s"), window.growth("cores", "steal_s")
    num_cpus = next(sample.cores.num_cpus for sample in window.samples if isinstance(sample.cores, Cores))
    quotas = (sample.quota.cores for sample in window.samples if isinstance(sample.quota, Quota))
    # Some sandboxes show zeros in /proc/stat.
    if window.growth("cores", "counted_s") < 0.5 * num_cpus * window.length_s:
        raise _missing("the kernel does not count the time of the cores that this command uses")
    usable = min(num_cpus, next(quotas, num_cpus))
    usable_s = usable * window.length_s
    if -others_s > MISMATCH_SHARE * usable_s:
        raise _missing("the counters of this command's cores and of its processes do not agree")
    # Other programs take nothing from us while they use cores beyond our quota.
    taken_s = others_s - (num_cpus - usable) * window.length_s
    for who, used_s in (("other processes", taken_s), ("dynotune itself", window.own_cpu_s())):
        if used_s > FOREIGN_SHARE * usable_s:
            cores = used_s / window.length_s
            yield f"{who} used {cores:.2f} of {usable:g} cores ({used_s / usable_s:.0%})"
    if steal_s > STEAL_CORES * window.length_s and steal_s > STEAL_SHARE * (busy_s + steal_s):
        yield (
            f"the hypervisor took {steal_s / (busy_s + steal_s):.0%} of the time that this command's "
            "cores wanted to run"
        )


def _quota(window: Window) -> Iterator[str]:
    if all(sample.quota is None for sample in window.samples):
        return
    throttled_s = window.growth("quota", "throttled_s")
    if throttled_s <= THROTTLED_SHARE * window.length_s:
        return
    others_s = window.growth("quota", "usage_s") - window.growth("tree", "cpu_s") - window.own_cpu_s()
    cores = next(sample.quota.cores for sample in window.samples if isinstance(sample.quota, Quota))
    # If the tree alone reaches its quota, throttling is part of the measurement.
    if others_s > FOREIGN_SHARE * cores * window.length_s:
        yield (
            f"the CPU quota throttled us for {throttled_s:.1f} s, while others under it used "
            f"{others_s / window.length_s:.2f} of its {cores:g} cores"
        )


def _swap(window: Window) -> Iterator[str]:
    limit = SWAP_PAGES_PER_S * window.length_s
    num_in, num_out = window.growth("vmstat", "pswpin"), window.growth("vmstat", "pswpout")
    if num_in <= limit and num_out <= limit:
        return
    if num_in <= limit:
        raise _missing("pages were swapped out, and the kernel does not say of which process")
    # Each page swapped in for the tree is a major fault of the tree. Pages without such a fault are others'.
    others = num_in - window.growth("tree", "num_major_faults") * SWAP_READAHEAD_PAGES
    if others <= limit:
        raise _missing("pages were swapped in, perhaps for the command itself")
    yield f"other processes swapped in {others * PAGE_BYTES / 1e6:.0f} MB"


def _has_ours(window: Window, at: int) -> bool | None:
    """Tell whether a process of ours has the GPU open; None if the driver does not report processes."""
    processes = [gpu.processes for gpu in _one_gpu(window.samples, at)]
    if any(process.ours for of_sample in processes for process in _known(of_sample)):
        return True
    return None if any(isinstance(of_sample, Unknown) for of_sample in processes) else False


def _gpu_processes(window: Window, at: int) -> Iterator[str]:
    gpus = _one_gpu(window.inside, at)
    ours = {
        process.pid
        for gpu in _one_gpu(window.samples, at)
        for process in _known(gpu.processes)
        if process.ours
    }
    strangers: dict[int, list[GpuProcess]] = {}
    missing = [gpu.processes.reason for gpu in gpus if isinstance(gpu.processes, Unknown)]
    for gpu in gpus:
        for process in _known(gpu.processes):
            if process.pid not in ours:
                strangers.setdefault(process.pid, []).append(process)
    if not ours and not window.inside[0].pids_comparable:
        raise _missing("in this container the driver's process ids may differ from the container's")
    for pid, seen in strangers.items():
        name = next((process.name for process in seen if process.name), None)
        if name == MPS_SERVER:
            missing.append(
                "programs share the GPU through MPS, which does not say which program the work belongs to"
            )
        # A process that holds a context and runs nothing disturbs nothing.
        elif num_busy := sum(process.sm_percent != 0 for process in seen):
            text = f"process {pid} ({name or 'name unknown'}) computes on GPU {gpus[0].nvml_index}"
            yield _Void(text) if num_busy > TAKEN_SHARE * len(gpus) else text
    if missing:
        raise _missing(missing[0])


def _gpu_clock(window: Window, at: int) -> Iterator[str]:
    gpus = _one_gpu(window.inside, at)
    known = [gpu.clock_reasons for gpu in gpus if not isinstance(gpu.clock_reasons, Unknown)]
    for name, holds in CLOCK_CAUSES.items():
        num_held = sum(map(holds, known))
        if num_held and num_held >= CLOCK_SHARE * len(known):
            yield f"the clock of GPU {gpus[0].nvml_index} was held down from outside ({name})"
    for gpu in gpus:
        needed(gpu.clock_reasons)


def _known(processes: list[GpuProcess] | Unknown) -> list[GpuProcess]:
    return [] if isinstance(processes, Unknown) else processes


class Neighbours(NamedTuple):
    """Other programs on this machine.

    Args:
        num_cores: number of cores that the other programs used on average.
        pid, name: process that used most CPU time; 0 and "" if no process is visible, as from another
            container.
    """

    num_cores: float
    pid: int = 0
    name: str = ""
    most_cores: float = 0.0


def neighbours(cpus: Collection[int], *, root: Path = Path("/"), look_s: float = LOOK_S) -> Neighbours | None:
    """Measure the use of `cpus` for `look_s` seconds; None if the kernel does not report the use."""
    before, processes_before, began_s = counters.cores(cpus, root), _processes(root), time.monotonic()
    time.sleep(look_s)
    after, processes, took_s = counters.cores(cpus, root), _processes(root), time.monotonic() - began_s
    if isinstance(before, Unknown) or isinstance(after, Unknown):
        return None
    used = {
        pid: cpu_s - processes_before[pid][1]
        for pid, (_, cpu_s) in processes.items()
        if pid in processes_before
    }
    used.pop(os.getpid(), None)
    pid = max(used, key=lambda one: used[one], default=0)
    found = Neighbours((after.busy_s - before.busy_s + after.steal_s - before.steal_s) / took_s)
    return (
        found if not pid else found._replace(pid=pid, name=processes[pid][0], most_cores=used[pid] / took_s)
    )


def _processes(root: Path) -> dict[int, tuple[str, float]]:
    """Return name and processor time of each visible process."""
    found = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (stat := counters.stat_fields(str(folder))) is not None:
                ticks = int(stat[1][counters.USER_TICKS]) + int(stat[1][counters.SYSTEM_TICKS])
                found[int(folder.name)] = stat[0], ticks * counters.TICK_S
    return found
