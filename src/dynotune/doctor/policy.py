"""Thresholds of the rules, each with its reason, and the severity of a share."""

from dynotune.schema.diagnosis import Severity

HIGH_SHARE = 0.10
"""Share of a step. Runs on a quiet machine differ by less, and the gain is worth an hour of work."""
MEDIUM_SHARE = 0.05
"""Share of a step. Candidates that were tried gained half to all of their bound, so 5% means about 3%, the
smallest gain that `compare` distinguishes from noise of 2% in its twelve pairs."""
LEAST_SHARE = 0.01
"""Share of a step. A smaller cost is not reported: the trace cannot distinguish it from chance."""
MOST_OF_A_LOSS = 0.5
"""Share of a general finding's cost. A specific finding with a smaller bound does not replace the general
one."""


def severity(share: float) -> Severity:
    """Return the severity of a finding by the share of a step that it costs."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


# jitter
SLOW_STEP = 1.5
"""Factor of a usual step. The slowest hundredth of steps takes 10 to 30% longer on any quiet machine."""

# machine

BUSY_PERCENT = 20.0
"""NVML's utilisation. Below this, clocks and link are those of a GPU that saves power."""
BUSY_FOR_CLOCKS_PERCENT = 50.0
"""NVML's utilisation. Below this, a GPU may stay at a low clock by its own choice."""
LEAST_REASON_SHARE = 0.05
"""Share of the samples with a clock event reason. Every GPU has fewer, when it changes its clock."""
LOW_CLOCK = 0.8
"""Share of the highest clock. Large products lower the clock to this at the default power limit, too, with
power as the reason."""
LOWERED_POWER = 0.98
"""Share of the default power limit. Drivers round limits to whole watts."""
MUCH_LOWERED_POWER = 0.9
"""Share of the default power limit. Clocks change only by about the cube root of power, less than runs
differ."""
SHARED_MEMORY = 0.05
"""Share of the GPU's memory that hidden processes hold. Drivers keep less than 1% for themselves."""
HIDDEN_MEMORY_BYTES = 2 << 30
"""Least bytes, in addition to `SHARED_MEMORY`: small GPUs often serve a desktop."""
SATURATED_LINK = 0.6
"""Share of the line rate, averaged over the window. Protocol and gaps leave at most about 0.87 of it."""
MANY_REPLAYS = 10
"""Repeated PCIe packets in a window. A sound link repeats none for days."""
FEW_CPUS_PER_GPU = 4
"""Processors for the program, a pinning thread and two workers. With fewer processors, a thread of these
waits."""
USED_UP = 0.9
"""Share of the usable processors. Above this more processors can help."""
SPARE_CORE = 0.3
"""Idle share of a core. With less, additional threads disturb each other."""
THROTTLED_S_PER_S = 0.01
"""Seconds per second for which the quota stopped the command."""
SWAPPED_PAGES = 256
"""Pages in a window, 1 MiB. Any machine occasionally swaps as much without anyone waiting."""
MUCH_SWAPPED_PAGES = 25_600
"""Pages in a window, 100 MiB."""
LITTLE_AVAILABLE_MEMORY = 0.05
"""Share of all memory that is available. Below this, little memory is left."""
CONTAINER_SHM_BYTES = 64 << 20
"""The size of /dev/shm under docker's default."""
SMALL_SHM_BYTES = 1 << 30
"""Size of /dev/shm in bytes: enough for two batches of images for each of several workers."""
SMALL_NOFILE = 1024
"""Limit of open files in a login shell on most systems."""
FILES_BESIDE_LOADER = 128
"""Files that libraries, sockets and data keep open, in addition to a loader's tensors."""
SMALL_MEMLOCK_BYTES = 1 << 30
"""Limit of locked memory in bytes. InfiniBand registers buffers of some hundreds of MiB."""
DEFAULT_JIT_CACHE_BYTES = 1 << 30
"""CUDA_CACHE_MAXSIZE of current drivers on desktops and servers."""
LARGEST_JIT_CACHE_BYTES = 1 << 32
"""The maximum of CUDA_CACHE_MAXSIZE."""
DEFAULT_CUBLAS_WORKSPACE_BYTES = 8_519_680
"""`:4096:2:16:8`, 8.125 MiB: torch's default for cuBLAS before Hopper. From Hopper on it is 32 MiB."""

