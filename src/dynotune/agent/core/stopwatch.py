"""Time what a device does between two points of a program, while the host may be ahead of it."""

from __future__ import annotations

from time import perf_counter

from .device import has_cuda, synchronise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Stopwatch:
    """Measure the seconds from the work that the device has so far, to the end of all work at `seconds`.

    The begin is an event in the stream that is current then, so the device is not kept waiting: the host's
    lead, which hides its work behind the device's, is as in any other step. Without CUDA the host's clock
    counts.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._device = torch.cuda.current_device() if has_cuda(torch) else None
        self._begin = self._event()
        self.begin_s = perf_counter()

    def seconds(self) -> float:
        synchronise(self._torch)
        if self._begin is None:
            return perf_counter() - self.begin_s
        end = self._event()
        end.synchronize()
        return 1e-3 * float(self._begin.elapsed_time(end))

    def _event(self) -> Any:
        """Return an event at the end of what the device has to do; None if there was none at the begin."""
        if self._device is None:
            return None
        # Two events can be compared if both belong to one device, whichever device is current.
        with self._torch.cuda.device(self._device):
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
        return event
