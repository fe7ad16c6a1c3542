"""Resize for the letterbox in one Triton kernel: torch's operations write each intermediate result and read
it again.

The arithmetic matches `letterbox` operation by operation, so that both make the same picture to the last bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _level(at_0, at_1, at_2, at_3, w_0, w_1, w_2, w_3):
    a, b = tl.load(at_0).to(tl.float32) * w_0, tl.load(at_1).to(tl.float32) * w_1
    c, d = tl.load(at_2).to(tl.float32) * w_2, tl.load(at_3).to(tl.float32) * w_3
    return tl.floor((((a + b) + c) + d) + 0.5) * (1 / 255)


@triton.jit
def _picture_kernel(
    frames,
    pixels,
    weights,
    out,
    num_pixels,
    frame_bytes,
    FIRST: tl.constexpr,
    THIRD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute `BLOCK` pixels of a picture per program; `FIRST` is the frame's channel for the picture's
    first."""
    image, pixel = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = pixel < num_pixels
    pixels, weights, frame = pixels + pixel, weights + pixel, frames + image * frame_bytes
    at_0 = frame + tl.load(pixels, mask=there, other=0).to(tl.int64) * 3
    at_1 = frame + tl.load(pixels + num_pixels, mask=there, other=0).to(tl.int64) * 3
    at_2 = frame + tl.load(pixels + 2 * num_pixels, mask=there, other=0).to(tl.int64) * 3
    at_3 = frame + tl.load(pixels + 3 * num_pixels, mask=there, other=0).to(tl.int64) * 3
    w_0 = tl.load(weights, mask=there, other=0.0)
    w_1 = tl.load(weights + num_pixels, mask=there, other=0.0)
    w_2 = tl.load(weights + 2 * num_pixels, mask=there, other=0.0)
    w_3 = tl.load(weights + 3 * num_pixels, mask=there, other=0.0)
    out += (image * num_pixels + pixel) * 3
    first = _level(at_0 + FIRST, at_1 + FIRST, at_2 + FIRST, at_3 + FIRST, w_0, w_1, w_2, w_3)
    second = _level(at_0 + 1, at_1 + 1, at_2 + 1, at_3 + 1, w_0, w_1, w_2, w_3)
    third = _level(at_0 + THIRD, at_1 + THIRD, at_2 + THIRD, at_3 + THIRD, w_0, w_1, w_2, w_3)
    tl.store(out, first, mask=there)
    tl.store(out + 1, second, mask=there)
    tl.store(out + 2, third, mask=there)


def works(device: torch.device) -> bool:
    """Return whether the kernel can be built and run on this GPU, and resizes a small frame correctly."""
    frames = torch.arange(12, dtype=torch.uint8, device=device).view(1, 2, 2, 3) * 20
    pixels = torch.tensor([0, 1, 1, 1, 2, 3, 3, 3], dtype=torch.int32, device=device)
    weights = torch.tensor([0.25, 0.5] * 2 + [0.25, 0.0] * 2, device=device)
    found = picture(frames, pixels, weights, swap_channels=True)
    wanted = torch.tensor([[[130, 110, 90], [100, 80, 60]]], device=device)
    return torch.equal((found * 255).round(), wanted.float())


def picture(frames: Tensor, pixels: Tensor, weights: Tensor, *, swap_channels: bool) -> Tensor:
    """Resize frames.

    Args:
        frames: uint8 `[B, ..., 3]`, contiguous.
        pixels: int32, the four source pixels of each picture pixel: all first ones, then all second ones.
        swap_channels: reverse the order of the channels.

    Returns:
        float32 `[B, num_pixels, 3]`, 0 to 1.
    """
    batch, num_pixels = frames.shape[0], pixels.numel() // 4
    out = torch.empty(batch, num_pixels, 3, device=frames.device)
    # Triton launches on the current device, whatever device its arguments are on.
    with torch.cuda.device_of(frames):
        _picture_kernel[triton.cdiv(num_pixels, BLOCK), batch](
            frames,
            pixels,
            weights,
            out,
            num_pixels,
            frames.numel() // batch,
            FIRST=2 if swap_channels else 0,
            THIRD=0 if swap_channels else 2,
            BLOCK=BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out
