"""Environment variables that PyTorch, CUDA and what lies below them read, and why they matter."""

from __future__ import annotations

from collections.abc import Mapping

from dynotune.schema.facts import Facts

NAMES: dict[str, str] = {
    "CUDA_VISIBLE_DEVICES": "which GPUs the program sees, and in which order",
    "CUDA_DEVICE_ORDER": "whether GPU numbers follow speed or the PCI bus",
    "CUDA_LAUNCH_BLOCKING": "makes every kernel launch wait for its end",
    "CUDA_MODULE_LOADING": "loads kernels at first use or all at the start",
    "CUDA_DEVICE_MAX_CONNECTIONS": "hardware queues; few of them serialise streams",
    "CUDA_CACHE_DISABLE": "without the cache, kernels are compiled anew at each start",
    "CUDA_CACHE_MAXSIZE": "a small cache forgets kernels that were compiled for this GPU",
    "CUBLAS_WORKSPACE_CONFIG": "costs host time at each product in torch 2.0 to 2.12",
    "CUBLASLT_WORKSPACE_SIZE": "workspace decides which matrix algorithms may be chosen",
    "NVIDIA_TF32_OVERRIDE": "overrides every TF32 setting of PyTorch",
    "PYTORCH_ALLOC_CONF": "options of the caching allocator",
    "PYTORCH_CUDA_ALLOC_CONF": "older name of PYTORCH_ALLOC_CONF; read first where both are set",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation becomes a call to the driver",
    "OMP_NUM_THREADS": "threads of CPU operators; torchrun sets it to 1 where it is unset",
    "MKL_NUM_THREADS": "threads of MKL's products",
    "OPENBLAS_NUM_THREADS": "threads of OpenBLAS under NumPy",
    "LD_PRELOAD": "another allocator, or anything else, below the program",
    "PYTHONPATH": "which modules the program finds first",
    "PYTHONHASHSEED": "order of sets of strings, and what depends on it",
    "RANK": "set where a launcher started this process already",
    "WORLD_SIZE": "number of processes of the job",
    "LOCAL_RANK": "which GPU of this host a process takes",
}
"""Reported always; None says that a variable is not set."""

PREFIXES: dict[str, str] = {
    "CUDA_": "the CUDA driver and runtime",
    "CUBLAS": "matrix products on the GPU",
    "CUDNN_": "convolutions on the GPU",
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
}
"""Reported where they are set."""

# Facts go into files that people share.
SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY")


def facts(env: Mapping[str, str]) -> Facts:
    """Facts `env.NAME` of the variables above; None where a named one is not set.

    Args:
        env: the environment the command will have.
    """
    named: Facts = {f"env.{name}": env.get(name) for name in NAMES}
    found: Facts = {f"env.{name}": value for name, value in sorted(env.items()) if name.startswith(tuple(PREFIXES))}
    return {name: value for name, value in (named | found).items() if not _is_secret(name)}


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET_WORDS)
