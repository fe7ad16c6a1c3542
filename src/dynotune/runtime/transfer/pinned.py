"""Reuse pinned buffers in a ring: the contents of a buffer are safe until its upload has ended."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from dynotune.runtime.errors import InputError
from dynotune.runtime.streams import Event, Stream, Streams

# Tensors that share a buffer start on multiples of this: vector loads and DMA bursts like it.
ALIGNMENT_BYTES = 128
MOST_BUFFERS = 4096


def num_bytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    return int(math.prod(shape) * dtype.itemsize)


def aligned(num_bytes: int) -> int:
    """Round `num_bytes` up to the offset at which the next tensor may start."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Slot:
    """One pinned buffer and the event that ends its last upload."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self.uploaded: Event | None = None

    def view(
        self,
        offset_bytes: int,
        shape: Sequence[int],
        dtype: torch.dtype,
        strides: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Return a dense tensor in the buffer, row-major unless strides are given."""
        flat = self.buffer[offset_bytes : offset_bytes + num_bytes_of(shape, dtype)].view(dtype)
        return flat.view(tuple(shape)) if strides is None else flat.as_strided(tuple(shape), tuple(strides))


class PinnedRing:
    """`depth` pinned buffers that are used in turn. Not thread-safe: the owner must hold a lock.

    Args:
        slot_bytes: bytes of each buffer; 0 allocates the buffer at its first use.
        grows: replace a buffer that is too small by a larger one, instead of treating the request as an
            error.
    """

    def __init__(self, streams: Streams, depth: int, slot_bytes: int, *, grows: bool = False) -> None:
        self.streams = streams
        if not 1 <= depth <= MOST_BUFFERS:
            raise InputError(f"depth is {depth}; a ring has 1 to {MOST_BUFFERS} buffers.")
        none = torch.empty(0, dtype=torch.uint8)
        self._slots = [Slot(streams.pinned(slot_bytes) if slot_bytes else none) for _ in range(depth)]
        self._grows = grows
        self._next = 0
        self.num_waits = 0
        self.wait_s = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(slot.buffer.numel() for slot in self._slots)

    @contextmanager
    def slot(self, num_bytes: int, stream: Stream) -> Iterator[Slot]:
        """Yield the next buffer, ready to be written; work enqueued on `stream` in the `with` block is its
        upload.

        Waits on the host until the buffer's last upload has ended, which limits how far the caller runs
        ahead.
        """
        slot = self._slots[self._next]
        self._wait_for(slot)
        if self._grows and slot.buffer.numel() < num_bytes:
            # A power of two is what torch takes anyway; batches that vary then seldom need a new one.
            slot.buffer = self.streams.pinned(1 << (num_bytes - 1).bit_length())
        self._next = (self._next + 1) % len(self._slots)
        try:
            yield slot
        finally:
            # Also after an error: some of the copies may be under way.
            slot.uploaded = self.streams.record(stream)

    def _wait_for(self, slot: Slot) -> None:
        if slot.uploaded is None or slot.uploaded.query():
            return
        started_s = time.perf_counter()
        slot.uploaded.synchronize()
        self.num_waits += 1
        self.wait_s += time.perf_counter() - started_s

    def drain(self) -> None:
        """Wait on the host until every upload has ended."""
        for slot in self._slots:
            self._wait_for(slot)

    def free(self) -> None:
        """Free the memory; the uploads must have ended."""
        self._slots = []
