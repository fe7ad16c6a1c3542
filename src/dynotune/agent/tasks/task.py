"""Define the base class of all tasks, which a live run carries out between two steps of the program."""

from __future__ import annotations

from time import perf_counter

from ..core import reasons
from ..core.device import is_capturing
from ..core.errors import by_a_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

NEVER = 1 << 62


class Task:
    """One task of one process. A task's result is an event, written once; after that the task is `done`.

    A subclass names its result's event, begins work in `begin` and continues in `step_ended`. Each method is
    called when a step has just ended, and returns the number of steps at which to be called next. In a
    program without torch, a task with `needs_torch` is given up.

    `program`: program that the task works on. `order`: fields of the task, in the form of `schema.task`.
    `is_ending`: whether a thread of the agent is about to end the task.
    """

    event = ""
    needs_torch = False
    is_ending = False

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        self.program, self.order = program, order
        self.id = int(order.get("id", 0))
        self.at_step = int(order.get("at_step") or 0)
        self.has_begun = self.done = False
        self.result: dict[str, Any] | None = None

    def torch_is_here(self) -> None:
        """Act when torch has just been imported; only tasks of the plan get this call."""

    def around_calls(self, inner: Any) -> Any:
        """Return a function that calls outermost modules from the program's start; `inner` makes the other
        calls."""
        return inner

    def begin(self, num_steps: int) -> int:
        raise NotImplementedError

    def step_ended(self, num_steps: int) -> int:
        raise NotImplementedError

    def at_exit(self) -> None:
        """Write a result when the program ends. A process without steps, such as a launcher, writes no
        result."""
        self.give_up("it was done", code=reasons.PROGRAM_ENDED, at_exit=True)

    @property
    def is_here(self) -> bool:
        """Tell whether this thread can end the task."""
        return True

    def overdue(self) -> str:
        """Return why the task should end before another step does; "" if it may go on. For another thread."""
        return ""

    def clean_up(self) -> None:
        """Restore the program's state. Called once, before the result is written."""

    def reached(self, num_steps: int) -> int:
        """Note that `num_steps` have ended, the last one just now. Return the number at which to be called
        next."""
        if self.done:
            return NEVER
        if num_steps < self.at_step:
            return self.at_step
        try:
            if is_capturing(self.program.torch):
                return num_steps + 1
            if self.has_begun:
                stop = self.step_ended(num_steps)
            elif self.needs_torch and self.program.torch is None:
                self.give_up("", code=reasons.NO_TORCH)
                stop = NEVER
            else:
                self.program.prepare()
                stop = self.begin(num_steps)
                # Last, so that a task that could not begin begins at a later step.
                self.has_begun = True
        except Exception as error:
            self.failed(error)
            stop = num_steps + 1
        return NEVER if self.done else stop

    def complete(self, **fields: Any) -> None:
        self._write({"event": self.event, "task": self.id, "done_s": perf_counter(), **fields})

    def give_up(self, reason: str, *, code: str = "", at_exit: bool = False, **fields: Any) -> None:
        """Record why there is no result.

        Args:
            reason: the words that the sentence of `code` needs, as in `schema.events.GivenUp`; without a
                code, all.
            at_exit: whether the program ended before the task was done.
        """
        given_up = {"event": "given_up", "task": self.id, "kind": self.event, "code": code, "reason": reason}
        self._write({**given_up, "at_exit": at_exit, **fields})

    def failed(self, error: Exception) -> None:
        """Give up after an error of the agent; the program continues."""
        if by_a_signal(error):
            raise error
        self.program.log(self.event, error)
        self.give_up("it failed: %s: %s" % (type(error).__name__, error))

    def _write(self, result: dict[str, Any]) -> None:
        if self.done:
            return
        # First, so that a later error does not reactivate the task.
        self.result = result
        self.done = True
        try:
            self.clean_up()
        except Exception as error:
            self.program.log(self.event, error)
        self.program.before_result()
        # Last, since the reader may end this process.
        self.program.event(result)
