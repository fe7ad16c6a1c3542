"""Post-process a YOLO model's output with three Triton kernels in place of some hundred small ones.

The arithmetic matches `nms` operation by operation (no fused multiply-add, divisions rounded by IEEE rules),
so that both decide alike on boxes that overlap by exactly the threshold. Suppression always runs to its end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_TOP_K = 1024  # what overlaps among more candidates does not fit into one multiprocessor's registers
MAX_DET = 4096  # places that one program fills with zeros, all at once
WORD = tl.constexpr(32)


@triton.jit
def _rows_kernel(raw, order, scores, classes, rows, num_anchors, num_channels, top_k, BLOCK: tl.constexpr):
    """Make candidates from the model's output: one program for `BLOCK` anchors of an image."""
    image, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = k < top_k
    anchor = tl.load(order + image * num_anchors + k, mask=there, other=0)
    box = raw + image * num_channels * num_anchors + anchor
    x, y = tl.load(box), tl.load(box + num_anchors)
    half_width, half_height = tl.load(box + 2 * num_anchors) * 0.5, tl.load(box + 3 * num_anchors) * 0.5
    out = rows + (image * top_k + k) * 6
    tl.store(out, x - half_width, mask=there)
    tl.store(out + 1, y - half_height, mask=there)
    tl.store(out + 2, x + half_width, mask=there)
    tl.store(out + 3, y + half_height, mask=there)
    tl.store(out + 4, tl.load(scores + image * num_anchors + k, mask=there), mask=there)
    tl.store(out + 5, tl.load(classes + image * num_anchors + anchor).to(tl.float32), mask=there)


