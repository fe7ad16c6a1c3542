"""Times the window: the device is synchronised at its two ends and nowhere else."""

from __future__ import annotations

from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.hooks import Event
    from .start_signal import Told


NEVER = 1 << 62
NUM_STRETCHES = 8
"""Of the window, at whose ends levels are taken."""


class Window:
    """Begins after `warmup_steps` steps and ends `num_steps` later; None never begins.

    Args:
        told: says both where they are not known yet.
        prepare: called before it begins, outside the timed part.
        level: called at the ends of steps spread evenly over it, its own two ends excepted.
        complete: called as `complete(fields)` when it has ended.
    """

    def __init__(
        self,
        warmup_steps: int,
        num_steps: int | None,
        *,
        told: Told | None = None,
        prepare: Callable[[], None],
        complete: Event,
        level: Callable[[], None] | None = None,
    ) -> None:
        self._warmup_steps, self._num_steps = warmup_steps, num_steps
        self._told = told
        self._prepare, self._complete, self._level = prepare, complete, level
        self._torch: Any = None
        self._first_step: int | None = None
        self._begin_s = 0.0
        self._counters: dict[str, Any] = {}
        self.steps: Any = None  # given once they are there: they tell the window, and it reads them
        self.num_compilations = 0
        self.done = num_steps is None and told is None

    @property
    def has_begun(self) -> bool:
        return self._first_step is not None

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch

    def reached(self, num_steps: int) -> int:
        """`num_steps` have ended, the last one now. The number at which to be called next."""
        if self.done:
            return NEVER
        if self._told is not None:
            stop = self._told.look(num_steps)
            if self._told.step is None:
                return stop
            self._warmup_steps, self._num_steps, self._told = self._told.step, self._told.num_steps, None
        if self._num_steps is None:
            return NEVER
        if self._first_step is None:
            if num_steps < self._warmup_steps:
                return self._warmup_steps
            if not is_capturing(self._torch):
                self._begin(num_steps)
                return self._next(num_steps, self._num_steps)
        elif num_steps < self._first_step + self._num_steps:
            if self._level is not None:
                self._level()
            return self._next(num_steps, self._num_steps)
        elif not is_capturing(self._torch):
            self._end(num_steps - self._first_step)
            return NEVER
        return num_steps + 1

    def wait(self) -> None:
        """For the device, at the end of a step that is timed by itself."""
        if not is_capturing(self._torch):
            synchronise(self._torch)

    def _next(self, num_steps: int, length: int) -> int:
        """The next step at whose end a level is taken, or the window ends."""
        first = self._first_step or 0
        if self._level is None:
            return first + length
        stretch = max(1, -(-length // NUM_STRETCHES))
        return min(first + length, first + (num_steps - first) // stretch * stretch + stretch)

    def _begin(self, first_step: int) -> None:
        self._prepare()
        self._counters = self._read_counters()
        synchronise(self._torch)
        self._begin_s = perf_counter()
        # Last: a window that could not begin begins with a later step.
        self._first_step = first_step

    def _end(self, num_steps: int) -> None:
        synchronise(self._torch)
        end_s = perf_counter()
        self.done = True
        before, after = self._counters, self._read_counters()
        grown = {name: after[name] - (before[name] or 0) for name in after if after[name] is not None}
        self._complete(
            {
                "first_step": self._first_step,
                "num_steps": num_steps,
                "begin_s": self._begin_s,
                "end_s": end_s,
                "num_samples": None if grown["num_uncounted"] else grown["num_samples"],
                "wait_s": grown["wait_s"],
                "num_compilations": grown["num_compilations"],
                # Where CUDA was not there at the beginning, it had allocated nothing.
                "num_device_allocations": grown.get("num_device_allocations"),
            }
        )

    def _read_counters(self) -> dict[str, Any]:
        return {
            "num_compilations": self.num_compilations,
            "num_device_allocations": device_allocations(self._torch),
            "wait_s": self.steps.wait_s,
            "num_samples": self.steps.num_samples,
            "num_uncounted": self.steps.num_uncounted,
        }


def synchronise(torch: Any) -> None:
    """Wait for all devices that this process uses; to ask the others would make a context there."""
    if _has_cuda(torch):
        cuda = torch.cuda
        for index in range(cuda.device_count()):
            if index == cuda.current_device() or cuda.max_memory_reserved(index):
                cuda.synchronize(index)


def is_capturing(torch: Any) -> bool:
    """Whether a CUDA graph is being captured: to synchronise would end that with an error in the program."""
    return _has_cuda(torch) and bool(torch.cuda.is_current_stream_capturing())


def _has_cuda(torch: Any) -> bool:
    return torch is not None and bool(torch.cuda.is_initialized())


def device_allocations(torch: Any) -> int | None:
    """cudaMalloc calls of this process so far; None without CUDA."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    stats = (torch.cuda.memory_stats(index) for index in range(torch.cuda.device_count()))
    return sum(int(device.get("num_device_alloc", 0)) for device in stats)
