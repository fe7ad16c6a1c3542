"""Popular remedies: what people say, what is so, where that is written, and the trace that each leaves on a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.explanation import Folklore

KERNEL_DOCS = "https://docs.kernel.org/admin-guide/sysctl"
CUDA_NOTES = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
PINNING = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"
TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
RANDOMNESS = "https://docs.pytorch.org/docs/stable/notes/randomness.html"
CUDA_VARIABLES = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
NVML = "https://docs.nvidia.com/deploy/nvml-api/structnvmlUtilization__t.html"
LOADER = "https://docs.pytorch.org/docs/stable/data.html"

Trace = Callable[[ObservationView], str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One remedy.

    Args:
        trace: returns the remedy's trace on this machine, in words; "" if there is none.
        always: shown even beside a finding that it bears on.
    """

    folklore: Folklore
    trace: Trace | None = None
    always: bool = False


def differs(fact: str, name: str, *defaults: float) -> Trace:
    """Make a trace of a kernel setting that is at none of its defaults."""

    def trace(view: ObservationView) -> str:
        value = view.number_or_none(fact)
        if value is None or value in defaults:
            return ""
        return f"{name} is {value:.15g} (default {' or '.join(f'{each:.15g}' for each in defaults)})"

    return trace


def variable(name: str, *values: str) -> Trace:
    """Make a trace of a variable that is set, to one of `values` if any are given."""

    def trace(view: ObservationView) -> str:
        value = view.fact_or_none(f"env.{name}")
        if not isinstance(value, str) or (values and value.lower() not in values):
            return ""
        return f"{name}={value}"

    return trace


def either(*traces: Trace) -> Trace:
    """Make a trace that joins those of all."""
    return lambda view: "; ".join(filter(None, (trace(view) for trace in traces)))


def real_time(view: ObservationView) -> str:
    """Return the trace of a real-time kernel."""
    return "the kernel is built with PREEMPT_RT" if view.fact_or_none("host.preempt_rt") is True else ""


def raised(fact: str, name: str, at: int, largest: int) -> Trace:
    """Make a trace of a number in a row, `tcp_rmem`, above its largest default. Below, it depends on memory."""

    def trace(view: ObservationView) -> str:
        row = view.fact_or_none(fact)
        value = row[at] if isinstance(row, list) and len(row) > at else None
        if not isinstance(value, int) or value <= largest:
            return ""
        return f"the largest of {name} is {value} (default up to {largest})"

    return trace


def _entry(trace: Trace | None = None, *, always: bool = False, **told: Any) -> Entry:
    return Entry(Folklore(**told), trace, always)


