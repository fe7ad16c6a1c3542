"""Settings from elsewhere: of a recipe, a pack, a folder of caches. Only what `check` lets through is applied.

A variable can make a program load code, read other files, or trust others, and no list of such variables is complete.
So this lists the variables that only tune, each with the values that it takes. No value on the list names a file, a
module, a library or an address: a path is always the user's to type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dynotune.knobs.catalogue import all_knobs
from dynotune.schema.knob import Env
from dynotune.schema.redaction import MARK, redacted
from dynotune.schema.setting import UNSET, Setting
from dynotune.text import words

_NUMBER = r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?"
_SWITCH = r"(?i:0|1|true|false|yes|no|on|off)"
_SIZE = r"[0-9]{1,18} ?[kKmMgGtT]?i?[bB]?"
# Numbers of processors, and the brackets and steps that lists of them have.
_CPUS = r"[0-9 ,:{}()!*-]{1,4000}"
# What such lists are made of: names without a dot or a slash, numbers, signs.
_WORDS = r"[A-Za-z0-9_ ,:;=^{}()\[\]-]{1,4000}"

_VALUES_OF = {
    _NUMBER: """
        CUBLASLT_WORKSPACE_SIZE CUDA_BINARY_LOADER_THREAD_COUNT CUDA_DEVICE_MAX_CONNECTIONS MKL_NUM_THREADS
        MALLOC_ARENA_MAX MALLOC_MMAP_THRESHOLD_ MALLOC_TOP_PAD_ MALLOC_TRIM_THRESHOLD_ NUMEXPR_NUM_THREADS
        NCCL_BUFFSIZE NCCL_IB_PCI_RELAXED_ORDERING NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS
        NCCL_NTHREADS NCCL_NVLS_ENABLE OPENBLAS_NUM_THREADS TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT
    """,
    _SWITCH: """
        CUDA_DISABLE_PTX_JIT CUDA_FORCE_JIT CUDA_FORCE_PTX_JIT CUDA_LAUNCH_BLOCKING NVIDIA_TF32_OVERRIDE
        MKL_DYNAMIC NCCL_CUMEM_ENABLE NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_SHM_DISABLE OMP_DYNAMIC PYTHONUNBUFFERED
        PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK TOKENIZERS_PARALLELISM TRITON_ALWAYS_COMPILE
        TORCHINDUCTOR_AUTOGRAD_CACHE TORCHINDUCTOR_COORDINATE_DESCENT_TUNING TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS
        TORCHINDUCTOR_CPP_WRAPPER TORCHINDUCTOR_FORCE_DISABLE_CACHES TORCHINDUCTOR_FREEZING
        TORCHINDUCTOR_FX_GRAPH_CACHE TORCHINDUCTOR_MAX_AUTOTUNE TORCHINDUCTOR_MAX_AUTOTUNE_GEMM
        TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CUBLASLT_UNIFIED_WORKSPACE
        TORCH_CUBLAS_WORKSPACE_CACHE TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_HIGH_PRIORITY
    """,
    _CPUS: "GOMP_CPU_AFFINITY OMP_NUM_THREADS",
    _WORDS: "KMP_AFFINITY NCCL_ALGO NCCL_PROTO OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE",
    r"(:[0-9]{1,9}:[0-9]{1,9}){1,9}": "CUBLAS_WORKSPACE_CONFIG",
    r"[0-9.]{1,9}x?": "CUDA_SCALE_LAUNCH_QUEUES",
    r"FASTEST_FIRST|PCI_BUS_ID": "CUDA_DEVICE_ORDER",
    rf"{_SIZE}|(?i:infinite|infinity)": "GOMP_SPINCOUNT",
    r"[0-9]{1,9}(us|ms)?|(?i:infinite)": "KMP_BLOCKTIME",
    r"LOC|NVL|PIX|PXB|PHB|SYS|[0-9]": "NCCL_P2P_LEVEL",
    r"(?i:active|passive)": "OMP_WAIT_POLICY",
    r"random|[0-9]{1,10}": "PYTHONHASHSEED",
    r"default|debug|(py)?malloc(_debug)?|mimalloc(_debug)?": "PYTHONMALLOC",
    # Keys of the allocator, numbers, True and False, lists.
    r"[A-Za-z0-9_ ,:;.\[\]<>-]{1,4000}": "PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF",
}
_ALLOWED = {name: re.compile(values, re.ASCII) for values, names in _VALUES_OF.items() for name in names.split()}
_ALLOWED |= {
    knob.id.removeprefix("env."): re.compile("|".join(map(re.escape, map(str, knob.values))) or _NUMBER, re.ASCII)
    for knob in all_knobs()
    # The others name folders of code that runs.
    if isinstance(knob.site, Env) and (knob.type != "str" or knob.values)
}

# Left over from debugging: findings take them away.
_DEBUGGING_NAMES = """
    CUBLASLT_LOG_LEVEL CUBLAS_LOGINFO_DBG CUDNN_LOGINFO_DBG CUDNN_LOGLEVEL_DBG MALLOC_CHECK_ MALLOC_PERTURB_
    NCCL_BLOCKING_WAIT NCCL_DEBUG PYTHONDONTWRITEBYTECODE TORCHINDUCTOR_NAN_ASSERTS TORCH_COMPILE_DEBUG
    TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG TORCH_LOGS TORCH_NCCL_BLOCKING_WAIT TORCH_NCCL_DESYNC_DEBUG
    TORCH_NCCL_ENABLE_TIMING TORCH_NCCL_NAN_CHECK USE_PYTORCH_KERNEL_CACHE
"""
_DEBUGGING = frozenset(_DEBUGGING_NAMES.split())


class Checked(NamedTuple):
    """What became of settings from elsewhere.

    Args:
        applied: those that may be applied, and those that the user typed.
        left_out: those that only the user may set, and did not type.
    """

    applied: list[Setting]
    left_out: list[Setting]


def check(found: Iterable[Setting], typed: Sequence[Setting] = ()) -> Checked:
    """Part settings from elsewhere into those that may be applied and the others. What the user typed wins."""
    given = {setting.knob: setting for setting in typed}
    chosen = {setting.knob: setting for setting in found} | given
    left_out = {knob for knob, setting in chosen.items() if knob not in given and must_be_typed(setting)}
    return Checked(
        [setting for knob, setting in chosen.items() if knob not in left_out],
        [setting for knob, setting in chosen.items() if knob in left_out],
    )


def check_variables(found: Iterable[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """Part variables from elsewhere, as `check` does: those that may be set, and the others."""
    checked = check([Setting(f"env.{name}", value) for name, value in found])
    applied, left_out = (
        {setting.knob.removeprefix("env."): str(setting.value) for setting in part} for part in checked
    )
    return applied, left_out


def must_be_typed(setting: Setting) -> bool:
    """Whether only the user may set this: a variable or a value that is not known to do nothing but tune."""
    text = str(setting.value)
    if setting.knob in ("python", "git.ref"):
        return True
    if setting.knob.startswith("arg."):
        # Whatever else it is, it may name a file to the command.
        return re.fullmatch(rf"{_NUMBER}|{_SWITCH}", text, re.ASCII) is None
    name = setting.knob.removeprefix("env.")
    if name == setting.knob:
        return False
    if text == UNSET:
        return name not in _ALLOWED and name not in _DEBUGGING
    return name not in _ALLOWED or _ALLOWED[name].fullmatch(text) is None


def how_to_type(setting: Setting) -> str:
    """The option that sets it, quoted for a shell; a secret has to be filled in."""
    return f"--set {words.command([redacted(str(setting)).replace(MARK, 'VALUE')])}"
