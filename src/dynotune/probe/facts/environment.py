"""Environment variables that PyTorch, CUDA and what lies below them read, why they matter, and who set them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from dynotune.probe.sources.counters import PARENT, stat_fields
from dynotune.schema.facts import Facts, Unknown

NAMES: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": "which GPUs the program sees, and in which order",
    "CUDA_DEVICE_ORDER": "whether GPU numbers follow speed or the PCI bus",
    "CUDA_LAUNCH_BLOCKING": "makes every kernel launch wait for its end",
    "CUDA_MODULE_LOADING": "loads kernels at first use or all at the start",
    "CUDA_DEVICE_MAX_CONNECTIONS": "hardware queues; few of them serialise streams",
    "CUDA_SCALE_LAUNCH_QUEUES": "how many launches may wait before the host does",
    "CUDA_CACHE_DISABLE": "without the cache, kernels are compiled anew at each start",
    "CUDA_CACHE_MAXSIZE": "a small cache forgets kernels that were compiled for this GPU",
    "CUDA_CACHE_PATH": "where kernels compiled for this GPU are kept",
    "CUDA_FORCE_PTX_JIT": "ignores ready machine code and compiles every kernel at the start",
    "CUDA_FORCE_JIT": "compiles every kernel at the start",
    "CUDA_DISABLE_PTX_JIT": "kernels without ready machine code fail",
    "CUDA_BINARY_LOADER_THREAD_COUNT": "threads that load kernels",
    "CUBLAS_WORKSPACE_CONFIG": "costs host time at each product in torch 2.0 to 2.12",
    "CUBLASLT_WORKSPACE_SIZE": "workspace decides which matrix algorithms may be chosen",
    "NVIDIA_TF32_OVERRIDE": "overrides every TF32 setting of PyTorch",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "turns TF32 on, whatever the program sets",
    "TORCH_CUBLAS_WORKSPACE_CACHE": "keeps cuBLAS workspaces between calls, from torch 2.15 on",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "lets cuBLASLt use cuBLAS's workspace",
    "TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT": "how many convolution plans are kept",
    "TORCH_CUDA_ARCH_LIST": "GPUs for which extensions are compiled",
    "TORCH_LOGS": "log of compilation; some of it costs time",
    "TORCH_COMPILE_DEBUG": "writes every compiled graph to disk",
    "TORCH_DISTRIBUTED_DEBUG": "checks collectives, each time",
    "TORCH_NCCL_BLOCKING_WAIT": "the host waits for each collective",
    "TORCH_NCCL_NAN_CHECK": "looks for NaN before each collective",
    "TORCH_NCCL_ENABLE_TIMING": "times each collective with events",
    "TORCH_NCCL_DESYNC_DEBUG": "records each collective on each rank",
    "TORCH_NCCL_HIGH_PRIORITY": "runs collectives on streams of high priority",
    "TORCHINDUCTOR_CACHE_DIR": "where torch.compile keeps what it compiled",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "without this cache, torch.compile starts cold",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "torch.compile starts cold each time",
    "TORCHINDUCTOR_COMPILE_THREADS": "processes that compile",
    "TORCHINDUCTOR_FREEZING": "makes weights constants of compiled inference",
    "TRITON_CACHE_DIR": "where compiled Triton kernels are kept",
    "NCCL_DEBUG": "log of communication; TRACE costs time at each call",
    "NCCL_P2P_DISABLE": "GPUs no longer reach each other directly",
    "NCCL_SHM_DISABLE": "processes of a host no longer share memory",
    "NCCL_IB_DISABLE": "communication between hosts falls back to TCP",
    "PYTORCH_ALLOC_CONF": "options of the caching allocator",
    "PYTORCH_CUDA_ALLOC_CONF": "older name of PYTORCH_ALLOC_CONF; read first where both are set",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation becomes a call to the driver",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "asks for GPUs without starting CUDA",
    "PYTORCH_TUNABLEOP_ENABLED": "tries library kernels for each product at first use",
    "PYTORCH_KERNEL_CACHE_PATH": "where kernels compiled by PyTorch at run time are kept",
    "USE_PYTORCH_KERNEL_CACHE": "without this cache, some operators compile their kernels at each start",
    "OMP_NUM_THREADS": "threads of CPU operators; torchrun sets it to 1 where it is unset",
    "MKL_NUM_THREADS": "threads of MKL's products",
    "OPENBLAS_NUM_THREADS": "threads of OpenBLAS under NumPy",
    "TOKENIZERS_PARALLELISM": "threads of Hugging Face tokenizers in loader workers",
    "LD_PRELOAD": "another allocator, or anything else, below the program",
    "PYTHONPATH": "which modules the program finds first",
    "PYTHONDONTWRITEBYTECODE": "no compiled form of imported modules is kept",
    "PYTHONPYCACHEPREFIX": "where the compiled form of imported modules is kept",
    "PYTHONHASHSEED": "order of sets of strings, and what depends on it",
    "PYTHONFAULTHANDLER": "prints a stack when the program crashes",
    "PYTHONMALLOC": "another allocator under Python; `debug` checks each object",
    "PYTHONDEVMODE": "checks at run time that slow Python down",
    "PYTHONTRACEMALLOC": "records where each object was made",
    "IGNORE_PREEMPT_RT_PRESENCE": "lets NVIDIA's driver build for a real-time kernel it does not support",
    "RANK": "set where a launcher started this process already",
    "WORLD_SIZE": "number of processes of the job",
    "LOCAL_RANK": "which GPU of this host a process takes",
}
"""Reported always; None says that a variable is not set."""

PREFIXES: dict[str, str] = {
    "CUDA_": "the CUDA driver and runtime",
    "CUBLAS": "matrix products on the GPU",
    "CUDNN_": "convolutions on the GPU",
    "NVIDIA_": "NVIDIA's libraries, and what a container is given",
    "NCCL_": "communication between GPUs",
    "TORCH_": "PyTorch, its logs, debugging and communication",
    "PYTORCH_": "PyTorch's allocators and fusers",
    "TORCHINDUCTOR_": "torch.compile, its caches and threads",
    "TORCHDYNAMO_": "torch.compile's tracer",
    "TORCHELASTIC_": "torchrun",
    "TRITON_": "kernels compiled at run time, and their cache",
    "GLOO_": "communication between CPUs",
    "OMP_": "OpenMP threads, their binding and waiting",
    "GOMP_": "GNU's OpenMP",
    "KMP_": "Intel's OpenMP",
    "MKL_": "Intel's matrix library",
    "DNNL_": "oneDNN, convolutions and products on the CPU",
    "ONEDNN_": "oneDNN, convolutions and products on the CPU",
    "MALLOC_": "the C allocator's arenas and thresholds, and jemalloc",
    "TCMALLOC_": "tcmalloc",
    "YOLO_": "Ultralytics",
    "PIN_MEMORY": "an older Ultralytics; it does nothing today",
    "LOCAL_WORLD_SIZE": "how many ranks share this host's cores",
}
"""Reported where they are set."""

# Facts go into files that people share.
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "_AUTH")
HIDDEN_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")

UNSEEN = "set by this shell or after"


def facts(env: Mapping[str, str]) -> Facts:
    """Facts `env.NAME` of the variables above; None where a named one is not set.

    `env`: the environment the command will have.
    """
    named: Facts = dict.fromkeys((f"env.{name}" for name in NAMES), None)
    return named | {f"env.{name}": _shown(env[name]) for name in reported(env)}


def _shown(value: str) -> str:
    """Without a login in an address, and fit for a file: a variable may hold bytes that are no text."""
    text = value.encode(errors="surrogateescape").decode(errors="replace")
    return HIDDEN_LOGIN.sub("…@", text)


def reported(env: Iterable[str]) -> list[str]:
    """The variables of `env` that `facts` tells, secrets left out, by name."""
    others = (name for name in env if name.startswith(tuple(PREFIXES)))
    told = {name for name in others if not any(word in name.upper() for word in SECRET_WORDS)}
    return sorted(told.union(name for name in env if name in NAMES))


def origins(env: Mapping[str, str], pid: int, root: Path = Path("/")) -> Facts:
    """Facts `env_from.NAME`: the oldest process above `pid` that was started with a variable as it is now.

    A process's `/proc/PID/environ` is what it was given, not what it set afterwards: a variable that none of them was
    given was set by the shell that started `pid`, by its start files, or later. With `or before`, a process above may
    have had it as well, but belongs to another user.

    `env`: the environment the command will have; variables as in `facts`. `pid`: of the process that will start it.
    """
    ancestry = _ancestry(pid, root)
    return {f"env_from.{name}": _origin(name, env[name], ancestry) for name in reported(env)}


def _ancestry(pid: int, root: Path) -> list[tuple[str, dict[str, str] | Unknown]]:
    """Name and first environment of `pid`, its parent, and so on; the last one may be unreadable."""
    found: list[tuple[str, dict[str, str] | Unknown]] = []
    while pid:
        try:
            stat = stat_fields(f"{root}/proc/{pid}")
        except OSError as error:
            found.append((f"pid {pid}", Unknown(f"process {pid} cannot be read: {error.strerror}")))
            break
        if stat is None:
            break
        first = _first_environment(root / "proc" / str(pid) / "environ")
        found.append((f"pid {pid} ({stat[0]})", first))
        if isinstance(first, Unknown):
            break
        pid = int(stat[1][PARENT])
    return found


def _first_environment(file: Path) -> dict[str, str] | Unknown:
    try:
        # As the interpreter decodes its own.
        text = file.read_bytes().decode(errors="surrogateescape")
    except OSError as error:
        return Unknown(f"{file} cannot be read: {error.strerror}")
    pairs = (entry.partition("=") for entry in text.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def _origin(name: str, value: str, ancestry: list[tuple[str, dict[str, str] | Unknown]]) -> str | Unknown:
    if not ancestry:
        return Unknown("the processes above cannot be read")
    oldest = None
    for at, (who, first) in enumerate(ancestry):
        if isinstance(first, Unknown):
            return f"inherited from {oldest} or before" if oldest else first
        if first.get(name) != value:
            break
        # The first of them is who asks: given to it alone, a variable was set by the shell above.
        oldest = who if at else None
    return f"inherited from {oldest}" if oldest else UNSEEN