ENTRIES = (
    _entry(
        id="preempt-rt",
        about=["PREEMPT_RT", "real-time kernel", "rt kernel", "low-latency kernel"],
        claim="A real-time kernel makes training faster, since it schedules sooner.",
        does="It bounds how long a thread waits to be scheduled, and pays for that with throughput.",
        does_not="It speeds up no training and no inference. NVIDIA's driver refuses to be built for it; the "
        "variable that skips the check is not supported.",
        instead="Use the distribution's standard kernel. For even latency, pin threads and keep others off the cores.",
        source="the driver's own build message: “The NVIDIA driver does not support real-time kernels”",
        bears_on=["preempt-rt-kernel"],
        trace=real_time,
        always=True,
    ),
    _entry(
        id="socket-buffers",
        about=["net.core.rmem_max", "net.core.wmem_max", "rmem_max", "wmem_max", "tcp buffers", "socket buffers"],
        claim="Raising net.core.rmem_max and wmem_max speeds distributed training up.",
        does="It raises the most that a program may ask for as the buffer of a socket.",
        does_not="On one machine it does nothing: GPUs talk over NVLink, PCIe or shared memory. InfiniBand and "
        "RoCE do not use it either, and TCP's own tuning is bounded by net.ipv4.tcp_rmem and tcp_wmem.",
        instead="It can matter where NCCL's log says NET/Socket between machines, or data comes over a network "
        "file system. Then raise net.ipv4.tcp_rmem and tcp_wmem as well, and measure.",
        source=f"{KERNEL_DOCS}/net.html",
        bears_on=["communication-exposed"],
        # Since Linux 6.18 the defaults are 4 MiB.
        trace=either(
            differs("host.rmem_max", "net.core.rmem_max", 212_992, 229_376, 4_194_304),
            differs("host.wmem_max", "net.core.wmem_max", 212_992, 229_376, 4_194_304),
        ),
    ),
    _entry(
        id="dirty-ratio",
        about=["vm.dirty_ratio", "vm.dirty_background_ratio", "dirty pages", "dirty ratio"],
        claim="Lowering vm.dirty_ratio and vm.dirty_background_ratio makes data load faster.",
        does="It makes programs that write be stopped, and written data be flushed, earlier; as a share of the "
        "memory that is available.",
        does_not="It does nothing for reading. A lower value can make the writing of a checkpoint stop the program "
        "sooner.",
        instead="For reading: look at loader-bound, and compare a second epoch with the first to see what the "
        "disk costs.",
        source=f"{KERNEL_DOCS}/vm.html",
        bears_on=["loader-bound", "decode-bound"],
        trace=either(
            differs("host.dirty_ratio", "vm.dirty_ratio", 20),
            differs("host.dirty_background_ratio", "vm.dirty_background_ratio", 10),
        ),
    ),
    _entry(
        id="swappiness",
        about=["vm.swappiness", "swappiness"],
        claim="A lower vm.swappiness makes training faster.",
        does="It shifts what the kernel gives up when memory is short: cached files rather than programs' memory.",
        does_not="It adds no memory, and changes nothing on a machine that does not swap.",
        instead="See whether anything is swapped while the command runs (swap-active); then free memory.",
        source=f"{KERNEL_DOCS}/vm.html",
        bears_on=["swap-active"],
        trace=differs("host.swappiness", "vm.swappiness", 60),
    ),
    _entry(
        id="benchmark-dynamic",
        about=["cudnn.benchmark", "torch.backends.cudnn.benchmark", "cudnn benchmark"],
        claim="torch.backends.cudnn.benchmark = True is best for inputs whose shape changes.",
        does="It tries cuDNN's algorithms for each new shape of a convolution, and keeps the fastest.",
        does_not="With shapes that keep changing it tries again and again: then it is better off. It does nothing "
        "for networks without convolutions.",
        instead="Switch it on for fixed shapes; else pad inputs to a few sizes first.",
        source=TUNING,
        bears_on=["cudnn-benchmark-off", "cudnn-benchmark-dynamic", "cudnn-benchmark-limit"],
    ),
    _entry(
        id="empty-cache",
        about=["torch.cuda.empty_cache", "empty_cache", "clear cuda cache"],
        claim="Calling torch.cuda.empty_cache() in the loop saves memory.",
        does="It gives blocks that torch's allocator holds unused back to the driver, for other processes.",
        does_not="It frees no tensor and gives this program no more memory. The blocks must be allocated again, "
        "which waits for the GPU.",
        instead="Take it out of the loop. Call it once, if at all, before another process starts.",
        source=CUDA_NOTES,
        bears_on=["empty-cache-in-loop", "memory-segments", "alloc-retries"],
    ),
    _entry(
        id="launch-blocking",
        about=["CUDA_LAUNCH_BLOCKING", "launch blocking"],
        claim="CUDA_LAUNCH_BLOCKING=1 makes runs faster, or more stable.",
        does="It makes the host wait for the end of each kernel, so that an error is reported where it happened.",
        does_not="It makes nothing faster: host and GPU take turns.",
        instead="Set it to find the kernel that fails, and take it away again.",
        source=CUDA_VARIABLES,
        bears_on=["launch-blocking-on"],
        trace=variable("CUDA_LAUNCH_BLOCKING", "1"),
    ),
    _entry(
        id="pin-memory-variable",
        about=["PIN_MEMORY", "ultralytics PIN_MEMORY"],
        claim="The variable PIN_MEMORY switches pinned memory of Ultralytics' loaders.",
        does="Nothing in Ultralytics 8.4: pin_memory is an argument of its loader.",
        does_not="Neither torch nor CUDA reads it.",
        instead="Set pin_memory where the DataLoader is made; loader.pin_memory=true proves what it is worth.",
        source="the source of ultralytics 8.4.190, data/build.py",
        bears_on=["pin-memory-off"],
        trace=variable("PIN_MEMORY"),
    ),
    _entry(
        id="cublas-workspace",
        about=["CUBLAS_WORKSPACE_CONFIG", "cublas workspace", ":4096:8"],
        claim="CUBLAS_WORKSPACE_CONFIG=:4096:8 speeds products up by reserving gigabytes of memory.",
        does="It sets cuBLAS's workspace: 8 buffers of 4096 KiB, 32 MiB in all, so that results repeat on several "
        "streams. On Hopper torch gives as much anyway.",
        does_not="It saves no allocation: torch keeps the workspace in any case. With torch 2.0 to 2.12 it costs "
        "host time at each product.",
        instead="Set it for deterministic results alone; else take it away, before torch is imported.",
        source="https://docs.nvidia.com/cuda/cublas/#results-reproducibility; pytorch issue 109856",
        bears_on=[
            "cublas-env-regex",
            "cublas-workspace-small",
            "ul-cublas-env-on-construct",
            "deterministic-algos-on",
        ],
        trace=variable("CUBLAS_WORKSPACE_CONFIG"),
    ),
    _entry(
        id="utilisation",
        about=["nvidia-smi utilisation", "gpu utilization", "gpu-util", "GPU utilisation", "volatile gpu-util"],
        claim="100% in nvidia-smi means that the GPU is used to the full.",
        does="It is the share of time in which at least one kernel ran.",
        does_not="It says nothing of how much of the GPU the kernel used: one block of threads counts as much as "
        "thousands. A low value has many causes besides loading.",
        instead="dynotune diagnose shows where a step goes, and with --roofline how far it is from what the GPU "
        "can do.",
        source=NVML,
        bears_on=["gpu-shared", "launch-bound", "host-bound", "loader-bound"],
    ),
    _entry(
        id="hand-made-pool",
        about=["memory pool", "hand-made pool", "tensor pool", "GPUMemoryPool", "cudaMalloc per tensor"],
        claim="A pool of GPU tensors of one's own avoids cudaMalloc at each step.",
        does="It keeps tensors alive that torch's allocator would have used again for others.",
        does_not="torch does not call cudaMalloc for each tensor: its allocator keeps blocks. A pool that does not "
        "follow streams hands out memory that kernels still read.",
        instead="Leave it to the allocator; see alloc-retries where it really goes to the driver.",
        source=CUDA_NOTES,
        bears_on=["no-memory-caching-on", "alloc-retries"],
    ),
    _entry(
        id="yolo-checks",
        about=["yolo checks", "ultralytics checks"],
        claim="`yolo checks` tunes the environment.",
        does="It prints versions of system, Python, packages and GPU.",
        does_not="It changes nothing.",
        instead="dynotune doctor names what costs time, and what to do.",
        source="the source of ultralytics 8.4.190, utils/checks.py",
    ),
    _entry(
        id="more-workers",
        about=["num_workers", "more workers", "70-80% of cores", "workers = cores"],
        claim="More loader workers are always better; or: 70 to 80% of the cores.",
        does="Each worker prepares batches in a process of its own, beside the others.",
        does_not="Beyond the point at which nothing waits for the loader they only cost memory and time to "
        "switch. The host's cores are shared by all ranks, and a container may have fewer.",
        instead="Take the smallest number at which a step does not wait, once all that makes it shorter is set: "
        "dynotune compare loader.num_workers=4.",
        source=TUNING,
        bears_on=["num-workers-too-many", "num-workers-zero", "loader-bound", "cpu-oversubscribed"],
    ),
    _entry(
        id="allow-tf32",
        about=["torch.backends.cuda.matmul.allow_tf32", "allow_tf32", "set_float32_matmul_precision", "TF32"],
        claim="torch.backends.cuda.matmul.allow_tf32 = True makes every model faster.",
        does="It lets float32 matrix products use tensor cores, with ten bits of mantissa. Convolutions do so by "
        "default.",
        does_not="Under autocast, and in models in half types, there are hardly any float32 products left. It is "
        "the older name: mixed with fp32_precision, reading it raises an error. It changes results.",
        instead="See fp32-matmul-no-tf32; prove it with matmul.fp32_precision=high.",
        source=CUDA_NOTES,
        bears_on=["fp32-matmul-no-tf32", "tf32-env-override"],
    ),
    _entry(
        id="pin-in-the-loop",
        about=["tensor.pin_memory()", "pin_memory().to()", "zero-copy upload", "zero copy"],
        claim="tensor.pin_memory().to('cuda', non_blocking=True) is a zero-copy upload.",
        does="It allocates page-locked memory, copies into it while the host waits, and copies again.",
        does_not="It is no zero-copy, and may take twice as long as plain .to('cuda').",
        instead="Pin in the DataLoader, or fill one pinned buffer again and again.",
        source=PINNING,
        bears_on=["pin-in-hot-loop", "pin-memory-off"],
    ),
    _entry(
        id="non-blocking-overlap",
        about=["non_blocking", "non_blocking=True", "asynchronous transfer"],
        claim="With non_blocking=True the forward pass overlaps with the copy of its batch.",
        does="It lets the host go on, where the source is pinned.",
        does_not="Copy and kernels on one stream run one after the other. To the CPU it is dangerous: the data "
        "may be read before it has arrived.",
        instead="For overlap, copy the next batch on a stream of its own and wait for it there.",
        source=PINNING,
        bears_on=["h2d-not-overlapped", "h2d-blocking", "d2h-nonblocking-unsynced"],
    ),
    _entry(
        id="prefetch-factor-2",
        about=["prefetch_factor", "prefetch_factor=2"],
        claim="prefetch_factor=2 speeds a loader up.",
        does="It is the default: each worker prepares two batches ahead.",
        does_not="Setting it to 2 changes nothing. More of it evens out batches that take unequally long; it does "
        "not raise the mean rate.",
        instead="More workers, or less work a sample, where the mean rate is too low.",
        source=LOADER,
        bears_on=["prefetch-factor", "loader-bound"],
    ),
    _entry(
        id="fragmentation-by-nvidia-smi",
        about=["fragmentation", "nvidia-smi memory", "memory_allocated", "reserved memory"],
        claim="More memory in nvidia-smi than torch.cuda.memory_allocated() says is fragmentation.",
        does="nvidia-smi counts the CUDA context, the libraries, and the blocks that the allocator keeps for later.",
        does_not="The difference says nothing about fragmentation.",
        instead="dynotune memory splits what nvidia-smi shows into terms; memory that is free between blocks in "
        "use is one of them.",
        source=CUDA_NOTES,
        bears_on=["memory-segments"],
    ),
    _entry(
        id="jit-cache",
        about=["CUDA_CACHE_MAXSIZE", "CUDA_CACHE_PATH", "jit cache", "ComputeCache"],
        claim="A larger CUDA_CACHE_MAXSIZE makes models start faster; two to three times the model's size.",
        does="It bounds the cache of kernels that the driver compiled from PTX: 1 GiB by default, 4 GiB at the most.",
        does_not="torch ships machine code for current GPUs: then nothing is compiled, and nothing cached. The "
        "size has nothing to do with a model's weights; torch.compile has caches of its own.",
        instead="See ptx-jit-active. In a container, put CUDA_CACHE_PATH on a volume.",
        source=CUDA_VARIABLES,
        bears_on=[
            "ptx-jit-active",
            "jit-cache-too-small",
            "jit-cache-not-persistent",
            "jit-cache-disabled",
            "compile-cold-cache",
        ],
        trace=variable("CUDA_CACHE_MAXSIZE"),
    ),
    _entry(
        id="no-bytecode",
        about=["PYTHONDONTWRITEBYTECODE", "dont write bytecode", "no pyc", "uv compile bytecode"],
        claim="PYTHONDONTWRITEBYTECODE=1 belongs into every Dockerfile: images get smaller and cleaner.",
        does="Python then writes no compiled form of the modules that it imports. pip still compiles what it "
        "installs; uv does not unless it is asked to.",
        does_not="It makes no start faster. If a module has no compiled form, each start compiles its source "
        "anew, in each process and in each rank.",
        instead="Compile as the image is built: python -m compileall, or UV_COMPILE_BYTECODE=1. See bytecode-not-kept.",
        source="https://docs.python.org/3/using/cmdline.html#envvar-PYTHONDONTWRITEBYTECODE",
        bears_on=["bytecode-not-kept"],
        trace=variable("PYTHONDONTWRITEBYTECODE"),
    ),
    _entry(
        id="cuda-toolkit",
        about=["CUDA toolkit", "install cuda", "nvcc", "install cudnn"],
        claim="The CUDA toolkit and cuDNN must be installed before PyTorch, in the same version.",
        does="It provides nvcc, for building extensions.",
        does_not="torch's wheels bring CUDA's libraries, cuDNN and NCCL; an installed toolkit is not used by "
        "them, and only the driver must be new enough.",
        instead="Look at driver-too-old and torch-without-cuda.",
        source="the metadata of torch's wheels on PyPI",
        bears_on=["driver-too-old", "torch-without-cuda"],
    ),
    _entry(
        id="tcp-autotuning",
        about=["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem", "tcp_rmem", "tcp_wmem"],
        claim="Larger tcp_rmem and tcp_wmem speed NCCL up.",
        does="They bound what TCP's own tuning gives a connection.",
        does_not="Nothing, unless NCCL or a file system talks over TCP between machines.",
        instead="NCCL_DEBUG=INFO, once, says which transport is used.",
        source="https://docs.kernel.org/networking/ip-sysctl.html",
        bears_on=["communication-exposed"],
        trace=either(
            raised("host.tcp_rmem", "net.ipv4.tcp_rmem", 2, 33_554_432),
            raised("host.tcp_wmem", "net.ipv4.tcp_wmem", 2, 4_194_304),
        ),
    ),
    _entry(
        id="deterministic-for-speed",
        about=["use_deterministic_algorithms", "cudnn.deterministic", "deterministic"],
        claim="Deterministic algorithms make results right, and cost nothing.",
        does="They make results repeat on the same machine and versions; slower algorithms may have to be taken, "
        "and memory be filled.",
        does_not="Results without them are no less right. They do not repeat across GPUs or versions either.",
        instead="Use them for tests; see deterministic-algos-on and cudnn-deterministic-on for what they cost.",
        source=RANDOMNESS,
        bears_on=["deterministic-algos-on", "cudnn-deterministic-on", "fill-uninitialized"],
    ),
    _entry(
        id="garbage-collector",
        about=["gc.collect", "gc.disable", "garbage collection"],
        claim="gc.collect() at each step frees GPU memory.",
        does="It looks for cycles among Python's objects; a tensor outside of a cycle is freed without it.",
        does_not="It takes milliseconds for each call, more the more objects there are, while the GPU waits for "
        "the host.",
        instead="Take it out of the loop; where collections are what the slow steps have, call gc.freeze() after "
        "warm-up.",
        source="https://docs.python.org/3/library/gc.html",
        bears_on=["gc-jitter"],
    ),
)
