"""Time a window of steps; synchronise the device only at the window's begin and end."""

from __future__ import annotations

from time import perf_counter

from ..core.allocator_counters import device_allocations
from ..core.device import is_capturing, synchronise
from ..core.errors import by_a_signal
from ..core.pace import pace_s
from ..core.program import WAITS
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

MOST_FAILURES = 20
NUM_LEVELS = 8
"""Number of parts of the window; in an observed process, memory is read at the end of each."""


class TimeWindow(Task):
    """Time `num_steps` steps as a whole; in an observed run also write the state of the process."""

    event = "window"
    _num_failed = 0

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._call_s: list[float] = []
        self._is_function = False

    def around_calls(self, inner: Any) -> Any:
        """Time calls of outermost modules, or of the function that the user named as the step."""
        if not self.order.get("times_calls"):
            return inner
        self.program.step_function_ended = self._function_ended

        def timed(call: Any, module: Any, args: Any, kwargs: Any) -> Any:
            begin_s = perf_counter()
            output = inner(call, module, args, kwargs) if inner else call(module, *args, **kwargs)
            if not self._is_function:
                self._call_ended(begin_s)
            return output

        return timed

    def _function_ended(self, begin_s: float) -> None:
        if not self._is_function:
            self._is_function, self._call_s = True, []
        self._call_ended(begin_s)

    def _call_ended(self, begin_s: float) -> None:
        if self.has_begun and not self.done and not is_capturing(self.program.torch):
            synchronise(self.program.torch)
            self._call_s.append(perf_counter() - begin_s)

    def begin(self, num_steps: int) -> int:
        self._length = max(1, int(self.order["num_steps"]))
        if self.program.state is not None:
            self.program.state.window_begins(lambda: self.program.steps.num_steps)
        self._before = self._counters()
        self._first_step = num_steps
        # All ranks time equally many steps.
        may_end_early = self.order.get("whole_bursts") and self.program.ranks().get("world_size", 1) == 1
        self._whole_bursts = self._length - (
            self._length % self.program.num_workers_now() if may_end_early else 0
        )
        self._pace_s = pace_s()
        synchronise(self.program.torch)
        self._begin_s = perf_counter()
        return self._next(num_steps)

    def step_ended(self, num_steps: int) -> int:
        made = num_steps - self._first_step
        if made < self._length and not (made == self._whole_bursts and self._waits()):
            if self.program.state is not None:
                self.program.state.level()
            return self._next(num_steps)
        synchronise(self.program.torch)
        end_s = perf_counter()
        before, after = self._before, self._counters()
        grown = {name: after[name] - (before[name] or 0) for name in after if after[name] is not None}
        self.program.say_state()
        self.complete(
            **{"world_size": 1, **self.program.ranks()},
            first_step=self._first_step,
            num_steps=num_steps - self._first_step,
            begin_s=self._begin_s,
            end_s=end_s,
            call_s=self._call_s,
            pace_s=(self._pace_s + pace_s()) / 2,
            num_samples=None if grown["num_uncounted"] else grown["num_samples"],
            wait_s=grown["wait_s"],
            num_compilations=grown["num_compilations"],
            # If CUDA had not started at the window's begin, it had allocated nothing until then.
            num_device_allocations=grown.get("num_device_allocations"),
        )
        return num_steps

    def failed(self, error: Exception) -> None:
        """Count a failure, and retry: a device that cannot be synchronised now may be ready a step later."""
        self._num_failed += 1
        if self._num_failed >= MOST_FAILURES or self.has_begun:
            super().failed(error)
        elif by_a_signal(error):
            raise error
        else:
            self.program.log(self.event, error)

    def _waits(self) -> bool:
        waited_s: float = self.program.steps.wait_s - self._before["wait_s"]
        return waited_s > WAITS * (perf_counter() - self._begin_s)

    def _next(self, num_steps: int) -> int:
        """Return the next step at whose end memory is read, or at which the window may end."""
        end = self._first_step + self._length
        if num_steps < self._first_step + self._whole_bursts:
            end = self._first_step + self._whole_bursts
        if self.program.state is None:
            return end
        part = max(1, -(-self._length // NUM_LEVELS))
        return min(end, self._first_step + (num_steps - self._first_step) // part * part + part)

    def _counters(self) -> dict[str, Any]:
        steps = self.program.steps
        return {
            "num_compilations": self.program.num_compilations,
            "num_device_allocations": device_allocations(self.program.torch),
            "wait_s": steps.wait_s,
            "num_samples": steps.num_samples,
            "num_uncounted": steps.num_uncounted,
        }
