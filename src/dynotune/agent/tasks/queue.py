"""Queue the tasks of one process: tasks of the plan, then tasks that the parent orders while the program
runs.

The parent writes `task-001.json` and so on into the run folder, and counts these files in a memory page that
the process has mapped too. So a check, at the end of a step, costs no system call, and the program is never
interrupted.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
from time import perf_counter

from ..core.writer import map_file
from .task import NEVER, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.program import Program

PAGE_FILE = "tasks.page"
PAGE_BYTES = 4096
# Magic, version, zero, number of task files, and number of requests to repeat results.
PAGE_HEAD = struct.Struct("<8sHHII")
PAGE_MAGIC, PAGE_VERSION = b"DYNOTASK", 1
TASK_SCHEMA = "dynotune.task/1"
KINDS = (
    "time-window",
    "record-trace",
    "isolate-loader",
    "switch-arms",
    "check-results",
    "record-memory",
    "record-history",
    "record-shapes",
    "count-objects",
    "align-steps",
)
# Steps are processed many at a time; a check after each step would prevent that.
LOOK_S = 0.02
MOST_STEPS_BETWEEN_LOOKS = 100


class TaskQueue:
    """Queue of tasks, one after another. An invalid order is recorded as an error, and the program continues.

    Args:
        planned: tasks of the plan in order, as dicts in the form of `schema.task`.
        live: whether more tasks come while the program runs.
    """

    def __init__(self, program: Program, planned: list[dict[str, Any]], *, live: bool) -> None:
        self._program = program
        self._planned: list[Task] = []
        for number, order in enumerate(planned):
            task = self._made({"id": -1 - number, **order})
            if task is not None:
                self._planned.append(task)
        self._page: Any = self._opened_page() if live else None
        self._current: Task | None = None
        self._last_result: dict[str, Any] | None = None
        self._num_taken = self._num_repeats = 0
        self._looked_s, self._looked_at = perf_counter(), 0
        self._ignored = False
        self.is_leaving = False  # set by another thread than that of the steps
        if live and self._page is not None:
            program.more_ordered = lambda: PAGE_HEAD.unpack_from(self._page)[3] > self._num_taken

    @property
    def has_begun(self) -> bool:
        """Tell whether a task has begun work; from then on the kind of step must not change."""
        begun = self._current is not None and self._current.has_begun
        return begun or self._last_result is not None

    @property
    def takes_traces(self) -> bool:
        return self._page is not None or any(task.event == "trace" for task in self._planned)

    @property
    def is_recording(self) -> bool:
        return self.is_busy and self._current is not None and self._current.event == "trace"

    @property
    def is_busy(self) -> bool:
        """Tell whether a task has begun and not ended."""
        task = self._current
        return task is not None and task.has_begun and not task.done

    def overdue(self) -> str:
        """Return why a recording that is under way should end before another step does; "" otherwise."""
        return self._current.overdue() if self._current is not None and self.is_recording else ""

    def end_recording(self, reason: str) -> None:
        """Give up a recording, in the thread that began it; in another one, do nothing."""
        task = self._current
        if task is not None and self.is_recording and task.is_here:
            task.give_up(reason)
            self._last_result, self._current = task.result, None

    def around(self, inner: Any) -> Any:
        """Return the function, around `inner` (or None), that calls outermost modules as the planned tasks
        require."""
        for task in self._planned:
            inner = task.around_calls(inner)
        return inner

    def torch_is_here(self) -> None:
        for task in self._planned:
            try:
                task.torch_is_here()
            except Exception as error:
                task.failed(error)

    def ignore(self) -> None:
        """Ignore this process, because it runs no steps of its own."""
        self._ignored = True

    def reached(self, num_steps: int) -> int:
        """Note that `num_steps` have ended, the last one just now. Return the number at which to be called
        next."""
        while not self._ignored:
            if self.is_leaving and not (self._current is not None and self._current.is_ending):
                self._end_present()
                return NEVER
            if self._current is None:
                self._current = self._next()
            task = self._current
            if task is None:
                return self._next_look(num_steps)
            stop = task.reached(num_steps)
            if not task.done:
                return stop
            self._last_result, self._current = task.result, None
        return NEVER

    def leave(self) -> None:
        """Give up the present task, take no other, and let go of the page."""
        self._end_present()
        self._ignored, self._page = True, None
        self._program.more_ordered = lambda: False

    def _end_present(self) -> None:
        task, self._current = self._current, None
        if task is not None and not task.done:
            task.give_up("dynotune has left the program")

    def at_exit(self) -> None:
        """Have each begun or planned task report that the program ends, if the process had steps."""
        if self._ignored or not self._program.steps.num_steps:
            return
        for task in [self._current, *self._planned, self._ordered()]:
            if task is not None and not task.done:
                try:
                    task.at_exit()
                except Exception as error:
                    task.failed(error)

    # Sources of tasks

    def _next(self) -> Task | None:
        while self._planned:
            task = self._planned.pop(0)
            if not task.done:
                return task
        return self._ordered()

    def _ordered(self) -> Task | None:
        """Return the next task that the parent ordered; None without a new task."""
        if self._page is None:
            return None
        _, _, _, num_tasks, num_repeats = PAGE_HEAD.unpack_from(self._page)
        if num_repeats != self._num_repeats:
            self._num_repeats = num_repeats
            if self._last_result is not None:
                self._program.event(self._last_result)
        while self._num_taken < num_tasks:
            self._num_taken += 1
            task = self._made(self._read(self._num_taken))
            if task is not None:
                return task
        return None

    def _next_look(self, num_steps: int) -> int:
        if self._page is None:
            return NEVER
        now, steps = perf_counter(), max(1, num_steps - self._looked_at)
        step_s = (now - self._looked_s) / steps
        self._looked_s, self._looked_at = now, num_steps
        return num_steps + max(1, min(MOST_STEPS_BETWEEN_LOOKS, int(LOOK_S / max(step_s, 1e-9))))

    def _read(self, number: int) -> dict[str, Any]:
        """Read one task file as an order; an invalid file gives an order with `refused`."""
        try:
            with open(
                os.path.join(self._program.folder, "task-%03d.json" % number), encoding="utf-8"
            ) as file:
                found = json.load(file)
            if found["schema"] != TASK_SCHEMA:
                return {
                    "id": number,
                    "refused": "it is %s; this agent reads %s" % (found["schema"], TASK_SCHEMA),
                }
            return {**found["task"], "id": number}
        except Exception as error:
            return {
                "id": number,
                "refused": "the task file is damaged: %s: %s" % (type(error).__name__, error),
            }

    def _made(self, order: dict[str, Any]) -> Task | None:
        """Create the ordered task; None if the order was refused, which the record reports."""
        reason = order.get("refused", "")
        if not reason:
            try:
                task: Task = _class_of(str(order.get("type")))(self._program, order)
                return task
            except Exception as error:
                reason = "this agent does not know this task: %s: %s" % (type(error).__name__, error)
        kind = str(order.get("type", ""))
        fields = {"event": "given_up", "task": order["id"], "kind": kind, "reason": reason, "at_exit": False}
        self._last_result = {**fields, "refused": True}
        self._program.event(self._last_result)
        return None

    def _opened_page(self) -> Any:
        """Open the page in which the parent counts its tasks; on failure record an error and return None."""
        try:
            path = os.path.join(self._program.folder, PAGE_FILE)
            page = map_file(os.open(path, os.O_RDWR | os.O_CLOEXEC), PAGE_BYTES)
            magic, version = PAGE_HEAD.unpack_from(page)[:2]
            if (magic, version) != (PAGE_MAGIC, PAGE_VERSION):
                raise ValueError(
                    "%s is of version %r %d; this agent reads %d" % (path, magic, version, PAGE_VERSION)
                )
            return page
        except Exception as error:
            self._program.log("tasks", error)
            return None


def _class_of(kind: str) -> Any:
    """Return the class for tasks of a kind; each class is imported only when needed."""
    if kind not in KINDS:
        raise ValueError("%r" % kind)
    module = importlib.import_module("." + kind.replace("-", "_"), __package__)
    return getattr(module, kind.title().replace("-", ""))
