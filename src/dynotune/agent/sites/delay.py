"""Delay one part of each step on purpose: the host, the device, a transfer, the loader, a rank, or a
function.

How much longer a step becomes, over the delay, tells whether that part is critical: about 1 if the step waits
for it, about 0 if the delay disappears behind another part. Coz (Curtsinger and Berger, SOSP 2015) does the
converse for threads.

A delay is switched on and off as a setting is, and read back: the seconds that a step was really delayed by,
which the parent divides by.
"""

from __future__ import annotations

import functools
import sys
from time import perf_counter

from ..core.device import has_cuda
from ..core.fetch_delay import delay_page
from ..core.living_objects import living_objects
from ..core.source_location import short_path
from .site import NotSwitched, Site, answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FunctionType
    from typing import Any

    from ..core.annotations import Answer, Planned
    from ..core.program import Program

CALIBRATION_CYCLES = 2_000_000  # about a millisecond of a GPU's clock
CALIBRATION_BYTES, MOST_BYTES = 16 << 20, 1 << 30
MOST_TIMED = 256  # pairs of events of the device that wait to be read
LEAST_SHARE = (
    0.75  # of the wanted delay; a longer one, as a busy core makes it, is what the answer is divided by
)
MONITORING_NAME = "dynotune"


class DelaySite(Site):
    """Delay every step by `value` seconds while it is on. `between_steps` is called at the end of each
    step."""

    is_switched = True
    acts_between_steps = True
    settles_at_once = True
    reaches_graphs = True

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self.num_steps = 0
        self.delayed_s = 0.0

    def cannot(self) -> str:
        return "a delay is switched within a run only" if self.at_start else ""

    def on(self) -> None:
        self.num_steps, self.delayed_s = 0, 0.0

    def between_steps(self) -> None:
        self.num_steps += 1
        self.delay()

    def delay(self) -> None:
        """Delay the step that begins now. By default other code does it."""

    def read_one(self, setting: Planned) -> Answer:
        witness = "the mean of %d steps" % self.num_steps
        if not self.num_steps:
            return answer(setting, None, witness, False, "no step was delayed")
        mean_s = self.delayed_s / self.num_steps
        return answer(setting, "%.9f" % mean_s, witness, mean_s >= LEAST_SHARE * self.value)


class HostDelay(DelaySite):
    """Keep the thread in which steps end busy; of several ranks, only the one that the setting's site
    names."""

    def between_steps(self) -> None:
        rank = self.setting["site"].get("rank")
        if rank is None or int(rank) == self.program.ranks().get("rank", 0):
            super().between_steps()

    def delay(self) -> None:
        self.delayed_s += busy_s(self.value)

    def read_one(self, setting: Planned) -> Answer:
        if setting["site"].get("rank") is not None and not self.num_steps:  # another rank is delayed
            return answer(setting, self.value, "another rank is delayed", True)
        return super().read_one(setting)


class TimedOnDevice(DelaySite):
    """A delay that the device carries out, timed by the device's own events."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._timed: list[tuple[Any, Any]] = []
        self._per_s = 0.0

    def cannot(self) -> str:
        if reason := super().cannot():
            return reason
        if not has_cuda(self.torch):
            return "the program does not use CUDA"
        return "the program captures a CUDA graph" if self.torch.cuda.is_current_stream_capturing() else ""

    def on(self) -> None:
        super().on()
        if not self._per_s:
            self._per_s = self.calibrated()
        self._timed.clear()

    def between_steps(self) -> None:
        if not self.torch.cuda.is_current_stream_capturing():
            super().between_steps()

    def delay(self) -> None:
        pair = self.enqueue(self.value * self._per_s)
        if len(self._timed) < MOST_TIMED:
            self._timed.append(pair)

    def read_one(self, setting: Planned) -> Answer:
        if self._timed:
            self._timed[-1][1].synchronize()
            mean_ms = sum(begin.elapsed_time(end) for begin, end in self._timed) / len(self._timed)
            self.delayed_s = 1e-3 * mean_ms * self.num_steps
        return super().read_one(setting)

    def calibrated(self) -> float:
        """Return the amount of work of `enqueue` that takes the device a second."""
        raise NotImplementedError

    def enqueue(self, amount: float) -> tuple[Any, Any]:
        """Enqueue the work between two events in the current stream; return the events."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        self.work(int(amount))
        events[1].record()
        return events[0], events[1]

    def work(self, amount: int) -> None:
        raise NotImplementedError

    def rate(self, amount: int) -> float:
        """Return `amount` over the seconds that it takes the device: the second of two times, when all is
        loaded."""
        seconds = 0.0
        for _ in range(2):
            begin, end = self.enqueue(amount)
            end.synchronize()
            seconds = 1e-3 * begin.elapsed_time(end)
        if seconds <= 0:
            raise NotSwitched("the device's clock stands still")
        return amount / seconds


