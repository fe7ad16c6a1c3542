"""What the name of a kernel tells: the kind of work it does, and whether it uses tensor cores."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import PRODUCTS
from dynotune.trace.timeline import UNKNOWN

CLASSES: tuple[str, ...] = (
    *PRODUCTS,
    "layout",
    "cast",
    "copy",
    "optimizer",
    "normalisation",
    "softmax",
    "reduction",
    "elementwise",
    "index",
    "sort",
    "pooling",
    "random",
    "inductor",
    "communication",
    "other",
)
"""What a kernel does. Defined one by one in docs/reference/trace.md."""

# What prepares or finishes the product of another kernel: whether it uses tensor cores is not the question.
_BESIDE_PRODUCT = re.compile(
    r"splitk_?reduce|epilogue::impl|scal_kernel|dot_do_o|convert_d[qkv]|combine|prepare_|compute\w*offsets"
)
# Instructions of tensor cores by shape (s1688, h884, d884, tensor16x8x16) or name (hmma, imma, wgmma), and families
# that exist for them alone: nvjet is cuBLAS's for Hopper and later, xmma with warpgroups too; FlashAttention and
# cuDNN's attention need them; of the memory-efficient kernels those for half types from sm70, for float32 from sm80.
# On ROCm the matrix cores: _MI16x16x16 of hipBLASLt, gtcx and xdlops of MIOpen.
_TENSOR_CORES = re.compile(
    r"tensorop|tensor\d+x\d+x|wmma|[hidq]mma|gmma|umma|warpgroup|nvjet"
    r"|[shdczi](884|1684|1688|8816|16816|16832|161616)(?!\d)|deep_gemm|marlin|machete|gtcx|xdlops|_mi\d+x\d+|mfma"
    r"|flash(?!infer)|cudnn\w*_sdpa|fmha_cutlass[fb]_b?f16\w*_sm([789]|1\d\d)|fmha_cutlass[fb]_f32\w*_sm([89]0|1\d\d)"
)
_NO_TENSOR_CORES = re.compile(
    r"simt|ffma|[sdczh]gemm|(?<!cublas)gemv|gemmsn|gemmk1|igemm|dot_kernel|[sh]cudnn|convolve|winograd|fft[123]d_|depthwise"
    r"|wgrad_alg|dgrad_engine|grouped_direct|fmha_cutlass"
)

_FP32_MATMUL = re.compile(r"sgemm|gemm_f32f32|f32f32_f32f32|ffma", re.IGNORECASE)
# cuBLAS's own names tell the types of inputs, sums and output: h is half, t bfloat16, q eight bits, s float32.
_HALF = re.compile(
    r"half|bfloat|bf16|f16|fp16|hgemm|h884|h1688|h16816|nvjet_(sm\d+_)?(qq)?[htq][a-z]{2}_", re.IGNORECASE
)
# CUTLASS names the elements that a kernel loads at once: 8 of half types and 4 of TF32 where sizes and addresses allow;
# with 1 or 2 tensor cores wait for memory.
_MISALIGNED = re.compile(r"align[12](?!\d)")
# A product with a vector, a dot product, a depthwise convolution and a Fourier transform are no work for tensor cores.
_NO_MATRICES = re.compile(r"gemv|dot_kernel|gemmk1|depthwise|fft|dgemm|im2col|col2im", re.IGNORECASE)

_RULES = tomllib.loads(files(__package__).joinpath("kernel_names.toml").read_text(encoding="utf-8"))["rules"]
_COMPILED = tuple((CLASSES.index(name), re.compile(pattern)) for name, pattern in _RULES)
_OTHER = CLASSES.index("other")
_BRACKETS = re.compile(r"[()]")
# What templates of CUTLASS reach, and more. Some patterns take time in the square of the length.
LONGEST_NAME = 8192


def classify(names: list[str]) -> NDArray[np.int8]:
    """Class of each kernel name, as index into `CLASSES`; "other" where no rule knows the name."""
    return np.fromiter((class_of(name) for name in names), dtype=np.int8, count=len(names))


def uses_tensor_cores(names: list[str]) -> NDArray[np.int8]:
    """Whether each name tells of tensor cores: 1 yes, 0 no, UNKNOWN where it does not tell."""
    return np.fromiter((tensor_cores_of(name) for name in names), dtype=np.int8, count=len(names))


def without_arguments(name: str) -> str:
    """The name up to its list of arguments, which repeats what the arguments of the template said."""
    if not name.endswith(")"):
        return name
    depth = 0
    for bracket in reversed(list(_BRACKETS.finditer(name))):
        depth += 1 if bracket.group() == ")" else -1
        if depth == 0:
            return name[: bracket.start()] or name
    return name


# Names come again for each rank and each fact. The trace holds them all, so that a bound would save nothing; and once
# a trace has more names than fit, each of them would be judged anew every time.
@cache
def class_of(name: str) -> int:
    name = without_arguments(name.lower()[:LONGEST_NAME])
    return next((index for index, pattern in _COMPILED if pattern.search(name)), _OTHER)


@cache
def tensor_cores_of(name: str) -> int:
    """Whether the kernel's name tells of tensor cores: 1 yes, 0 no, UNKNOWN where it does not tell."""
    name = without_arguments(name.lower()[:LONGEST_NAME])
    if _BESIDE_PRODUCT.search(name):
        return UNKNOWN
    if _TENSOR_CORES.search(name):
        return 1
    return 0 if _NO_TENSOR_CORES.search(name) else UNKNOWN


def is_fp32_matmul(name: str) -> bool:
    """Whether it says that it multiplies matrices of float32 without tensor cores."""
    return bool(_FP32_MATMUL.search(name))


def is_of_half(name: str) -> bool:
    """Whether its name tells of half types."""
    return bool(_HALF.search(name))


def is_slow_product(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices without tensor cores, or loads them by one or two elements."""
    if _NO_MATRICES.search(name):
        return False
    return tensor_cores_of(name) == 0 or is_misaligned(name)


def is_misaligned(name: str) -> bool:
    """Whether tensor cores wait for it: without them, kernels load single elements of whatever sizes."""
    return tensor_cores_of(name) == 1 and bool(_MISALIGNED.search(name))
