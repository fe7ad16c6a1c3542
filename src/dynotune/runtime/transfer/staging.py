"""Upload host arrays through reused pinned memory, on a separate stream."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynotune.runtime import streams
from dynotune.runtime.errors import InputError, TooLargeError
from dynotune.runtime.lifetime import Closing, Lifetime
from dynotune.runtime.transfer.host_arrays import HostArray, host_array
from dynotune.runtime.transfer.pinned import PinnedRing, num_bytes_of
from dynotune.runtime.transfer.pool import BufferPool, Lease

__all__ = ["Stager", "StagerStats"]


@dataclass(frozen=True, slots=True)
class StagerStats:
    """Totals of a Stager.

    `num_waits` calls of `put` found all buffers in use and waited for an upload, for `wait_s` seconds in
    total.
    """

    num_puts: int
    num_bytes: int
    num_waits: int
    wait_s: float
    depth: int
    pinned_bytes: int


class Stager(Closing):
    """Uploads host arrays through a ring of pinned buffers, in order, on a separate stream.

    The pinned memory is allocated once and reused; a buffer is written again only when its upload has ended.
    If all buffers are in use, `put` waits. Arrays keep their shape and dtype: an HWC uint8 frame arrives as
    it is. On the CPU a put is a copy. Thread-safe; puts of several threads take turns.

    Args:
        shape_or_num_bytes: size of the largest put, as a shape (with `dtype`) or in bytes; smaller puts may
            have any shape.
        dtype: dtype of the puts; None accepts any.
        device: device to upload to.
        depth: number of pinned buffers, and so of simultaneous uploads.

    Raises:
        InputError: if the sizes do not make sense, or no device is named.
        DeviceError: if the device is not usable here.
    """

    def __init__(
        self,
        shape_or_num_bytes: int | Sequence[int],
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        depth: int = 3,
    ) -> None:
        self._slot_bytes = _slot_bytes(shape_or_num_bytes, dtype)
        self._dtype = dtype
        self._streams = streams.of(device)
        self._streams.refuse_capture("Stager allocates pinned memory")
        self._lifetime = Lifetime("Stager")
        self._lock = threading.Lock()
        self._depth = depth
        self._ring = PinnedRing(self._streams, depth, self._slot_bytes)
        self._upload = self._streams.side()
        self._num_puts = 0
        self._num_bytes = 0

    @property
    def device(self) -> torch.device:
        """Return the device that uploads go to."""
        return self._streams.device

    def put(self, array: Any) -> torch.Tensor:
        """Upload `array`; the host may change the array as soon as this returns.

        Args:
            array: numpy array, CPU tensor, bytes, or a list of these (equal in shape and dtype), which is
                stacked.

        Returns:
            A new tensor on the device with the shape and dtype of `array`, valid on the caller's current
            stream. The caller must order other streams that read the tensor (`wait_stream`, `record_stream`).

        Raises:
            InputError: if `array` is empty, mixes sizes, has another dtype, or is not on the host.
            TooLargeError: if `array` exceeds a buffer. CaptureError: in a capture. ClosedError: after close.
            ForkedError: in a child.
        """
        source = self._checked(array)
        reader = self._streams.current()
        with self._lock:
            self._lifetime.check()
            with self._streams.on(self._upload):
                tensor = torch.empty(source.shape, dtype=source.dtype, device=self.device)
            self._send(source, tensor, reader)
        # Allocated on the upload's stream, read on the caller's: the allocator has to know.
        self._streams.keep(tensor, reader)
        return tensor

    def lend(self, array: Any, pool: BufferPool, *, timeout_s: float = 0.0) -> Lease:
        """Upload as `put` into a buffer of `pool`: device memory is bounded, and not allocated in the steady
        state.

        Args:
            array: the array to upload, as in `put`.
            pool: a pool on the same device.
            timeout_s: how long to wait for a buffer if all buffers are lent.

        Returns:
            The lease of the tensor, which is valid on the caller's current stream; release it after the last
            read.

        Raises:
            As `put`, and PoolExhausted, TooLargeError of the pool.
        """
        source = self._checked(array)
        if pool.device != self.device:
            raise InputError(f"The pool is on {pool.device}, the Stager on {self.device}.")
        reader = self._streams.current()
        # Outside the lock: another thread's put must not wait for this one's buffer.
        lease = pool.get(source.shape, source.dtype, stream=self._upload, timeout_s=timeout_s)
        try:
            with self._lock:
                self._lifetime.check()
                self._send(source, lease.tensor, reader)
        except BaseException:
            lease.release(self._upload)
            raise
        lease.hand_over(reader)
        return lease

    def _checked(self, array: Any) -> HostArray:
        self._lifetime.check()
        self._streams.refuse_capture("Stager uploads")
        source = host_array(array, self._dtype)
        if source.num_bytes > self._slot_bytes:
            raise TooLargeError(
                f"An array of {source.shape}, {source.dtype} has {source.num_bytes:,} bytes; the ring's "
                "buffers have "
                f"{self._slot_bytes:,}.",
                hint="Make the Stager for the largest array.",
            )
        return source

    def _send(self, source: HostArray, into: torch.Tensor, reader: streams.Stream) -> None:
        with self._ring.slot(source.num_bytes, self._upload) as slot:
            staged = slot.view(0, source.shape, source.dtype)
            source.write(staged)
            self._streams.copy(into, staged, self._upload)
        assert slot.uploaded is not None
        self._streams.wait(reader, slot.uploaded)
        self._num_puts += 1
        self._num_bytes += source.num_bytes

    def stats(self) -> StagerStats:
        """Return totals so far; also after `close()`."""
        ring = self._ring
        return StagerStats(
            self._num_puts, self._num_bytes, ring.num_waits, ring.wait_s, self._depth, ring.num_bytes
        )

    def close(self) -> None:
        """Wait for pending uploads and free the pinned buffers; uploaded tensors stay valid."""
        with self._lock:
            if self._lifetime.close():
                self._ring.drain()
                self._ring.free()


def _slot_bytes(shape_or_num_bytes: int | Sequence[int], dtype: torch.dtype | None) -> int:
    if isinstance(shape_or_num_bytes, int):
        num_bytes = shape_or_num_bytes
    elif dtype is None:
        raise InputError(f"The shape {tuple(shape_or_num_bytes)} needs a dtype to have a size.")
    else:
        num_bytes = num_bytes_of(shape_or_num_bytes, dtype)
    if num_bytes < 1:
        raise InputError(
            f"The largest put would have {num_bytes} bytes.", hint="Give a shape or a number of bytes."
        )
    return num_bytes
