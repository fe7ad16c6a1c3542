"""The start: where what was compiled is kept, how much of it, how many processes compile, when kernels are loaded."""

from __future__ import annotations

from dynotune.schema.knob import Env, Knob

_CUDA = "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html"
_LAZY = "https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html"
_COMPILE = "https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_configuration_tutorial.html"

KNOBS = (
    Knob(
        id="env.CUDA_CACHE_MAXSIZE",
        site=Env("CUDA_CACHE_MAXSIZE"),
        type="int",
        minimum=0,
        maximum=1 << 32,
        default="1073741824 of current drivers; 268435456 of embedded and older ones",
        when="process",
        effect="exact",
        doc="Bytes that the driver keeps of kernels that it compiled from PTX; 4 GiB is the most there is.",
        hurts="A binary larger than it is never kept, and what is oldest makes room for what is new.",
        source=_CUDA,
    ),
    Knob(
        id="env.CUDA_CACHE_PATH",
        site=Env("CUDA_CACHE_PATH"),
        type="str",
        default="~/.nv/ComputeCache",
        when="process",
        effect="exact",
        doc="Folder in which the driver keeps kernels that it compiled from PTX.",
        hurts="They are code that runs: nobody else may write there. Another driver compiles them anew.",
        source=_CUDA,
    ),
    Knob(
        id="env.CUDA_CACHE_DISABLE",
        site=Env("CUDA_CACHE_DISABLE"),
        type="str",
        values=("0", "1"),
        default="0",
        when="process",
        effect="exact",
        doc="1 makes the driver forget the kernels that it compiled: each start compiles them again.",
        hurts="Seconds to many minutes a start, where a library has no machine code for this GPU.",
        source=_CUDA,
    ),
    Knob(
        id="env.CUDA_MODULE_LOADING",
        site=Env("CUDA_MODULE_LOADING"),
        type="str",
        values=("LAZY", "EAGER", "DEFAULT"),
        default="LAZY since CUDA 12.2; torch sets LAZY where nobody sets anything",
        when="process",
        effect="exact",
        doc="When kernels are loaded: LAZY at their first call, EAGER all of a library when it is loaded.",
        hurts="EAGER takes seconds at the start and hundreds of MiB of the GPU; LAZY makes first calls slower.",
        source=_LAZY,
    ),
    Knob(
        id="env.TORCHINDUCTOR_CACHE_DIR",
        site=Env("TORCHINDUCTOR_CACHE_DIR"),
        type="str",
        default="torchinductor_USER in the folder for temporary files",
        when="process",
        effect="exact",
        doc="Folder in which torch.compile keeps graphs and what it generated of them.",
        hurts="It is code that runs: nobody else may write there. Two arms that name one folder share what is in it.",
        source=_COMPILE,
    ),
    Knob(
        id="env.TRITON_CACHE_DIR",
        site=Env("TRITON_CACHE_DIR"),
        type="str",
        default="~/.triton/cache; of torch.compile, triton below its own cache",
        when="process",
        effect="exact",
        doc="Folder in which Triton keeps the kernels that it compiled.",
        hurts="It is code that runs: nobody else may write there. Two arms that name one folder share what is in it.",
        source=_COMPILE,
    ),
    Knob(
        id="env.TORCHINDUCTOR_COMPILE_THREADS",
        site=Env("TORCHINDUCTOR_COMPILE_THREADS"),
        type="int",
        minimum=1,
        default="the processors that the process may run on, 32 at most",
        when="process",
        effect="exact",
        doc="Processes in which torch.compile compiles kernels side by side; 1 compiles in the program itself.",
        hurts="Each holds its own torch. More than there are cores take turns, and ranks of a host have their own.",
        source="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/config.py",
    ),
)
