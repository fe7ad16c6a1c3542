"""What the name of a kernel tells: the kind of work it does, and whether it uses tensor cores."""

from __future__ import annotations

import re
from functools import cache

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

# A copy between types, as Copy.cu and CUDALoops.cuh of torch instantiate it: contiguous ones say LoadWithCast, strided
# ones are `elementwise_kernel<128, 4, gpu_kernel_impl<…>>` (of one type: gpu_kernel_impl_nocast). Before torch 2.0,
# whose copies say `direct_copy_kernel_cuda(…)::{lambda()#2}`, gpu_kernel_impl also stood for strided copies of one
# type: <128, 2> for elements of 4 bytes and more, <128, 4> for smaller ones. Nsight Systems writes the same with
# `(int)128`, `<unnamed>` and `[lambda() (instance 2)]`.
_STRIDED = r"gpu_kernel_impl<at::native::(\(anonymous namespace\)::|<unnamed>::)?direct_copy_kernel_cuda"
_SECOND_LAMBDA = r"\([^)]*\)::(\{lambda\(\)#2\}|\[lambda\(\) \(instance 2\)\])"
_SMALL = r"lambda\((bool|signed char|unsigned char|short|unsigned short|c10::half|c10::bfloat16)\)"

# The first rule whose pattern is found decides. Patterns see names in lower case without the list of arguments.
# Where the names come from stands beside each rule: the recorded traces or torch 2.11 on an H200 (these names are in
# tests/trace/kernel_names.json), torch's own sources (aten), or published profiles of the library named.
_RULES: tuple[tuple[str, str], ...] = (
    # TorchInductor: triton_poi_, _red_, _per_, _for_ fuse what they can; _tem_ is a template of max-autotune. Torch
    # 2.0 had triton__0d1d2d (traces).
    ("attention-other", r"^triton_tem_.*flex_(attention|decod)"),
    ("matmul", r"^triton_(tem_.*mm|mm|bmm|addmm)|^cuda_fused"),
    ("convolution", r"^triton_(tem_.*)?conv"),
    ("inductor", r"^triton_"),
    # ncclKernel_, ncclDevKernel_ (traces), RCCL, MSCCL, NVSHMEM, symmetric memory of torch, DeepEP, Transformer Engine.
    ("communication", r"nccl|rccl|msccl|nvshmem|symm_mem|multimem|deep_ep|userbuffers"),
    # Custom collectives of vLLM, SGLang, TensorRT-LLM, FlashInfer and torch.
    ("communication", r"cross_device_reduce|quick_?reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    # cudnn_generated_fort_native_sdpa_sm90_flash_fprop_…, and what stands around its backward (H200).
    ("attention-cudnn", r"cudnn\w*_sdpa|cudnn.*(flash_|mha_)|cudnn::fusion::(compute_dot_do_o|convert_dq)"),
    ("attention-memory-efficient", r"fmha_cutlass[fb]|attention_kernel_(backward_)?batched"),  # aten, xFormers
    # FlashAttention 2 (pytorch_flash::flash_fwd_kernel: traces), 3 (flash::FlashAttnFwdSm90), 4, FlashMLA.
    ("attention-flash", r"flash_?(fwd|bwd|attn|attention|decod|mla)|(?<![a-z])flash::"),
    # CK, AOTriton, Triton's own.
    ("attention-flash", r"fmha_?(fwd|bwd)|attn_(fwd|bwd)|^bwd_kernel_d[kqv]|^bwd_preprocess"),
    # FlashInfer, vLLM, TensorRT-LLM, Transformer Engine.
    ("attention-other", r"attention|attn|fmha|(?<![a-z])m?mha_|(batch|single)(prefill|decode)|mergestate"),
    ("index", r"split_embedding|embedding_?bag|embedding_(backward|forward|fwd|bwd)"),  # FBGEMM (traces), aten
    ("recurrent", r"lstm|(?<![a-z])gru_|rnn|selective_scan|chunk_(scan|state)"),  # cuDNN, aten; Mamba
    ("cast", r"multi_tensor_apply.*\bcopy<([\w:]+), (?!\1>)"),  # aten: _foreach_copy_ of other types (H200)
    ("copy", r"multi_tensor_apply.*(copyfunctor|\bcopy<)"),  # aten: _foreach_copy_ (H200)
    # traces, apex.
    ("optimizer", r"multi_tensor_apply|adam|fused_?sgd|(?<![a-z])(lamb|lars|lion|adagrad|sgd)(?![a-z])"),
    (
        "optimizer",
        r"koptimizer|kprecondition|amp_update_scale|non_finite_check|lpnorm_cleanup",
    ),  # bitsandbytes; aten (H200)
    # cuDNN (traces), MIOpen.
    ("layout", r"(nchw|nhwc|ncdhw|ndhwc)(to|addpadding)|batched_transpose_|transpose_(nchw|cnhw)"),
    # aten (traces), cuDNN, Triton kernels of Liger, vLLM and others.
    ("normalisation", r"(batch|layer|rms|group|instance|weight|l2)_?norm|normalization"),
    ("normalisation", r"(?<![a-z])(bn|ln|rms|gn)_(fw|bw)|gammabeta|rowwisemoments|welford(?!ops)"),
    ("normalisation", r"fusedparams|computeinternalgradients|cucomputegradinput"),  # aten: group norm; apex
    ("convolution", r"conv(?!ert)|[fbdw](prop|grad)(?![a-z])|implicit_gemm|winograd|depthwise"),  # traces, cuDNN, aten
    ("convolution", r"scudnn|hcudnn|\dcudnn|_cudnn|cudnn.*gemm|cudnn::(cnn|winograd)"),
    # cuDNN (traces): by FFT, tables.
    ("convolution", r"fft[123]d_|gcgemm|flip_filter|precompute_indices|compute\w*offsets"),
    # aten, cuDNN, MIOpen.
    ("convolution", r"im2col|col2im|vol2col|col2vol|first_layer|direct_group|igemm_(fwd|bwd|wrw)"),
    ("softmax", r"soft_?max|cross_?entropy|xentropy"),  # aten (traces), apex, Liger
    ("matmul", r"(?<!fb)gemm|gemv|nvjet|cutlass|xmma|cublas|splitk|matmul|trsm|syrk"),  # cuBLAS (traces), MAGMA
    ("matmul", r"epilogue::impl|scal_kernel|dot_kernel"),  # cuBLAS (traces): beside a product
    ("matmul", r"cijk|marlin|machete|wvsplitk|(?<![a-z])b?mm_|fused_moe|moe_wna"),  # hipBLASLt, vLLM
    # aten: of float8 in, the same out, unless it is loaded with a cast (H200).
    ("copy", r"^(?!.*(loadwithcast|gpu_kernel_impl<)).*float8_copy_kernel.*lambda\(c10::float8"),
    ("cast", r"(float16|float8|float32)_copy_kernel|direct_copy_kernel.*loadwithcast"),  # aten (traces)
    ("copy", _STRIDED + _SECOND_LAMBDA + r".*" + _SMALL),  # aten
    ("cast", r"elementwise_kernel<(\(int\))?128, (\(int\))?4, at::native::" + _STRIDED),  # aten (H200)
    # FBGEMM (traces), Transformer Engine.
    ("cast", r"quantize|quant_|dequant|fp8|(?<![a-z])cast_|_cast_|converttensor"),
    ("random", r"distribution_|philox|curand|dropout|bernoulli|multinomial|random|randperm"),  # aten (traces)
    ("elementwise", r"elementwise_kernel_with_index|rotary|(?<![a-z])rope(?![a-z])"),  # aten: arange (traces); vLLM
    ("sort", r"(?<!search)sort|radix|devicescan|scan_|_scan|deviceselect|devicecompact"),  # cub (traces), aten
    ("sort", r"reducebykey|unique|top_?k|gathermedian"),
    ("pooling", r"pool(?!ed)|upsample|interpolate|grid_sampl|roi_align"),  # aten (traces), torchvision
    ("index", r"(?<!arg)index|indices|embedding|gather|scatter|masked_select|nonzero|searchsorted"),  # aten (traces)
    ("index", r"permute|bucketize|offsets_range|to_dense|jagged|compute_cuda_kernel"),  # FBGEMM, aten (traces)
    (
        "index",
        r"krn_partial|partial_segments|compute_grad_weight|(?<![a-z])(take|put)_",
    ),  # aten: gradient of an embedding
    # aten (traces), FSDP, vLLM.
    ("copy", r"copy|catarray|chunk_cat|split_with_sizes|memcpy|transpose|reshape_and_cache"),
    ("copy", r"roll_cuda|flip_kernel"),  # aten
    ("reduction", r"reduce|argm(ax|in)|nll_?loss|ctc_loss|logsumexp"),  # aten (traces)
    ("elementwise", r"elementwise|pointwise|functor|masked_scale|tri[ul]_"),  # aten (traces)
    ("elementwise", r"activation|act_and_mul|[sg]elu|silu|relu|swiglu|fill|bias"),
    ("elementwise", r"op_?tensor|generic_tensor|scale\w*tensor|(?<![a-z])(add|mul|axpy)_"),  # cuDNN, cuBLAS
)

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