# loader

HANDOVER_S = 0.0005
"""Seconds of the process itself for a worker's batch: it takes the batch from the queue and maps its
memory."""
SEEN_TOO_SELDOM = 2.5
"""Factor above the sampled time: in three programs on two cores the sampler saw 0.4 to 1.1 of an optimizer's
time."""
OF_A_SYMPTOM = 0.25
"""Share of a more general finding from which on a finding that explains it comes first."""
LEAST_PADDING = 0.1
"""Least share of a batch's elements that is padding, for padding to be reported."""
LARGE_PART = 0.3
"""Share of the time to make a batch. A smaller part does not decide how long loading takes."""
WORKERS_BUSY = 0.85
"""Share of the workers' time. Above this, more workers make more batches; the rest waits for the next
request."""
WORKERS_BEHIND = 0.7
"""Share of the workers' time. If the program waits and workers are busier, more workers are worth a try."""
WORKERS_REST = 0.5
"""Share of the workers' time. Below this, a batch is ready when the program asks for it."""
UNEVEN = 3.0
"""The longest batch over the mean. Above this, two prefetched batches do not bridge the gap."""
PIN_BUSY = 0.8
"""Share of a step in which the thread that pins batches works. Above this, this thread sets the pace."""
FORK_S = 0.02
"""Seconds until a forked worker asks for its first batch. A fresh interpreter with torch takes seconds."""
MANY_OBJECTS = 100_000
"""Python objects of a data set, some 10 MB. Copies of fewer objects in each worker do not matter."""
OBJECT_BYTES = 256
"""Size of a Python object of a data set, with its share of its memory page: a path has about a hundred
bytes."""
PAGE_BYTES = 4096
"""Page that a write to shared memory copies. Where pages are larger, less is copied than is counted."""
COPIED_BYTES = 16 << 20
"""Growth of all workers' own memory in the window. Batches alone change it by a few megabytes."""
COPIED_MUCH_BYTES = 256 << 20
"""Growth of all workers' own memory per minute. In an hour this growth exhausts a machine's memory."""

# transfer

PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""Bytes per second of a lane by generation, one direction, after encoding: no copy is faster, pinned or
not."""
IMAGE_VALUES = 256
"""Distinct values in a plane that was converted from bytes."""
IMAGE_SIDE = 16
"""Pixels. A float tensor with smaller planes is not an image."""

SAME_SIZE = 0.25
"""Relative size difference between a copy and the tensor that it may be. Batches vary, and runs have
different batches. As bytes or half types, converted on the device, the tensor would have at most half the
size."""

# synchronisation and memory

CALLS_PER_STEP = 0.05
"""Calls per step: one in twenty steps. Rarer calls belong to the end of an epoch, not to the loop."""
SHORT_MEMORY = 0.7
"""Share of a device's memory in use. Below this, the program fits with room for a batch a third larger."""
SPLIT_SHARE = 0.2
SPLIT_BYTES = 64 << 20
"""Share of a process's device memory for a saving of medium severity; and the least bytes of a saving."""
LEAK_BYTES = 1 << 20
LEAK_STEP_BYTES = 1024
"""Growth in the window, and per step. The allocator counts in units of 512 bytes."""
LEAK_HOST_BYTES = 32 << 20
LEAK_HOST_STEP_BYTES = 4096
"""Growth of the process in the window, and per step. malloc takes a few megabytes at a time and keeps
them."""
LEAK_FOLLOWED_BYTES = 8 << 20
LEAK_SURE_RISES = 6
"""For the process, if its levels are known. This many rises in a row, without a fall, are not chance."""
LEAK_OF_ALL = 0.05
"""Share of allocated memory. Inputs that grow from step to step make it vary by as much."""
LEAK_OF_GRAPH = 0.25
"""Share of the held graph. If each step leaves its own graph, a window as long as the time before adds about
half."""
LEAK_RISES = 0.75
"""Share of the stretches between levels. A leak rises nearly always, varying memory in every second
stretch."""
LEAK_FALLS = 1 / 3
"""Share of the growth. Memory that once fell by more is merely varying."""
LEAK_SLOWS = 0.5
LEAK_OBJECTS = 0.5
"""Objects of a type that each step must leave behind to be named; a cache that grows now and then leaves
fewer."""
"""Growth in the second half of the window over that in the first half. Planted leaks had 0.95 to 1.03, a
process's heap that grew until it was large enough had 0.4."""
SOON_S = 24 * 3600.0
VERY_SOON_S = 3600.0
"""Seconds until memory is full at the rate of growth. Within a day this ends a training, within an hour most
of them."""

