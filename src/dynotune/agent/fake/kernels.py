"""Add what torch's shape rules do not know about CUDA kernels: the choice of attention, and cuBLAS's workspaces."""

from __future__ import annotations

import re

from ..core.annotations import Any
from .recorder import on_device

MULTIPLIES = {"aten::" + name for name in ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "_addmm_activation")}
"""Operators that cuBLAS carries out."""
CONVOLVES = {"aten::" + name for name in ("convolution", "cudnn_batch_norm", "native_batch_norm")}
"""Operators that cuDNN carries out."""


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


def attention(torch: Any, original: Any) -> Any:
    """Run `scaled_dot_product_attention` by the kernel that torch chooses on CUDA; without CUDA it takes a slow one."""
    ops = torch.ops.aten

    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
        *, scale: Any = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
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
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -1e9)
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
