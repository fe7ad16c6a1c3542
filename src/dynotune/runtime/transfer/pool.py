"""Reuse device buffers in stream order: a buffer returns to the pool when the work that reads it is done."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from dynotune.runtime import streams
from dynotune.runtime.errors import InputError, PoolExhausted, TooLargeError
from dynotune.runtime.lifetime import Closing, Lifetime
from dynotune.runtime.streams import Event, Stream
from dynotune.runtime.transfer.pinned import num_bytes_of

__all__ = ["BufferPool", "Lease", "PoolStats"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Contents of a pool, and totals of its use.

    Of `num_gets`, `num_reused` found a buffer whose readers were done, `num_ordered` a buffer still being
    read (the new holder's stream waits), and `num_allocated` made a new one. `num_evicted` idle buffers made
    room for others; `num_forgotten` leases were dropped without a release.
    """

    num_gets: int
    num_reused: int
    num_ordered: int
    num_allocated: int
    num_evicted: int
    num_forgotten: int
    num_leased: int
    leased_bytes: int
    held_bytes: int
    max_bytes: int


@dataclass(eq=False, slots=True)
class _Buffer:
    tensor: torch.Tensor
    num_bytes: int
    # The ends of the work of the last lease; the next one starts behind all of them.
    ends: list[Event] = field(default_factory=list)

    def is_done(self) -> bool:
        return all(end.query() for end in self.ends)


_Key = tuple[tuple[int, ...], torch.dtype]


class Lease:
    """A buffer that belongs to the caller until `release`; a `with` statement releases it on the current
    stream.

    `tensor` is uninitialised and valid on the stream that was current (or named) at `get`.
    """

    def __init__(self, pool: BufferPool, buffer: _Buffer, stream: Stream) -> None:
        self._pool = pool
        self._buffer: _Buffer | None = buffer
        self._stream = stream

    @property
    def tensor(self) -> torch.Tensor:
        """Return the buffer. Raises: InputError after the release."""
        if self._buffer is None:
            raise InputError("The lease was released: its buffer may belong to another by now.")
        return self._buffer.tensor

    def hand_over(self, stream: Stream) -> None:
        """Declare that `stream` was ordered behind all work on the buffer, and will use the buffer from now
        on."""
        self._stream = stream

    def release(self, stream: Stream | Iterable[Stream] | None = None) -> None:
        """Return the buffer to the pool once the work enqueued so far on these streams is done; does not
        wait.

        Args:
            stream: the stream, or the streams, that read the buffer last; None is the caller's current
                stream.

        Raises:
            InputError: if the lease was released before. CaptureError: if a graph is being captured.
        """
        self._pool._refuse_capture("A buffer is released")
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            raise InputError("The lease was released twice.")
        self._pool._take_back(buffer, _distinct(self._stream, stream, self._pool))

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        if self._buffer is not None:
            self.release()

    def __del__(self) -> None:
        # Whoever holds the tensor may still read it, on streams unknown: the buffer never goes back to the
        # pool.
        if (buffer := self._buffer) is not None:
            self._pool._forget(buffer)


def _distinct(got_on: Stream, given: Stream | Iterable[Stream] | None, pool: BufferPool) -> list[Stream]:
    """Return the streams whose work has to end before the buffer is free.

    They include the stream of `get`, which is the one ordered behind earlier readers: a lease that was never
    used, or used on another stream without an order, must not free the buffer before these readers end.
    """
    last = [pool.current()] if given is None else list(given) if isinstance(given, Iterable) else [given]
    distinct = [got_on]
    for stream in last:
        if stream not in distinct:
            distinct.append(stream)
    return distinct


