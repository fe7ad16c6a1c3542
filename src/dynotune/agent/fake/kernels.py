"""Add what torch's shape rules do not know about CUDA kernels: the choice of attention, workspaces and
buffers."""

from __future__ import annotations

import math
import re

from .recorder import on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MULTIPLIES = {
    "aten::" + name for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "_addmm_activation")
}
"""Operators that cuBLAS carries out."""
CONVOLVES = {"aten::" + name for name in ("convolution", "cudnn_batch_norm", "native_batch_norm")}
"""Operators that cuDNN carries out."""
_FIELDS = {
    "amax amin max min any all": 0,
    "sum nansum mean prod norm linalg_vector_norm": 1,
    "argmax argmin": 2,
}
_FIELDS["var std var_mean std_mean"] = (
    4  # numbers in a partial result of a reduction; 0: it is like an element
)
_CONVERT = {"aten::" + name for name in ("sum", "nansum", "mean", "prod")}
_REDUCES = {f"aten::{name}": fields for names, fields in _FIELDS.items() for name in names.split()}


def workspace_bytes(setting: str, capability: tuple[int, int], version: tuple[int, int]) -> int:
    """Return the workspace in bytes that cuBLAS takes for each handle.

    Args:
        setting: `CUBLAS_WORKSPACE_CONFIG`; "" if it is not set.
        version: torch's version.

    Source: torch's `parseChosenWorkspaceSize`; 32 MiB as read from the wheels of 2.11 to 2.13.
    """
    if sizes := re.findall(r":(\d+):(\d+)", setting):
        return sum(int(kib) * int(number) for kib, number in sizes) << 10
    is_large = capability[0] == 9 or (capability[0] >= 10 and version >= (2, 12))
    return 32 << 20 if is_large else (4096 * 2 + 16 * 8) << 10


def buffers(func: Any, args: Any, kwargs: Any, made: list[Any], threads: int) -> tuple[int, ...]:
    """Return the bytes of the buffers that an operator with the results `made` takes while it runs, in their
    order."""
    fields = _REDUCES.get(func._schema.name)
    if fields is None or not made or not args[0].numel() or args[0].is_complex():
        return ()
    of, result, rank = args[0], made[0].dtype, max(1, args[0].dim())
    number = max(4, result.itemsize) if result.is_floating_point else result.itemsize
    partial = fields * number or (of.element_size() if len(made) == 1 else 16)  # 16: a value and its index
    dim = {**dict(zip((one.name for one in func._schema.arguments), args)), **kwargs}.get("dim")
    dims = {at % rank for at in ([dim] if isinstance(dim, int) else dim or range(rank))}
    is_widened = (
        of.is_floating_point()
        and of.element_size() == 2
        and result.is_floating_point
        and result.itemsize == 4
    )
    # The kernel itself widens a half to float32; from other types the input is first copied into the result's
    # type.
    is_copied = func._schema.name in _CONVERT and of.dtype != result and not is_widened
    copy, item = ((of.numel() * result.itemsize,), result.itemsize) if is_copied else ((), of.element_size())
    return copy + reduction_bytes(dims, (of.shape, of.stride(), of.storage_offset(), item), partial, threads)


def reduction_bytes(dims: set[int], layout: tuple[Any, ...], partial: int, threads: int) -> tuple[int, ...]:
    """Return the bytes of a reduction's two buffers, results and semaphores, if blocks of threads share an
    output.

    `layout` is the shape, strides, offset and bytes of an element of a tensor that is not empty, `partial`
    the bytes of a partial result, `threads` how many the GPU runs at a time. Source: torch's
    `ATen/native/cuda/Reduce.cuh`. Blocks that share an output have as many threads as a block of a reduction
    can have.
    """
    axes: list[list[int]] = []  # size, stride, whether it is reduced; these come first
    shape, strides, offset, item = layout

    def rank(at: int) -> tuple[int, ...]:
        # A repeated dimension (stride 0) stays behind the reduced dimensions that follow it.
        later = (strides[other] for other in dims if other > at)
        return (0, strides[at] or max(later, default=0), -at) if at in dims else (1, -at)

    for at in sorted(range(len(shape)), key=rank):
        if axes and axes[-1][2] == (at in dims) and axes[-1][0] * axes[-1][1] == strides[at]:
            axes[-1][0] *= shape[at]
        elif shape[at] != 1:
            axes.append([shape[at], strides[at], at in dims])
    while (
        sum((size - 1) * stride for size, stride, _ in axes) * item >= 2**31 - 1
    ):  # a kernel has 32-bit offsets
        longest = max(axes, key=lambda axis: (axis[0] - 1) * axis[1])
        longest[0] -= longest[0] // 2
    inputs, outputs = (math.prod(axis[0] for axis in axes if axis[2] == asked) for asked in (True, False))
    kept, row, vector = next((axis for axis in axes if not axis[2]), None), 1, 1
    if (
        inputs > 1 and kept and axes[0][1] >= kept[1]
    ):  # a row of threads has different outputs, else the same output
        if kept[1] == 1:
            vector = math.gcd(4, offset, kept[0], *(axis[1] for axis in axes if axis is not kept))
        row = vector * min(32, 1 << (outputs // vector).bit_length() - 1)
    each, blocks, wanted = -(-inputs * row // 512), -(-outputs // row), threads * vector // 512
    shares = max(min(-(-wanted // blocks), -(-each // 16)), -(-each // 256))
    return (
        (partial * outputs * shares * row, 4 * blocks)
        if each >= 256 and blocks <= wanted and shares > 1
        else ()
    )


def attention(torch: Any, original: Any) -> Any:
    """Run `scaled_dot_product_attention` by the kernel that torch chooses on CUDA; without CUDA it takes a
    slow one."""
    ops = torch.ops.aten

    def scaled_dot_product_attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: Any = None,
        enable_gqa: bool = False,
    ) -> Any:
        usual = {"attn_mask": attn_mask, "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        if not on_device(query) or query.dim() != 4:
            return original(query, key, value, **usual, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            dtype = torch.get_autocast_dtype("cuda")
            query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
            if attn_mask is not None and attn_mask.dtype != torch.bool:
                attn_mask = attn_mask.to(dtype)
        usual["attn_mask"] = attn_mask
        backends, head = torch.backends.cuda, query.shape[-1]
        is_half = query.dtype in (torch.float16, torch.bfloat16)
        if is_half and attn_mask is None and backends.flash_sdp_enabled() and head in range(8, 257, 8):
            flash = ops._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        if not backends.mem_efficient_sdp_enabled() or not (is_half or query.dtype == torch.float32):
            return original(query, key, value, **usual, enable_gqa=enable_gqa)
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                    attn_mask.logical_not(), -1e9
                )
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[-2])
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        return ops._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]

    return scaled_dot_product_attention


def dropout(torch: Any, original: Any) -> Any:
    """Run `dropout` like CUDA's kernel, which keeps a mask of one byte per element."""

    def dropout(input: Any, p: float, train: bool) -> Any:
        if train and 0 < p < 1 and on_device(input):
            return torch.native_dropout(input, p, True)[0]
        return original(input, p, train)

    return dropout