# device, host and code

DEVICE_SETS_PACE = 0.05
"""Share of a step for which the device waits for host or loader. A device that is the slower part also waits
as much at ends of epochs."""
CONVOLUTION_SHARE = 0.2
"""Share of a step. Below this, another algorithm for convolutions changes less than runs differ by."""
AUTOTUNED = 0.5
"""Share of the time of convolutions that timing the algorithms saves. If more is lost, layout or types are to
blame."""
FEW_SHAPES = 20
"""Distinct input shapes. With more, timing the algorithms takes more time than it saves."""
KERNELS_OF_CONVOLUTION = 6
"""Kernels of one call of a convolution's operator: the product, two or three layouts, bias, a sum."""
FULL_AND_LAST = 2
"""Input shapes that any program may have: full batches, and the last one."""
UNFUSED_ATTENTION = 4.0
"""Factor of its softmax, at most. Scores are also scaled, masked, and written and read by two products."""
BACKWARD_OF_ATTENTION = 2.0
"""Factor of the forward pass: four products instead of two."""
FUSABLE = 0.75
"""Share of the time of operators without other facts in the trace. Fusing four into one saves three reads and
writes."""
MUCH_FUSABLE = 0.45
"""Share of a step. Programs without torch.compile could save 10 to 25%, which alone is no fault."""
MUCH_TO_COMPILE = 0.25
"""Most of a step that compiling saves. A first compilation takes a minute or more of a tune's time, and gains
part of its bound. If products dominate the step, other settings come first; they make the same kernels a
larger share."""
MUCH_CASTING = 0.10
"""Share of a step. Autocast itself converts weights in each step, which takes 5% of a step in usual
models."""
MISALIGNED = 0.75
"""Share of the time of misaligned products that padding saves. Kernels that load eight elements at once are
up to four times as fast."""
MOSTLY_SHORT = 0.75
"""Share of the number of kernels. In usual models, half of all kernels are short."""
MANY_SHORT_KERNELS = 300
"""Short kernels per step. Fewer of them fill no step of more than a few milliseconds."""
SPARED_OF_HOST = 0.5
"""Share of the device's waits for the host's own work. No single change removes all of these waits."""
MOSTLY_LAUNCHES = 0.7
"""Share of the host's own work inside torch's modules, backward passes and optimizers. If it is smaller, the
program does work of its own between them."""
MUCH_OF_SOME_STEPS = 0.25
"""Share of the time from which on work of some steps looks excessive."""
MUCH_PYTHON = 0.25
"""Share of a step of a program without a device. Between operators of usual size, Python takes 10 to 20%."""
MUCH_WAITING_IN_QUEUE = 0.10
"""Share of a step. Pauses between queued kernels are a few per cent wherever kernels take 50 µs or less."""
MANY_SMALL_OPERATORS = 300
"""Pointwise and indexing operators per step: a Python loop over elements calls as many."""
SMALL_PER_PRODUCT = 20.0
"""Pointwise and indexing operators per product or convolution. A layer has 3 to 8, with backward pass and
optimizer."""
SMALL_OPERATOR_S = 20e-6
"""An operator's own recorded time. Below this, dispatch and allocation are a large part of it, by a guess."""
MANY_TURNS = 16
"""Turns of one loop in a call, and products of a step for each of the model's tensors. A layer has one
product for each in a forward pass, and two in a backward pass."""
LOOPED_OPERATOR_S = 200e-6
"""Plain time of an operator in a loop. With two threads on two busy cores, operators of 10 µs took 130 µs."""
MOST_UNROLLED = 2000
"""Operators that a loop calls in all its turns. torch.compile writes each out: 160 turns of 38 operators took
it more than 290 s on two cores."""
CALLING_PART = 0.5
"""Share of their time, and of Python between them, that fewer and larger operators save. A guess, not
measured."""
MUCH_UNGRADED = 0.2
"""Share of a step that computes values without a gradient inside modules. Masks and positions take some per
cent."""
FEW_ROWS = 0.1
"""Share of an embedding's rows that a step uses. With more, sparse gradients save little."""
FEWEST_CALLS = 8
MOST_CALLS_GROW = 0.7
"""Share of the observed calls. Each new prompt begins with another length."""
LOOPED = 30.0
"""Calls of one operator per step. Few models have as many layers of a kind, and a loop has more
iterations."""
SHORT_OPERATOR_S = 50e-6
"""Recorded host time. Longer operators do work that a loop does not explain."""
CUPTI_OF_STEP = 0.4
"""Share of a step that CUPTI costs at most while it stays attached: on an H200, steps of 150 small layers
took 16.3 and 18.4 ms before a session of torch's profiler, and 26.8 and 26.1 ms after it
(results/cupti_detached_cuda.json)."""
OVERSUBSCRIBED = 1.25
"""torch's threads over cores: with as many threads as cores, no thread waits for another. Also the time in
which threads run or are ready to run, over the time in which they run."""
CROWDED = 0.2
"""Share of a step in which workers compute and operators wait for a core. Any loader on the CPU takes
less."""
CORES_BUSY = 0.7
"""Share of the cores, other programs' work included. Below this, threads do not wait for a core."""
RECORDING_OPERATOR_S = 3e-6
"""Host time for an operator that autograd records: it makes a node, saves tensors, and drops both."""
HOST_OPERATOR_S = 10e-6
"""Host time for one more small operator in a backward pass."""
ZEROED_BYTES = 4
"""Factor of the gradients: zeros are written and read, the new gradient is read, and the sum is written."""
HOST_BYTES_PER_S = 10e9
"""Bytes per second that one core writes."""
DEVICE_BYTES_PER_S = {(8, 0): 1.5e12, (9, 0): 2.0e12, (10, 0): 7e12, (10, 3): 7e12}
SLOWEST_DEVICE_BYTES_PER_S = 0.3e12
"""Memory bandwidth of the slowest device of each capability, because the bound must hold for every device."""
LONG_START_S = 20.0
"""Seconds to the first step. Above this, most of a start is compilation."""
WALKED_PARAMETER_S = 10e-6
"""Seconds per parameter without a gradient, to walk autograd's graph: two or three C++ nodes each, at
most."""
RANKS_DIFFER = 0.05
"""Share of a step by which one rank waits for another."""