class BufferPool(Closing):
    """Lends buffers of a device by shape and dtype, and reuses them in the order of streams, with a limit in
    bytes.

    A released buffer is lent again when the work enqueued before its release is done; or at once, if the new
    holder's stream is made to wait for that work. If the limit is reached, idle buffers of other shapes are
    freed. Thread-safe.

    Args:
        device: device of the buffers.
        max_bytes: limit on all buffers together, lent and idle.

    Raises:
        InputError: if the limit is below one byte, or no device is named.
        DeviceError: if the device is not usable here.
    """

    def __init__(self, device: torch.device | str | int, max_bytes: int) -> None:
        if max_bytes < 1:
            raise InputError(f"max_bytes is {max_bytes}; a pool has room for at least one byte.")
        self._streams = streams.of(device)
        self._max_bytes = max_bytes
        self._lifetime = Lifetime("BufferPool")
        # Reentrant: a lease may be collected, and so forgotten, while this thread is inside.
        self._changed = threading.Condition(threading.RLock())
        # Oldest release first, in each list and among the lists: the first is the likeliest to be done.
        self._idle: dict[_Key, list[_Buffer]] = {}
        self._held_bytes = 0
        self._leased_bytes = 0
        self._num_leased = 0
        self._counts = dict.fromkeys(("gets", "reused", "ordered", "allocated", "evicted", "forgotten"), 0)

    @property
    def device(self) -> torch.device:
        """Return the device of the buffers."""
        return self._streams.device

    def current(self) -> Stream:
        """Return the caller's current stream on the pool's device."""
        return self._streams.current()

    def get(
        self, shape: Sequence[int], dtype: torch.dtype, *, stream: Stream = None, timeout_s: float = 0.0
    ) -> Lease:
        """Lend a buffer, uninitialised.

        Args:
            shape: shape of the tensor.
            dtype: dtype of the tensor.
            stream: the first stream that uses the buffer; None is the caller's current stream.
            timeout_s: how long to wait for another thread's release if the limit is reached and all buffers
                are lent.

        Raises:
            TooLargeError: if the buffer exceeds the limit.
            PoolExhausted: if all are lent.
            CaptureError: in a graph's capture.
            ClosedError, ForkedError: used after close, or in a forked child.
        """
        key = (tuple(shape), dtype)
        num_bytes = num_bytes_of(shape, dtype)
        self._check(key, num_bytes)
        user = self.current() if stream is None else stream
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._lifetime.check()
                buffer = self._found(key, num_bytes, user)
                if buffer is not None:
                    break
                if not self._changed.wait(deadline_s - time.monotonic()):
                    raise self._exhausted(key, num_bytes, timeout_s)
            self._counts["gets"] += 1
            self._num_leased += 1
            self._leased_bytes += num_bytes
        return Lease(self, buffer, user)

    def reserve(self, shape: Sequence[int], dtype: torch.dtype, num: int) -> None:
        """Make sure that `num` buffers exist, so that nothing is allocated later. Raises: as `get`."""
        leases: list[Lease] = []
        try:
            while len(leases) < num:
                leases.append(self.get(shape, dtype))
        finally:
            for lease in leases:
                lease.release()

    def stats(self) -> PoolStats:
        """Return what the pool holds, and totals so far."""
        with self._changed:
            counts = {f"num_{name}": value for name, value in self._counts.items()}
            return PoolStats(
                **counts,
                num_leased=self._num_leased,
                leased_bytes=self._leased_bytes,
                held_bytes=self._held_bytes,
                max_bytes=self._max_bytes,
            )

    def close(self) -> None:
        """Wait for the readers of idle buffers and free these buffers; lent buffers are freed at their
        release."""
        with self._changed:
            if self._lifetime.close():
                for buffers in self._idle.values():
                    for buffer in buffers:
                        self._drop(buffer)
                self._idle.clear()
                self._changed.notify_all()

    def _refuse_capture(self, what: str) -> None:
        self._streams.refuse_capture(what)

    def _check(self, key: _Key, num_bytes: int) -> None:
        self._lifetime.check()
        self._refuse_capture("A buffer is taken from a pool")
        if any(size < 1 for size in key[0]):
            raise InputError(f"A buffer of shape {key[0]} would hold nothing.")
        if num_bytes > self._max_bytes:
            raise TooLargeError(
                f"A buffer of {key[0]}, {key[1]} has {num_bytes:,} bytes; the pool may hold "
                f"{self._max_bytes:,}.",
                hint="Make the pool with a larger max_bytes.",
            )

    def _found(self, key: _Key, num_bytes: int, user: Stream) -> _Buffer | None:
        """Return an idle buffer whose readers are done, else a new one, else an idle one still being read,
        else None.

        Buffers of other shapes are evicted last: otherwise two alternating shapes would evict each other at
        every get.
        """
        idle = self._idle.get(key, [])
        for index, buffer in enumerate(idle):
            if buffer.is_done():
                self._counts["reused"] += 1
                return idle.pop(index)
        if self._held_bytes + num_bytes <= self._max_bytes:
            return self._allocated(key, num_bytes, user)
        if idle:
            self._ordered(idle[0], user)
            self._counts["ordered"] += 1
            return idle.pop(0)
        return self._allocated(key, num_bytes, user) if self._make_room(num_bytes) else None

    def _ordered(self, buffer: _Buffer, user: Stream) -> None:
        for end in buffer.ends:
            self._streams.wait(user, end)

    def _allocated(self, key: _Key, num_bytes: int, user: Stream) -> _Buffer:
        with self._streams.on(user):
            tensor = torch.empty(key[0], dtype=key[1], device=self.device)
        self._held_bytes += num_bytes
        self._counts["allocated"] += 1
        return _Buffer(tensor, num_bytes)

    def _make_room(self, num_bytes: int) -> bool:
        """Evict idle buffers, of the longest unused shape first, until a new buffer fits; return whether it
        fits."""
        if self._leased_bytes + num_bytes > self._max_bytes:
            return False
        for buffers in self._idle.values():
            while buffers and self._held_bytes + num_bytes > self._max_bytes:
                self._drop(buffers.pop(0))
                self._counts["evicted"] += 1
        return True

    def _drop(self, buffer: _Buffer) -> None:
        # The allocator knows only the stream it was allocated on: nothing may read it any more when it goes
        # back.
        for end in buffer.ends:
            end.synchronize()
        self._held_bytes -= buffer.num_bytes

    def _exhausted(self, key: _Key, num_bytes: int, timeout_s: float) -> PoolExhausted:
        waited = f" for {timeout_s:g} s" if timeout_s else ""
        return PoolExhausted(
            f"No buffer of {key[0]}, {key[1]} ({num_bytes:,} bytes) was free{waited}: {self._num_leased} "
            "are lent "
            f"({self._leased_bytes:,} of at most {self._max_bytes:,} bytes).",
            hint="Release leases earlier, make the pool larger, or give get() a timeout_s.",
        )

    def _take_back(self, buffer: _Buffer, readers: list[Stream]) -> None:
        if not self._lifetime.is_ours:
            return  # a forked child leaves the parent's buffers alone
        with self._changed:
            buffer.ends = [self._streams.record(reader) for reader in readers]
            self._num_leased -= 1
            self._leased_bytes -= buffer.num_bytes
            if self._lifetime.closed:
                self._drop(buffer)
                return
            key = (tuple(buffer.tensor.shape), buffer.tensor.dtype)
            # Last among the lists too: eviction starts with the shape unused for longest.
            self._idle[key] = [*self._idle.pop(key, []), buffer]
            self._changed.notify_all()

    def _forget(self, buffer: _Buffer) -> None:
        if not self._lifetime.is_ours:
            return
        with self._changed:
            self._num_leased -= 1
            self._leased_bytes -= buffer.num_bytes
            self._held_bytes -= buffer.num_bytes
            self._counts["forgotten"] += 1
            self._changed.notify_all()
        warnings.warn(
            "A lease was dropped without release(); its buffer is lost to the pool.", ResourceWarning, 2
        )
