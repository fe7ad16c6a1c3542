"""Upload and convert batches ahead of time, on a stream beside the computing stream."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from dynotune.runtime import streams
from dynotune.runtime.data.batches import has_own_to, mapped, moved_by_itself, readers
from dynotune.runtime.errors import InputError
from dynotune.runtime.lifetime import Lifetime
from dynotune.runtime.streams import Event, Stream
from dynotune.runtime.transfer.pinned import PinnedRing, Slot, aligned

__all__ = ["Prefetcher", "PrefetcherStats"]

Batch = TypeVar("Batch")
_log = logging.getLogger(__name__)

# One is being written while the other is uploaded; a third covers an upload that is late.
NUM_PINNED_SLOTS = 3


@dataclass(slots=True)
class PrefetcherStats:
    """Totals of a Prefetcher over all of its iterations.

    `staged_bytes` of the `uploaded_bytes` were pageable, and went through pinned buffers. Host time spent
    inside
    `next`: `loading_s` in the loader, `staging_s` in copies to pinned buffers, `throttled_s` in waits for the
        device.
    """

    num_batches: int = 0
    uploaded_bytes: int = 0
    staged_bytes: int = 0
    pinned_bytes: int = 0
    loading_s: float = 0.0
    staging_s: float = 0.0
    throttled_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ahead:
    batch: Any
    uploaded: Event


@dataclass(slots=True)
class _Iteration:
    loader: Iterator[Any]
    ring: PinnedRing
    ahead: deque[_Ahead | Exception] = field(default_factory=deque)
    # The end event of each upload, with the memory that the upload reads. Memory that others pinned is freed
    # without regard to uploads, so it is kept here until the event.
    reading: deque[tuple[Event, Any]] = field(default_factory=deque)
    # What the caller's stream had to do when each batch was asked for.
    asked: deque[Event] = field(default_factory=deque)
    has_ended: bool = False

    def let_go(self) -> None:
        """Drop references to sources whose upload has ended."""
        while self.reading and self.reading[0][0].query():
            self.reading.popleft()

    def stop(self) -> None:
        """Wait on the host until no upload reads a source any more."""
        for end, _ in self.reading:
            end.synchronize()


class Prefetcher(Generic[Batch]):
    """Iterates over the batches of `loader` on the device; `depth` batches are uploaded ahead.

    Tensors, nested in dicts, lists, tuples, named tuples and dataclasses, are uploaded on a side stream and
    arrive in containers of the same types; an object with its own `to` is moved by that method. Pinned
    tensors are uploaded directly (the loader must not overwrite them); pageable tensors go through reused
    pinned buffers. All other objects pass unchanged. A batch is valid on the stream that is current when the
    batch is returned, and may be kept.

    There is no extra thread: the loader runs in the iterating thread, between its steps. So random numbers
    are drawn in the same order each time, and leaving the loop early leaves nothing behind. An error of the
    loader or of `transform` is raised in place of its batch, after all earlier batches. The host waits when
    it is more than `depth` batches ahead of the device. So at most 2 * depth + 1 batches (2 with depth 0) are
    on the device at once, besides batches that the caller keeps.

    Args:
        loader: a DataLoader, or any iterable of batches; each iteration restarts it.
        device: device to upload to.
        depth: number of batches uploaded ahead; 0 uploads each batch when it is requested.
        dtype: dtype to which floating-point tensors are converted on the device; integers and bytes stay.
        channels_last: convert 4-D floating-point and uint8 tensors (images) to channels_last, on the device.
        transform: function of each batch on the device, run on the side stream; the loop receives its result.

    Raises:
        InputError: if the depth is below 0, the dtype is not floating-point, or no device is named.
        DeviceError: if the device is not usable here.
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        device: torch.device | str | int,
        depth: int = 2,
        *,
        dtype: torch.dtype | None = None,
        channels_last: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if depth < 0:
            raise InputError(f"depth is {depth}; it is the number of batches ahead, 0 or more.")
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(
                f"dtype is {dtype}; only floating-point tensors are converted, to a floating-point dtype."
            )
        self.loader = loader
        self._streams = streams.of(device)
        self._depth = depth
        self._dtype = dtype
        self._channels_last = channels_last
        self._transform = transform
        self._lifetime = Lifetime("Prefetcher")
        self._side = self._streams.side()
        self._stats = PrefetcherStats()
        self._rings: list[PinnedRing] = []
        self._said_slow = False

    def __len__(self) -> int:
        """Return the number of batches per iteration. Raises: TypeError if the loader has no length."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)

    def stats(self) -> PrefetcherStats:
        """Return totals so far, over all iterations."""
        return self._stats

    def __iter__(self) -> Iterator[Batch]:
        """Restart the loader and yield its batches on the device.

        Raises: what the loader and `transform` raise, in place of the batch; CaptureError during a graph's
        capture; ForkedError in a child that was forked after the Prefetcher was made.
        """
        self._lifetime.check()
        self._streams.refuse_capture("Prefetcher uploads")
        # What the caller prepared so far (the mean that `transform` subtracts) has to be there.
        self._streams.wait(self._side, self._streams.record(self._streams.current()))
        loader = iter(self.loader)
        # Pinned buffers outlive an iteration: two at once have their own, one after the other share.
        try:
            ring = self._rings.pop()
        except IndexError:
            ring = PinnedRing(self._streams, NUM_PINNED_SLOTS, 0, grows=True)
        run = _Iteration(loader, ring)
        try:
            while True:
                self._streams.refuse_capture("Prefetcher uploads")
                self._throttle(run)
                while not run.has_ended and len(run.ahead) <= self._depth:
                    self._draw(run)
                if not run.ahead:
                    return
                yield self._handed_out(run.ahead.popleft())
                run.let_go()
        finally:
            if self._lifetime.is_ours:
                run.stop()
                self._rings.append(ring)

    def _throttle(self, run: _Iteration) -> None:
        """Wait on the host until the device has finished the work that was enqueued `depth` batches ago.

        Without this wait, a host that never synchronises runs ahead, and each batch in between takes new
        memory.
        """
        run.asked.append(self._streams.record(self._streams.current()))
        if len(run.asked) <= max(self._depth, 1):
            return
        started_s = time.perf_counter()
        run.asked.popleft().synchronize()
        self._stats.throttled_s += time.perf_counter() - started_s

    def _draw(self, run: _Iteration) -> None:
        """Draw a batch and enqueue its upload; if the loader raises, store the error in its place."""
        started_s = time.perf_counter()
        try:
            source = next(run.loader)
        except StopIteration:
            run.has_ended = True
            return
        except Exception as error:
            run.has_ended = True
            run.ahead.append(error)
            return
        finally:
            self._stats.loading_s += time.perf_counter() - started_s
        try:
            batch = self._uploading(source, run.ring)
        except Exception as error:
            run.has_ended = True
            run.ahead.append(error)
        else:
            run.ahead.append(_Ahead(batch, self._streams.record(self._side)))
        finally:
            run.reading.append((self._streams.record(self._side), source))

    def _uploading(self, source: Any, ring: PinnedRing) -> Any:
        self._order_behind_the_caller(source)
        if has_own_to(source) and next(readers(source), None) is None:
            batch = self._moved_in_line(source)
        else:
            batch = _uploaded(source, ring, self._side, self._stats)
        with self._streams.on(self._side):
            if self._dtype is not None or self._channels_last:
                batch = mapped(batch, self._converted)
            if self._transform is not None:
                batch = self._transform(batch)
        self._stats.pinned_bytes = max(self._stats.pinned_bytes, ring.num_bytes)
        return batch

    def _order_behind_the_caller(self, source: Any) -> None:
        """Order the side stream behind the caller's stream, which made the tensors that are already on the
        device."""
        there = [found for found in readers(source) if self._is_here(found)]
        if there and self._streams.pins:
            self._streams.wait(self._side, self._streams.record(self._streams.current()))
            for found in there:
                self._streams.keep(found, self._side)

    def _is_here(self, found: Any) -> bool:
        return isinstance(found, torch.Tensor) and self._streams.holds(found)

    def _moved_in_line(self, source: Any) -> Any:
        """Move an object that exposes no tensors, on the caller's stream: no other stream can be kept safe
        for it."""
        if self._streams.pins and not self._said_slow:
            self._said_slow = True
            _log.warning(
                "%s shows no tensors and has no record_stream(): it is uploaded on the computing stream, "
                "unhidden.",
                type(source).__name__,
            )
        batch = moved_by_itself(source, self._streams.device)
        self._streams.wait(self._side, self._streams.record(self._streams.current()))
        return batch

    def _converted(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        dtype = self._dtype if self._dtype is not None and leaf.is_floating_point() else leaf.dtype
        is_image = leaf.dim() == 4 and leaf.layout == torch.strided
        if self._channels_last and is_image and (leaf.is_floating_point() or leaf.dtype == torch.uint8):
            return leaf.to(dtype=dtype, memory_format=torch.channels_last)
        return leaf.to(dtype=dtype)

    def _handed_out(self, item: _Ahead | Exception) -> Any:
        if isinstance(item, Exception):
            raise item
        reader = self._streams.current()
        self._streams.wait(reader, item.uploaded)
        for found in readers(item.batch):
            if not isinstance(found, torch.Tensor) or self._is_here(found):
                self._streams.keep(found, reader)
        self._stats.num_batches += 1
        return item.batch


def _uploaded(batch: Any, ring: PinnedRing, side: Stream, counts: PrefetcherStats) -> Any:
    """Return `batch` on the ring's device, valid on `side`; its pageable memory may be changed at once."""
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
    slot: Slot,
    batch: Any,
    staged: list[torch.Tensor],
    ring: PinnedRing,
    side: Stream,
    counts: PrefetcherStats,
) -> Any:
    streams = ring.streams
    placed: dict[int, torch.Tensor] = {}
    offset_bytes = 0
    for leaf in staged:
        # Those that torch itself gives a copy: those of channels_last stay, gaps and overlaps go.
        strides = tuple((leaf if leaf.is_contiguous() else torch.empty_like(leaf, device="meta")).stride())
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
        return mapped(
            batch, lambda leaf: placed[id(leaf)] if id(leaf) in placed else _sent(leaf, streams.device)
        )


def _sent(leaf: Any, device: torch.device) -> Any:
    return (
        leaf.to(device, non_blocking=True)
        if isinstance(leaf, torch.Tensor)
        else moved_by_itself(leaf, device)
    )


def _is_plain(leaf: torch.Tensor) -> bool:
    """Return whether copying the values is enough for `leaf`: subclasses and graph leaves move themselves."""
    if type(leaf) is not torch.Tensor or leaf.device.type != "cpu" or leaf.layout != torch.strided:
        return False
    return leaf.numel() > 0 and not (
        leaf.requires_grad or leaf.is_quantized or leaf.is_conj() or leaf.is_neg()
    )
