"""Thresholds of the rules, each with its reason, and how much a finding weighs."""

from __future__ import annotations

from dynotune.schema.diagnosis import Severity

HIGH_SHARE = 0.10
"""Of a step: more than runs differ by on a quiet machine, and worth an hour of anyone's time."""
MEDIUM_SHARE = 0.03
"""Below it `compare` needs more than its twelve pairs to tell the gain from noise of 2%."""
LEAST_SHARE = 0.01
"""What costs less is not reported: the trace itself does not tell it apart from chance."""


def severity(share: float) -> Severity:
    """By the share of a step that a finding costs."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


# jitter
SLOW_STEP = 1.5
"""Times a usual step: the slowest hundredth of steps is by 10 to 30% longer on any quiet machine."""

# machine

BUSY_PERCENT = 20.0
"""NVML's utilisation from which clocks and link are taken as those of a GPU at work, not of one that saves power."""
BUSY_FOR_CLOCKS_PERCENT = 50.0
"""Below it a GPU may stay at a low clock by its own choice: nothing asks for more."""
LEAST_REASON_SHARE = 0.05
"""Of samples with a clock event reason; fewer are the moments in which every GPU changes its clock."""
LOW_CLOCK = 0.8
"""Of the highest clock. Large products lower it to that at the default power limit too, but then say so as a reason."""
LOWERED_POWER = 0.98
"""Of the default power limit; drivers round limits to whole watts."""
MUCH_LOWERED_POWER = 0.9
"""Clocks fall by about the cube root of power at first: less than this costs less than runs differ by."""
SHARED_MEMORY = 0.05
"""Of the GPU's memory, held by processes that cannot be seen. Drivers keep less than a hundredth for themselves."""
HIDDEN_MEMORY_BYTES = 2 << 30
"""At least, beside `SHARED_MEMORY`: small GPUs carry desktops."""
SATURATED_LINK = 0.6
"""Of the line rate, averaged over the window: protocol and gaps leave some 0.87 of it at most."""
MANY_REPLAYS = 10
"""Of PCIe packets within a window; a sound link repeats none for days."""
FEW_CPUS_PER_GPU = 4
"""The program, a pinning thread and two workers: fewer processors make one of them wait."""
USED_UP = 0.9
"""Of the processors that may be used: then more of them can help, else not."""
THROTTLED_S_PER_S = 0.01
"""Time in which the quota stopped the command."""
SWAPPED_PAGES = 256
"""Within a window, 1 MiB: what a machine moves now and then without anyone waiting."""
MUCH_SWAPPED_PAGES = 25_600
"""Within a window, 100 MiB."""
LITTLE_AVAILABLE_MEMORY = 0.05
"""Of all memory."""
CONTAINER_SHM_BYTES = 64 << 20
"""What docker gives /dev/shm unless told otherwise."""
SMALL_SHM_BYTES = 1 << 30
"""Some workers with two batches of images each fill it."""
SMALL_NOFILE = 1024
"""The limit of a login shell on most systems."""
FILES_BESIDE_LOADER = 128
"""Libraries, sockets and data that a process holds open beside the tensors of its loader."""
SMALL_MEMLOCK_BYTES = 1 << 30
"""Of registered memory; InfiniBand registers buffers of some hundreds of MiB."""
SMALL_PLAN_CACHE = 100
"""Plans of cuDNN: a convolutional network needs three for each of its layers and shapes."""
DEFAULT_JIT_CACHE_BYTES = 1 << 30
"""CUDA_CACHE_MAXSIZE of current drivers on desktops and servers."""
LARGEST_JIT_CACHE_BYTES = 1 << 32
"""CUDA_CACHE_MAXSIZE cannot exceed it."""
DEFAULT_CUBLAS_WORKSPACE_BYTES = 8_519_680
"""`:4096:2:16:8`, 8.125 MiB: what torch gives cuBLAS before Hopper; since then it is 32 MiB."""
