"""Environment variables: any of them, set or taken away before the process starts."""

from __future__ import annotations

from dynotune.knobs import caches
from dynotune.schema.knob import Env, Knob
from dynotune.schema.setting import UNSET, Setting

__all__ = ["KNOBS", "for_variable", "must_be_typed"]

# Folders of code that runs: the catalogue explains them, and only the user names them.
_CODE_FOLDERS = ("CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

# Numbers and modes. None of these names a file, a module, a library or an address, or takes a check away.
_TUNING_NAMES = """
    CUBLASLT_WORKSPACE_SIZE CUBLAS_WORKSPACE_CONFIG CUDA_BINARY_LOADER_THREAD_COUNT CUDA_DEVICE_MAX_CONNECTIONS
    CUDA_DEVICE_ORDER CUDA_DISABLE_PTX_JIT CUDA_FORCE_JIT CUDA_FORCE_PTX_JIT CUDA_LAUNCH_BLOCKING
    CUDA_SCALE_LAUNCH_QUEUES NVIDIA_TF32_OVERRIDE
    GOMP_CPU_AFFINITY GOMP_SPINCOUNT KMP_AFFINITY KMP_BLOCKTIME MKL_DYNAMIC MKL_NUM_THREADS NUMEXPR_NUM_THREADS
    OMP_DYNAMIC OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY OPENBLAS_NUM_THREADS
    TOKENIZERS_PARALLELISM
    MALLOC_ARENA_MAX MALLOC_MMAP_THRESHOLD_ MALLOC_TOP_PAD_ MALLOC_TRIM_THRESHOLD_
    NCCL_ALGO NCCL_BUFFSIZE NCCL_CUMEM_ENABLE NCCL_IB_DISABLE NCCL_IB_PCI_RELAXED_ORDERING NCCL_MAX_CTAS
    NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL
    NCCL_PROTO NCCL_SHM_DISABLE TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_HIGH_PRIORITY
    PYTHONHASHSEED PYTHONMALLOC PYTHONUNBUFFERED
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK
    TORCHINDUCTOR_AUTOGRAD_CACHE TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS TORCHINDUCTOR_FORCE_DISABLE_CACHES
    TORCHINDUCTOR_FREEZING TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_MAX_AUTOTUNE TRITON_ALWAYS_COMPILE
    TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CUBLASLT_UNIFIED_WORKSPACE TORCH_CUBLAS_WORKSPACE_CACHE
    TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT
"""
_TUNING = frozenset(_TUNING_NAMES.split())

# Left over from debugging: findings take them away.
_DEBUGGING_NAMES = """
    CUBLASLT_LOG_LEVEL CUBLAS_LOGINFO_DBG CUDNN_LOGINFO_DBG CUDNN_LOGLEVEL_DBG MALLOC_CHECK_ MALLOC_PERTURB_
    NCCL_BLOCKING_WAIT NCCL_DEBUG PYTHONDONTWRITEBYTECODE TORCHINDUCTOR_NAN_ASSERTS TORCH_COMPILE_DEBUG
    TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCH_LOGS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DESYNC_DEBUG
    TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_NAN_CHECK USE_PYTORCH_KERNEL_CACHE
"""
_DEBUGGING = frozenset(_DEBUGGING_NAMES.split())


def must_be_typed(setting: Setting) -> bool:
    """Whether only the user may set this, and no recipe: a variable, or a value, that is not known to be harmless.

    A variable can make a program load code, read other files, or trust others. No list of those is complete, so this
    knows the variables that only tune, and values without a path.
    """
    if setting.knob in ("python", "git.ref"):
        return True
    if setting.knob.startswith("arg."):
        return "/" in str(setting.value)
    name = setting.knob.removeprefix("env.")
    if name == setting.knob:
        return False
    if name in _CODE_FOLDERS:
        return True
    if name in _DEBUGGING:
        return setting.value != UNSET
    if name in _TUNING:
        return "/" in str(setting.value)
    return all(knob.id != setting.knob for knob in caches.KNOBS)


def for_variable(name: str) -> Knob:
    """The knob `env.NAME`."""
    known = next((knob for knob in caches.KNOBS if knob.id == f"env.{name}"), None)
    return known or Knob(
        id=f"env.{name}",
        site=Env(name),
        type="str",
        default="as in the environment that dynotune was started from",
        when="process",
        effect="semantics",
        doc=(
            f"The environment variable {name}. `env.{name}=@unset` takes it away. The program cannot change "
            "it afterwards: its own writes do not reach C code or child processes."
        ),
        hurts=("What a variable may change is up to whoever reads it; some are read once, when a library is loaded."),
        source="https://docs.pytorch.org/docs/stable/torch_environment_variables.html",
    )


# One entry stands for all of them in a listing.
KNOBS = (for_variable("NAME"),)
