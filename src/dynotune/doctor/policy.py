"""Thresholds of the rules, each with its reason, and how much a finding weighs."""

from __future__ import annotations

from dynotune.schema.diagnosis import Severity

HIGH_SHARE = 0.10
"""Of a step: more than runs differ by on a quiet machine, and worth an hour of anyone's time."""
MEDIUM_SHARE = 0.05
"""Of bounds that were tried, half to all was gained: of this one some three hundredths, which `compare` can tell from
noise of 2% in its twelve pairs, and of less it cannot."""
LEAST_SHARE = 0.01
"""What costs less is not reported: the trace itself does not tell it apart from chance."""
MOST_OF_A_LOSS = 0.5
"""Of what a general finding costs: a specific one that bounds less of it does not stand in its place."""


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

# loader

HANDOVER_S = 0.0005
"""What the process still spends on a batch that a worker made: taking it from the queue and mapping its memory."""
LARGE_PART = 0.3
"""Of the time that making a batch takes: less of it in one place is not what loading is about."""
WORKERS_BUSY = 0.85
"""Of their time. Above it more workers make more batches; the rest is the wait for what to load next."""
WORKERS_BEHIND = 0.7
"""Of their time. Above it, and waited for, they are behind now and then: more of them are worth a try."""
WORKERS_REST = 0.5
"""Of their time. Below it a batch takes less than half as long to make as it may: it is ready when it is asked for."""
UNEVEN = 3.0
"""The longest batch over the mean one: beyond it two batches ahead do not bridge the gap."""
PIN_BUSY = 0.8
"""Of a step in which the one thread that pins batches works: it is what sets the pace."""
FORK_S = 0.02
"""For a worker to be forked and to ask for its first batch; a fresh interpreter with torch takes seconds."""
MANY_OBJECTS = 100_000
"""Python objects of a data set: some 10 MB, below which copying them into each worker is no matter."""
COPIED_BYTES = 16 << 20
"""By which all workers' own memory grows in the window; batches come and go by some megabytes."""
COPIED_MUCH_BYTES = 256 << 20
"""The same in a minute: in an hour it is memory that machines run out of."""

# transfer

SMALL_COPY_BYTES = 64 * 1024
MANY_SMALL_COPIES = 100
"""A step, as the trace's own cause has them."""
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""By generation: no copy is faster than that, pinned or not."""
IMAGE_VALUES = 256
"""Distinct values in a plane of what was made from bytes."""
IMAGE_SIDE = 16
"""Pixels. A float tensor with smaller planes is no image."""

SAME_SIZE = 0.25
"""By which a copy may differ from the tensor that it is taken for: batches vary, and not all runs have the same. Sent
as bytes or half types, and converted on the device, it would be half of it at most."""

# synchronisation and memory

CALLS_PER_STEP = 0.05
"""Once in twenty steps: rarer calls are part of an epoch's end, not of the loop."""
SPLIT_SHARE = 0.2
SPLIT_BYTES = 64 << 20
"""Of reserved memory, and at least: as for memory snapshots."""
FULL_SHARE = 0.9
"""Of the device's memory, reserved at the peak: the next larger batch does not fit."""
LEAK_BYTES = 1 << 20
LEAK_STEP_BYTES = 1024
"""Grown in the window, and a step: the allocator counts in 512 bytes."""
LEAK_HOST_BYTES = 32 << 20
LEAK_HOST_STEP_BYTES = 4096
"""The same for the process; malloc takes and keeps some megabytes at a time."""
LEAK_FOLLOWED_BYTES = 8 << 20
LEAK_SURE_RISES = 6
"""Of the process, where its levels are known and all rise: so many or more in a row are no chance."""
LEAK_OF_ALL = 0.05
"""Of what is allocated: inputs that get larger from step to step make it vary by as much."""
LEAK_RISES = 0.75
"""Of the stretches between levels: what leaks rises nearly always, what varies every second time."""
LEAK_FALLS = 1 / 3
"""Of its growth: a process whose memory once fell by more holds now more, now less."""
LEAK_SLOWS = 0.5
"""Of what came in the first half of the window: planted leaks lost 0.95 to 1.03 times as much in the second, what a
process's heap grew by until it was large enough 0.4 times.
"""
SOON_S = 24 * 3600.0
VERY_SOON_S = 3600.0
"""Until memory is full at that rate: within a day it ends a training, within an hour it ends most."""

# device, host and code