# start

SOME_OF_START_S = 1.0
"""Seconds that a warm cache saves. Below this, nobody waits for a start."""
SHORTEST_START_S = 2.0
"""Seconds before the first step of a command that ends by itself. An interpreter with torch takes one to
two."""
MUCH_OF_START_S = 10.0
"""Seconds that a warm cache saves. In a service that scales with its load, requests fail in that time."""
LATE_STEPS_S = 0.05
"""Total seconds of the steps after the first. A request to a service may take that much longer unnoticed."""
FEW_JIT_BYTES = 16 << 10
"""Every program with cuDNN leaves 4 KB in the driver's cache: cuDNN compiles an empty kernel to identify the
GPU."""
LEAST_JIT_BYTES_PER_S = 20_000
"""Machine code that the driver makes of PTX per second. For 150 small kernels, 900,000 bytes per second were
measured. A start that took longer than its bytes at this rate did other work."""
SURELY_KEPT_BYTES = 256 << 20
"""The smallest default limit of the driver's cache of compiled kernels, in any driver."""
COMPILING_PART = 0.2
"""Share of a cold start. Below this, another number of compile processes changes less than starts differ
by."""

# serving

FEWEST_CALLS = 16
"""Calls of models in the looked-at time. With fewer, means and overlaps say little."""
CALLS_AT_ONCE = 1.2
"""Calls under way, on average over the time with one. Below this, threads hardly meet."""
CALLS_SLOWER, CALLS_MUCH_SLOWER = 1.5, 4.0
"""How many times as long a call takes beside others as alone: noticeable, and as in services that miss their
deadlines because of it."""
LEAST_CALL_CPU_S = 20e-6
"""Processor time of a call. Below this, the clock of threads is too coarse for a ratio."""
MODELS_PER_CALL = 0.2
"""New models per call. Below this, models are made now and then, as for a new stream."""
LATENCY_GROWS = 0.005
"""Seconds by which latency grows in a second: a queue that loses half a percent of the frames' time."""
