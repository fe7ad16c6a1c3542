"""What a watched program does, said once a second at the end of a step; no line of it waits for the device.

Events: `sight` (time in backward, a loss, memory of torch's allocator, batches that are ready), `beside` (a loader that
is not the steps' was begun: a validation), and `stacks`, when the watcher asks by a signal what each thread is at.
"""

from __future__ import annotations

import signal
import sys
import threading
from time import perf_counter

from ..core import source_location
from ..core.covers import covers
from ..core.device import is_capturing
from ..core.errors import guarded
from .loaders import batches_done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ..core.hooks import Log
    from ..core.program import Program

EVERY_S = 1.0
MOST_STEPS = 10_000
MOST_THREADS, MOST_FRAMES = 24, 200


class Sight:
    """Looks at one process; `signal` is what it answers with its threads' stacks, None if it cannot."""

    def __init__(self, program: Program, log: Log) -> None:
        self._program, self._log = program, log
        self._looked_s, self._looked_at = perf_counter(), 0
        self._backward_s, self._inside = 0.0, False
        self._wants_loss, self._loss = True, ""
        # A loss on its way from the device: where it goes, and what says that it is there.
        self._host: Any = None
        self._copied: Any = None
        self.signal = self._listen()

    def _listen(self) -> int | None:
        """Answer a signal that nobody uses."""
        for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
            if signal.getsignal(number) is signal.SIG_DFL:
                try:
                    signal.signal(number, lambda _, frame: guarded(self._log, "stacks", self._say_stacks, frame))
                    # A call that the signal meets goes on.
                    signal.siginterrupt(number, False)
                except ValueError:  # not in the main thread
                    return None
                return number
        return None

    def torch_is_here(self, torch: Any) -> None:
        """Cover `torch.autograd.backward`, by which `Tensor.backward` comes, too."""
        original, is_compiling = torch.autograd.backward, torch.compiler.is_compiling

        @covers(torch.autograd, "backward")
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or self._inside:
                return original(*args, **kwargs)
            if self._wants_loss:
                guarded(self._log, "loss", self._take_loss, torch, args[0] if args else kwargs.get("tensors"))
            self._inside, begin = True, perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._backward_s += perf_counter() - begin
                self._inside = False

    def _take_loss(self, torch: Any, tensors: Any) -> None:
        """Note the value of a loss on the CPU; begin to copy one that is on a GPU."""
        self._wants_loss = False
        loss: Any = next(iter(tensors), None) if isinstance(tensors, (list, tuple)) else tensors
        # Reading a tensor of another class may be a collective.
        if type(loss) is not torch.Tensor or loss.numel() != 1 or is_capturing(torch):
            self._wants_loss = True
            return
        value = loss.detach().float()
        if value.is_cpu:
            self._loss = repr(float(value))
        elif value.is_cuda:
            if self._host is None:
                self._host = torch.empty(value.shape, pin_memory=True)
            self._host.copy_(value.reshape(self._host.shape), non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(value.device))

    def reached(self, num_steps: int) -> int:
        """Say what is to be said, if it is time; gives the number of steps at which to be called next."""
        now, num = perf_counter(), num_steps - self._looked_at
        took_s = now - self._looked_s
        if num > 0 and took_s < EVERY_S:
            return num_steps + max(1, min(MOST_STEPS, int((EVERY_S - took_s) * num / took_s)))
        if num > 0:
            guarded(self._log, "sight", self._say, now, num_steps, num)
        # The search for steps may have begun anew, and their numbers with it.
        self._looked_s, self._looked_at, self._backward_s = now, num_steps, 0.0
        return num_steps + max(1, min(MOST_STEPS, int(EVERY_S * num / took_s)))

    def _say(self, now: float, at_step: int, num_steps: int) -> None:
        torch, loaders = self._program.torch, self._program.loaders
        found = {"event": "sight", "at_s": now, "at_step": at_step, "backward_s": self._backward_s / num_steps}
        if self._copied is not None and self._copied.query():
            self._loss, self._copied = repr(float(self._host)), None
        if self._copied is None:
            found["loss"], self._loss, self._wants_loss = self._loss, "", True
        if torch is not None and torch.cuda.is_initialized():
            devices = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
            found["allocated_bytes"] = sum(map(torch.cuda.memory_allocated, devices))
            found["reserved_bytes"] = sum(map(torch.cuda.memory_reserved, devices))
        drawn = [each for each in list(loaders.iterators) if getattr(each, "_num_workers", 0)] if loaders else []
        if drawn:
            found["num_ready"], found["num_asked"] = map(sum, zip(*map(batches_done, drawn)))
        self._program.event(found)

    def loader_begun(self) -> None:
        """A loader was begun that is not the steps'."""
        self._program.event({"event": "beside", "at_s": perf_counter()})

    def _say_stacks(self, frame: FrameType | None) -> None:
        names = {ident: thread.name for ident, thread in list(threading._active.items())}  # type: ignore[attr-defined]
        frames = {**sys._current_frames(), threading.get_ident(): frame}
        said = {names.get(ident, str(ident)): _places(frames[ident]) for ident in list(frames)[-MOST_THREADS:]}
        self._program.event({"event": "stacks", "at_s": perf_counter(), "threads": said})


def _places(frame: FrameType | None) -> list[str]:
    """The innermost call, and the innermost line of the user's own."""
    found: list[str] = []
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        is_users = source_location.whose(frame.f_code, frame.f_globals) == source_location.WHOSE_USER
        if is_users or not found:
            found.append(source_location.function(frame.f_code, frame.f_lineno))
        if is_users:
            break
        frame = frame.f_back
    return found