DEVICE_SETS_PACE = 0.05
"""Of a step, that the device waits for host or loader: as much happens at the ends of epochs where it is the slower."""
CONVOLUTION_SHARE = 0.2
"""Of a step: below it another algorithm for convolutions changes less than runs differ by."""
AUTOTUNED = 0.5
"""Of the time of convolutions that timing several algorithms saves; beyond it layout or types are to blame."""
FEW_SHAPES = 20
"""Distinct input shapes: more of them, and the time goes into timing algorithms rather than into using them."""
KERNELS_OF_CONVOLUTION = 6
"""That one call of a convolution's operator launches: the product, two or three layouts, bias, a sum."""
FULL_AND_LAST = 2
"""Input shapes that any program may have: of full batches, and of the last one."""
UNFUSED_ATTENTION = 4.0
"""Times its softmax: scores are also scaled, masked, and written and read by two products. At most, beside the sum."""
BACKWARD_OF_ATTENTION = 2.0
"""Times the forward pass: four products for two."""
FUSABLE = 0.75
"""Of the time of operators that no trace tells more of: fusing four into one saves three reads and writes."""
MUCH_FUSABLE = 0.45
"""Of a step. Programs without torch.compile could spare a tenth to a fourth so: that alone is no fault."""
MUCH_TO_COMPILE = 0.25
"""Of a step, that compiling spares at most: a first compilation takes a minute or more of a tune's time, and gains part
of its bound. Where products hold the step, other settings come first; after them the same kernels are more of it."""
MUCH_CASTING = 0.10
"""Of a step: autocast itself converts weights at each step, 5% of it in usual models."""
MISALIGNED = 0.75
"""Of the time of misaligned products that padding saves: kernels that load eight elements at once are up to four times
as fast."""
SHORT_KERNEL_S = 10e-6
"""What queueing a kernel takes the host, as the trace's own cause has it."""
MOSTLY_SHORT = 0.75
"""Of the kernels, by number: in usual models, half of them are."""
MANY_SHORT_KERNELS = 300
"""Of them a step: with fewer, no step of more than some milliseconds is made of them."""
SPARED_OF_HOST = 0.5
"""Of the device's waits for the host's own work: no one change takes them all away, as it does a wait for one thing."""
MUCH_PYTHON = 0.25
"""Of a step of a program without a device: Python takes a tenth to a fifth between operators of usual size."""
MUCH_WAITING_IN_QUEUE = 0.10
"""Of a step: pauses between queued kernels are a few per cent wherever kernels take 50 µs or less."""
MANY_SMALL_OPERATORS = 300
"""Pointwise and indexing operators a step: what a Python loop over elements calls."""
SMALL_PER_PRODUCT = 20.0
"""Such operators for each product or convolution: a layer has three to eight, backward pass and optimizer included."""
LOOPED = 30.0
"""Calls of one operator a step: few models have as many layers of a kind, and a loop has more rounds."""
SHORT_OPERATOR_S = 50e-6
"""Of the host, recorded: longer ones have work in them that a loop does not explain."""
OVERSUBSCRIBED = 1.25
"""Threads of torch over cores; with as many threads as cores, nothing waits for another. And of the time in which
threads run or are ready to, over that in which they run."""
CROWDED = 0.2
"""Of a step, while workers compute and operators wait for a core: less is what any loader takes on the CPU."""
CORES_BUSY = 0.7
"""Of the cores, others' work included: below it threads do not wait for one."""
RECORDING_OPERATOR_S = 3e-6
"""Of the host for an operator that autograd keeps: the node, the saved tensors, and dropping both."""
HOST_OPERATOR_S = 10e-6
"""Of the host for one more small operator in a backward pass."""
ZEROED_BYTES = 4
"""Times the gradients: zeros are written, then each is read, the new one is read, and the sum is written."""
HOST_BYTES_PER_S = 10e9
"""That one core writes."""
DEVICE_BYTES_PER_S = {(8, 0): 1.5e12, (9, 0): 2.0e12, (10, 0): 7e12, (10, 3): 7e12}
SLOWEST_DEVICE_BYTES_PER_S = 0.3e12
"""Memory of the slowest device of each capability, so that a bound is one."""
LONG_START_S = 20.0
"""Until the first step: what compiling adds to it is then most of it."""
RANKS_DIFFER = 0.05
"""Of a step, by which one rank waits for another."""

# start

SOME_OF_START_S = 1.0
"""That a warm cache saves: below it nobody waits for a start."""
MUCH_OF_START_S = 10.0
"""That a warm cache saves: of a service that scales with its load, requests fail meanwhile."""
LATE_STEPS_S = 0.05
"""Of the steps after the first, together: what one request of a service may take beyond the others unnoticed."""
FEW_JIT_BYTES = 16 << 10
"""Left in the driver's cache by every program with cuDNN, which has an empty kernel compiled to see what the GPU is: 4
KB."""
LEAST_JIT_BYTES_PER_S = 20_000
"""Of machine code that the driver makes of PTX; 900,000 were measured of 150 small kernels. What took longer than its
bytes at this rate was something else."""
SURELY_KEPT_BYTES = 256 << 20
"""Of kernels that the driver compiled: the smallest limit that drivers have had by themselves."""
COMPILING_PART = 0.2
"""Of a cold start: below it, other numbers of processes that compile change it by less than starts differ."""
