"""Wrap streams, events and pinned memory of a device; on the CPU the same calls return at once.

Staging, prefetching and the pool rely on three rules about the order of work:

- an event ends when all work that was enqueued before it on its stream has ended;
- `wait` orders all later work of a stream after an event, and returns on the host at once;
- memory belongs to the stream on which it was allocated. If another stream reads the memory, the allocator
  must be told (`keep`) before the last reference is dropped, or the memory is reused while it is being read.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dynotune.runtime.errors import CaptureError, DeviceError, InputError

Stream = Any


class Event:
    """A point on a stream; on the CPU every event has been reached."""

    def query(self) -> bool:
        """Return whether the event has been reached."""
        return True

    def synchronize(self) -> None:
        """Wait on the host until the event has been reached."""

    def record(self, stream: Stream) -> None:
        """Move the event to the stream's current end; only the event's owner may do that."""


class Streams:
    """Orders a device's work. This class is for the CPU, where every call has ended when it returns."""

    pins = False  # whether host memory is worth pinning
    _reached = Event()

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device  # type: ignore[no-any-return]

    def current(self) -> Stream:
        return None

    def side(self) -> Stream:
        return None

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return nullcontext()

    def event(self, *, spins: bool = False) -> Event:
        return self._reached

    def record(self, stream: Stream) -> Event:
        event = self.event()
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Order all later work of `stream` after the event."""

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Tell the allocator that `stream` reads the tensor."""

    def copy(self, into: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        with self.on(stream):
            into.copy_(source, non_blocking=self.pins)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def refuse_capture(self, what: str) -> None:
        """Raise CaptureError if a graph is being captured, because `what` could not be part of it."""


class CudaStreams(Streams):
    """Orders the work of one NVIDIA GPU."""

    pins = True

    def current(self) -> Stream:
        return torch.cuda.current_stream(self.device)

    def side(self) -> Stream:
        return torch.cuda.Stream(self.device)

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)  # type: ignore[no-any-return]

    def event(self, *, spins: bool = False) -> Event:
        # A host that spins is awake sooner; one that sleeps gives its core away, and lets other threads
        # launch.
        return torch.cuda.Event(blocking=not spins)  # type: ignore[no-any-return]

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.layout == torch.strided:
            tensor.record_stream(stream)  # also objects that know their own tensors
        elif tensor.layout == torch.sparse_coo:
            tensor._indices().record_stream(stream)
            tensor._values().record_stream(stream)
        else:
            for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()):
                part.record_stream(stream)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        # Pinning goes through the current device's context: without this, GPU 0's would be made as well.
        with torch.cuda.device(self.device):
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def refuse_capture(self, what: str) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(
                f"{what} inside the capture of a CUDA graph: a replay would not repeat it.",
                hint="Call it before the capture, and copy into the graph's static inputs.",
            )


def resolved(device: torch.device | str | int | None) -> torch.device:
    """Return `device` with its index, after checking that it can be used.

    Raises:
        InputError: if no device is given, or `device` is not a device, or is neither an NVIDIA GPU nor the
            CPU.
        DeviceError: if the GPU does not exist here.
    """
    if device is None:
        raise InputError("No device was given.", hint="Name one: device='cuda', 'cuda:1' or 'cpu'.")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{device!r} is not a device: {error}") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise InputError(f"{found} is not supported.", hint="Use an NVIDIA GPU ('cuda') or the CPU ('cpu').")
    if not torch.cuda.is_available():
        why = "torch is built without CUDA" if torch.version.cuda is None else "torch finds no NVIDIA GPU"
        raise DeviceError(
            f"{found} cannot be used: {why}.",
            hint="Use device='cpu', or see `dynotune doctor` for what is missing.",
        )
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= torch.cuda.device_count():
        raise DeviceError(f"{found} does not exist: there are {torch.cuda.device_count()} GPUs.")
    return torch.device("cuda", index)


def of(device: torch.device | str | int | None) -> Streams:
    """Return the streams of `device`. Raises InputError, DeviceError: as `resolved`."""
    found = resolved(device)
    return CudaStreams(found) if found.type == "cuda" else Streams(found)