class DeviceDelay(TimedOnDevice):
    """Run a kernel that only waits, in the stream that is current where a step ends."""

    def cannot(self) -> str:
        if reason := super().cannot():
            return reason
        return "" if hasattr(self.torch.cuda, "_sleep") else "this version of torch has no kernel that waits"

    def calibrated(self) -> float:
        return self.rate(CALIBRATION_CYCLES)

    def work(self, amount: int) -> None:
        self.torch.cuda._sleep(amount)


class TransferDelay(TimedOnDevice):
    """Copy pinned bytes to the device, in the stream that is current where a step ends."""

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._pinned: Any = None
        self._copy: Any = None

    def on(self) -> None:
        super().on()
        self._hold(int(self.value * self._per_s))

    def off(self) -> None:
        self._pinned = self._copy = None

    def calibrated(self) -> float:
        self._hold(CALIBRATION_BYTES)
        return self.rate(CALIBRATION_BYTES)

    def work(self, amount: int) -> None:
        num = min(amount, self._pinned.numel())
        self._copy[:num].copy_(self._pinned[:num], non_blocking=True)

    def _hold(self, num_bytes: int) -> None:
        if num_bytes > MOST_BYTES:
            raise NotSwitched("a copy of that time takes more than a GiB")
        try:
            self._pinned = self.torch.empty(max(1, num_bytes), dtype=self.torch.uint8, pin_memory=True)
            self._copy = self.torch.empty(max(1, num_bytes), dtype=self.torch.uint8, device="cuda")
        except RuntimeError as error:  # out of memory
            raise NotSwitched("there is no memory for a copy: %s" % str(error).splitlines()[0]) from None


class LoaderDelay(DelaySite):
    """Let each worker of the loaders sleep in its fetch, so that a batch is later by the delay at the
    workers' rate.

    Without workers, the thread that draws a batch sleeps. A step that draws several batches is later by the
    delay of each; what is read back is the delay of a step.
    """

    acts_in_loaders = True
    settles_at_once = False

    def cannot(self) -> str:
        if reason := super().cannot():
            return reason
        return "" if self.program.num_workers else "the program draws from no loader of torch"

    @property
    def num_queued(self) -> int:  # type: ignore[override]
        # Batches that are ready hide the delay until they are used up; the loader then makes fewer than are
        # drawn.
        return 2 * self.program.num_queued

    def on(self) -> None:
        super().on()
        delay_page(self.program.folder).set(self.value * self.program.num_workers_now())

    def off(self) -> None:
        delay_page(self.program.folder).set(0.0)

    def read_one(self, setting: Planned) -> Answer:
        num, slept_s = delay_page(self.program.folder).read()
        if not num:
            return answer(setting, None, "the workers' fetches", False, "no batch was fetched with the delay")
        self.delayed_s = slept_s / self.program.num_workers_now()
        return super().read_one(setting)


