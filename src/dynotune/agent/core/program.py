"""Give tasks access to the running program: to torch, to steps, loaders and calls of modules, and to the
record."""

from __future__ import annotations

import os
from math import lcm
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .annotations import Event, Log

WAITS = 0.05
"""Share of waits for the loader above which timed steps must have equally many batches of each of its
workers."""


class Program:
    """The running program as the agent sees it. The agent updates these fields, and tasks read them.

    Attributes:
        pid: this process's id, as dynotune sees it.
        torch: the module; None until the program has imported it.
        steps, roots, loaders, profiler: the agent's `Steps`, `OutermostModules`, `LoaderHooks` and
            `ProgramsProfiler`; `profiler` is None in a run that records no trace.
        state: the recorded state of the process; None in a run that is not observed.
        num_compilations: number of graphs compiled so far.
        num_queued: largest number of batches that the loaders' workers may have ready.
        num_workers: number of workers of each loader.
        replays_graphs: whether a captured CUDA graph was launched.
        compiles_itself, replays_itself: whether the program compiled, or replayed graphs, before any
            candidate was switched on; None if not yet recorded.
        pretended: recorder of allocations on a simulated device; None without a simulated device.
        loader_router: router of a task that draws from other loaders in the program's place; None before such
            a task.
        loader_begun_s: when each loader's last iterator was created (CLOCK_MONOTONIC).
    """

    def __init__(self, folder: str, event: Event, log: Log) -> None:
        self.folder, self.event, self.log, self.pid = folder, event, log, os.getpid()
        self.torch: Any = None
        self.steps: Any = None
        self.roots: Any = None
        self.loaders: Any = None
        self.profiler: Any = None
        self.state: Any = None
        self.loader_router: Any = None
        self.pretended: Any = None
        self.num_compilations = 0
        self.compiles_itself: bool | None = None
        self.replays_itself = False
        self.num_queued = 0
        self.num_workers: dict[Any, int] = {}
        self.replays_graphs = False
        self.loader_begun_s: dict[Any, float] = {}
        # Called with the begin of each call of the function that the user named as the step.
        self.step_function_ended: Callable[[float], None] | None = None
        # Whether the parent has ordered a task that has not begun. Set by the task queue.
        self.more_ordered: Callable[[], bool] = lambda: False
        # Callbacks set by the agent: before a task begins and before its result is written; to write the
        # recorded state; and to cover the needed calls after `roots.around` has changed.
        self.prepare: Callable[[], None] = lambda: None
        self.before_result: Callable[[], None] = lambda: None
        self.say_state: Callable[[], None] = lambda: None
        self.watch_calls: Callable[[], None] = lambda: None

    def loader_begun(self, key: Any, loader: Any) -> None:
        """Note that the loader's iterator is created or restarted, so that the loader's workers begin now."""
        self.loader_begun_s[key] = perf_counter()
        workers = int(getattr(loader, "num_workers", 0) or 0)
        self.num_workers[key] = workers
        self.num_queued = max(self.num_queued, workers * int(getattr(loader, "prefetch_factor", 0) or 2))

    def num_workers_now(self) -> int:
        """Return the workers of the steps' loader, 1 without; of several loaders, the least common
        multiple."""
        return lcm(*(num for key, num in self.num_workers.items() if num and self.steps.counts(key)))

    def ranks(self) -> dict[str, int]:
        """Return `rank` and `world_size` from the process group; an empty dict without a process group."""
        distributed = getattr(self.torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": int(distributed.get_rank()), "world_size": int(distributed.get_world_size())}
        return {}
