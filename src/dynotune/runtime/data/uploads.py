"""The upload of one batch: pinned tensors as they are, pageable ones through a reused pinned buffer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from dynotune.runtime.data.batches import mapped, moved_by_itself
from dynotune.runtime.streams import Stream
from dynotune.runtime.transfer.pinned import PinnedRing, Slot, aligned

__all__ = ["UploadCounts", "uploaded"]


@dataclass(slots=True)
class UploadCounts:
    """Bytes that were uploaded and, of these, copied into pinned buffers first; host time of these copies."""

    uploaded_bytes: int = 0
    staged_bytes: int = 0
    staging_s: float = 0.0


def uploaded(batch: Any, ring: PinnedRing, side: Stream, counts: UploadCounts) -> Any:
    """`batch` on the ring's device, valid on `side`; its pageable memory may be changed at once."""
    streams = ring.streams
    staged: list[torch.Tensor] = []

    def count(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and not streams.holds(leaf):
            counts.uploaded_bytes += leaf.nbytes if leaf.layout == torch.strided else 0
            if streams.pins and _is_plain(leaf) and not leaf.is_pinned():
                staged.append(leaf)
        return leaf

    mapped(batch, count)
    if not staged:
        with streams.on(side):
            return mapped(batch, lambda leaf: _sent(leaf, streams.device))
    num_bytes = sum(aligned(leaf.nbytes) for leaf in staged)
    counts.staged_bytes += num_bytes
    with ring.slot(num_bytes, side) as slot:
        return _through(slot, batch, staged, ring, side, counts)


def _through(
    slot: Slot, batch: Any, staged: list[torch.Tensor], ring: PinnedRing, side: Stream, counts: UploadCounts
) -> Any:
    streams = ring.streams
    placed: dict[int, torch.Tensor] = {}
    offset_bytes = 0
    for leaf in staged:
        strides = _dense_strides(leaf)
        buffer = slot.view(offset_bytes, leaf.shape, leaf.dtype, strides)
        started_s = time.perf_counter()
        buffer.copy_(leaf)
        counts.staging_s += time.perf_counter() - started_s
        with streams.on(side):
            there = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=streams.device)
        streams.copy(there, buffer, side)
        placed[id(leaf)] = there
        offset_bytes += aligned(leaf.nbytes)
    with streams.on(side):
        return mapped(batch, lambda leaf: placed[id(leaf)] if id(leaf) in placed else _sent(leaf, streams.device))


def _sent(leaf: Any, device: torch.device) -> Any:
    return leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else moved_by_itself(leaf, device)


def _is_plain(leaf: torch.Tensor) -> bool:
    """Whether a copy of its values is all that `leaf` is: subclasses and graph leaves move themselves."""
    if type(leaf) is not torch.Tensor or leaf.device.type != "cpu" or leaf.layout != torch.strided:
        return False
    return leaf.numel() > 0 and not (leaf.requires_grad or leaf.is_quantized or leaf.is_conj() or leaf.is_neg())


def _dense_strides(leaf: torch.Tensor) -> tuple[int, ...]:
    """The strides that torch itself gives a copy: those of channels_last stay, gaps and overlaps go."""
    return tuple((leaf if leaf.is_contiguous() else torch.empty_like(leaf, device="meta")).stride())