class FunctionDelay(DelaySite):
    """Keep a function of the program busy, at its first call in each step.

    The setting's site names the function by its `file`, whole or as `place` shortens it, a `line`, and its
    `name` if that is known. From Python 3.12 on the interpreter calls back where this code alone begins.
    Before, the function's owner gets a cover.
    """

    def __init__(self, planned: list[Planned], program: Program, at_start: bool) -> None:
        super().__init__(planned, program, at_start)
        self._waits = False
        self._num_called = 0
        self._function: FunctionType | None = None
        self._leave: Callable[[], None] | None = None

    def cannot(self) -> str:
        if reason := super().cannot():
            return reason
        self._function = self._function or self._found()
        return "" if self._function is not None else "no function of the program has this line"

    def on(self) -> None:
        super().on()
        assert self._function is not None
        self._waits, self._num_called = False, 0
        self._leave = watch_begins(self._function, self._begun)

    def off(self) -> None:
        if self._leave is not None:
            self._leave()
            self._leave = None

    def delay(self) -> None:
        self._waits = True

    def read_one(self, setting: Planned) -> Answer:
        if self.num_steps and not self._num_called:
            return answer(setting, None, "calls of the function", False, "the function was not called")
        return super().read_one(setting)

    def _begun(self) -> None:
        if self._waits:
            self._waits = False
            self._num_called += 1
            self.delayed_s += busy_s(self.value)

    def _found(self) -> FunctionType | None:
        """Return the innermost living function with the line."""
        site = self.setting["site"]
        line, found = int(site.get("line") or -1), None
        for each in living_objects():
            code = getattr(each, "__code__", None) if type(each).__name__ == "function" else None
            if code is None or code.co_name != site.get("name", code.co_name):
                continue
            if site.get("file") not in (
                code.co_filename,
                short_path(code.co_filename),
            ) or line not in lines_of(code):
                continue
            if found is None or code.co_firstlineno > found.__code__.co_firstlineno:
                found = each
        return found


def lines_of(code: CodeType) -> range:
    """Return the lines from the first of a function's code to its last."""
    from dis import findlinestarts  # an import that only few processes need

    last = max((line for _, line in findlinestarts(code) if line is not None), default=code.co_firstlineno)
    return range(code.co_firstlineno, last + 1)


def busy_s(least_s: float) -> float:
    """Keep this thread busy for `least_s`, as Python code does; return the seconds it took."""
    begin_s = now = perf_counter()
    while now - begin_s < least_s:
        now = perf_counter()
    return now - begin_s


def watch_begins(function: FunctionType, begun: Callable[[], None]) -> Callable[[], None]:
    """Call `begun` whenever the function begins, in any thread; return the function that ends this.

    Raises NotSwitched: no tool of the interpreter is free, or no class and no module holds the function.
    """
    if sys.version_info >= (3, 12):
        return _monitored(function, begun)
    return _covered(function, begun)


def _monitored(function: FunctionType, begun: Callable[[], None]) -> Callable[[], None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    free = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    if not free:
        raise NotSwitched("other tools use all of the interpreter's monitoring")
    tool, event = free[-1], monitoring.events.PY_START
    monitoring.use_tool_id(tool, MONITORING_NAME)
    monitoring.register_callback(tool, event, lambda code, offset: begun())
    monitoring.set_local_events(tool, function.__code__, event)

    def leave() -> None:
        monitoring.set_local_events(tool, function.__code__, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)

    return leave


def _covered(function: FunctionType, begun: Callable[[], None]) -> Callable[[], None]:
    name = function.__qualname__.rpartition(".")[2]
    owners = [vars(sys.modules[function.__module__])] if function.__module__ in sys.modules else []
    owner: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split(".")[:-1]:
        owner = getattr(owner, part, None)
    if owner is None or vars(owner).get(name) is not function or not owners:
        raise NotSwitched("no module and no class holds the function by its name")

    @functools.wraps(function)
    def cover(*args: Any, **kwargs: Any) -> Any:
        begun()
        return function(*args, **kwargs)

    setattr(owner, name, cover)

    def leave() -> None:
        if vars(owner).get(name) is cover:
            setattr(owner, name, function)

    return leave