@triton.jit
def _beats_kernel(rows, beats, iou, top_k, PADDED: tl.constexpr, BLOCK: tl.constexpr, BY_CLASS: tl.constexpr):
    """Compute which of 32 boxes suppress which of `BLOCK`: a word per suppressed box, a bit per suppressing
    box."""
    image, word = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.program_id(2) * BLOCK
    first, second = word * WORD + tl.arange(0, WORD), start + tl.arange(0, BLOCK)
    out = beats + (image * (PADDED // WORD) + word) * PADDED + second
    rows += image * top_k * 6
    # Candidates come first, and are suppressed by better ones alone: elsewhere nothing has to be looked at.
    best = tl.load(rows + start * 6 + 4, mask=start < top_k, other=0.0)
    if (best > 0) & (word * WORD < start + BLOCK):
        a, in_a = rows + first[None, :] * 6, first[None, :] < top_k
        b, in_b = rows + second[:, None] * 6, second[:, None] < top_k
        a_left, b_left = tl.load(a, mask=in_a, other=0.0), tl.load(b, mask=in_b, other=0.0)
        a_top, b_top = tl.load(a + 1, mask=in_a, other=0.0), tl.load(b + 1, mask=in_b, other=0.0)
        a_right, b_right = tl.load(a + 2, mask=in_a, other=0.0), tl.load(b + 2, mask=in_b, other=0.0)
        a_bottom, b_bottom = tl.load(a + 3, mask=in_a, other=0.0), tl.load(b + 3, mask=in_b, other=0.0)
        width = tl.maximum(tl.minimum(a_right, b_right) - tl.maximum(a_left, b_left), 0.0)
        height = tl.maximum(tl.minimum(a_bottom, b_bottom) - tl.maximum(a_top, b_top), 0.0)
        inter = width * height
        union = ((a_right - a_left) * (a_bottom - a_top) + (b_right - b_left) * (b_bottom - b_top)) - inter
        overlap = (tl.div_rn(inter, union) > iou) & (first[None, :] < second[:, None])
        if BY_CLASS:
            a_class, b_class = tl.load(a + 5, mask=in_a, other=0.0), tl.load(b + 5, mask=in_b, other=0.0)
            overlap = overlap & (a_class == b_class)
        bits = tl.arange(0, WORD)[None, :]
        tl.store(out, tl.sum(overlap.to(tl.int32) << bits, axis=1))
    else:
        tl.store(out, tl.zeros([BLOCK], tl.int32))


@triton.jit
def _pack_kernel(
    rows, beats, places, num_candidates, finite, packed, top_k, max_det,
    PADDED: tl.constexpr, OUT: tl.constexpr, SUPPRESS: tl.constexpr,
):  # fmt: skip
    """Suppress one image's boxes and pack them as `PostProcess` returns them; one program per image."""
    image, k = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there = k < top_k
    row = rows + (image * top_k + k) * 6
    score = tl.load(row + 4, mask=there, other=0.0)
    valid = (score > 0).to(tl.int32)
    kept = valid
    if SUPPRESS:
        # Substitution, as in `suppress`: the one solution stands when it changes nothing any more.
        bits = tl.arange(0, WORD)[None, :]
        at = (
            beats
            + image * (PADDED // WORD) * PADDED
            + tl.arange(0, PADDED // WORD)[:, None] * PADDED
            + k[None, :]
        )
        num_changed = 1
        while num_changed > 0:
            words = tl.sum(tl.reshape(kept, [PADDED // WORD, WORD]) << bits, axis=1)
            beaten = tl.max(((tl.load(at) & words[:, None]) != 0).to(tl.int32), axis=0)
            after = valid * (1 - beaten)
            num_changed = tl.sum((after != kept).to(tl.int32), axis=0)
            kept = after
    place = tl.cumsum(kept, axis=0) - 1
    num_kept = tl.minimum(tl.sum(kept, axis=0), max_det)
    left, top = tl.load(places + image * 5), tl.load(places + image * 5 + 1)
    gain = tl.load(places + image * 5 + 2)
    width, height = tl.load(places + image * 5 + 3), tl.load(places + image * 5 + 4)
    packed += image * (max_det + 1) * 6
    out, stays = packed + place * 6, (kept > 0) & (place < max_det)
    x, y = tl.load(row, mask=there, other=0.0), tl.load(row + 1, mask=there, other=0.0)
    right, down = tl.load(row + 2, mask=there, other=0.0), tl.load(row + 3, mask=there, other=0.0)
    tl.store(out, tl.minimum(tl.maximum(tl.div_rn(x - left, gain), 0.0), width), mask=stays)
    tl.store(out + 1, tl.minimum(tl.maximum(tl.div_rn(y - top, gain), 0.0), height), mask=stays)
    tl.store(out + 2, tl.minimum(tl.maximum(tl.div_rn(right - left, gain), 0.0), width), mask=stays)
    tl.store(out + 3, tl.minimum(tl.maximum(tl.div_rn(down - top, gain), 0.0), height), mask=stays)
    tl.store(out + 4, score, mask=stays)
    tl.store(out + 5, tl.load(row + 5, mask=there, other=0.0), mask=stays)
    rest = tl.arange(0, OUT)
    zeros = tl.zeros([OUT], tl.float32)
    tl.store(packed + rest, zeros, mask=(rest >= num_kept * 6) & (rest < max_det * 6))
    counts = packed + max_det * 6
    tl.store(counts, num_kept.to(tl.float32))
    tl.store(counts + 1, tl.load(num_candidates + image).to(tl.float32))
    tl.store(counts + 2, 1.0)
    tl.store(counts + 3, tl.load(finite + image).to(tl.float32))
    tl.store(counts + 4, 0.0)
    tl.store(counts + 5, 0.0)


def works(device: torch.device) -> bool:
    """Return whether the kernels can be built and run on this GPU, and give the correct result for three
    boxes."""
    rows = torch.tensor(
        [[[0, 0, 10, 10, 0.9, 1], [1, 1, 11, 11, 0.8, 1], [1, 1, 11, 11, 0.7, 0]]], device=device
    )
    one = torch.ones(1, dtype=torch.int64, device=device)
    places = torch.tensor([[0.0, 0, 1, 99, 99]], device=device)
    packed = suppressed(rows, places, 3 * one, one > 0, iou=0.5, by_class=True, max_det=3)
    wanted = torch.cat([rows[:, ::2], torch.zeros(1, 1, 6, device=device)], dim=1)
    return torch.equal(packed[:, :3], wanted) and packed[0, 3].tolist() == [2, 3, 1, 1, 0, 0]


def best_rows(raw: Tensor, order: Tensor, scores: Tensor, classes: Tensor, top_k: int) -> Tensor:
    """Return the `top_k` best candidates as `[B, top_k, 6]`, as `PostProcess` does.

    Args:
        raw: float32 `[B, 4 + num_classes, N]`, contiguous.
        order: int64 `[B, N]`: indices of anchors, best first.
        scores: float32 `[B, N]`, in that order.
        classes: int64 `[B, N]`, in the order of the output.
    """
    batch, num_channels, num_anchors = raw.shape
    rows = raw.new_empty(batch, top_k, 6)
    grid = (batch, triton.cdiv(top_k, 128))
    # Triton launches on the current device, whatever device its arguments are on.
    with torch.cuda.device_of(raw):
        _rows_kernel[grid](
            raw, order, scores, classes, rows, num_anchors, num_channels, top_k, BLOCK=128, num_warps=4
        )
    return rows


def suppressed(
    rows: Tensor,
    places: Tensor,
    num_candidates: Tensor,
    finite: Tensor,
    *,
    iou: float | None,
    by_class: bool,
    max_det: int,
) -> Tensor:
    """Return the settled `packed` of `PostProcess` for its candidates.

    Args:
        rows: float32 `[B, K, 6]`, contiguous, K at most `MAX_TOP_K`.
        places: float32 `[B, 5]`.
        num_candidates: `[B]`. finite: `[B]`, bool.
        iou: None suppresses nothing.
        by_class: let only boxes of the same class suppress each other.
        max_det: at most `MAX_DET`.
    """
    batch, top_k, _ = rows.shape
    padded = max(32, triton.next_power_of_2(top_k))
    packed = rows.new_empty(batch, max_det + 1, 6)
    beats = rows.new_empty(batch, padded // 32, padded, dtype=torch.int32)
    with torch.cuda.device_of(rows):
        if iou is not None:
            block = min(64, padded)
            _beats_kernel[batch, padded // 32, padded // block](
                rows, beats, iou, top_k, PADDED=padded, BLOCK=block, BY_CLASS=by_class, num_warps=4,
                enable_fp_fusion=False,
            )  # fmt: skip
        _pack_kernel[batch,](
            rows,
            beats,
            places,
            num_candidates,
            finite,
            packed,
            top_k,
            max_det,
            PADDED=padded,
            OUT=triton.next_power_of_2(max_det * 6),
            SUPPRESS=iou is not None,
            num_warps=max(1, min(16, padded // 64)),
            enable_fp_fusion=False,
        )
    return packed
