"""What a task may use of the running program: torch, its steps, its loaders and calls, and the record."""

from __future__ import annotations

from time import perf_counter

from .annotations import Any, Callable, Event, Log


class Program:
    """The running program as the agent sees it. The agent keeps it up; tasks read it.

    Attributes:
        torch: the module; None until the program has imported it.
        steps, roots, loaders, profiler: the agent's `Steps`, `OutermostModules`, `LoaderHooks` and `ProgramsProfiler`;
            `profiler` is None in a run that records no trace.
        state: the observed state of the process; None in a run that is not observed.
        num_compilations: compiled graphs so far.
        num_queued: batches that the loaders' workers may have ready at most.
        replays_graphs: a captured CUDA graph was launched.
        compiles_itself, replays_itself: whether it compiled, or replayed graphs, before any arm was switched on; None
            before that was asked.
        pretended: notes what is allocated on a pretended device; None without one.
        loader_router: of a task that draws from other loaders in the program's place; None before there was one.
        loader_begun_s: when an iterator of each loader was made last, CLOCK_MONOTONIC.
    """

    def __init__(self, folder: str, event: Event, log: Log) -> None:
        self.folder, self.event, self.log = folder, event, log
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
        self.replays_graphs = False
        self.loader_begun_s: dict[Any, float] = {}
        # Whether the parent has ordered a task that is not taken up yet. Set by the tasks' queue.
        self.more_ordered: Callable[[], bool] = lambda: False
        # Set by the agent. Called before a task begins and before its result is written; to write the observed state;
        # and to cover the calls that are needed once `roots.around` has changed.
        self.prepare: Callable[[], None] = lambda: None
        self.before_result: Callable[[], None] = lambda: None
        self.say_state: Callable[[], None] = lambda: None
        self.watch_calls: Callable[[], None] = lambda: None

    def loader_begun(self, key: Any, loader: Any) -> None:
        """Note that the loader's iterator is made, or begins anew: its workers begin now."""
        self.loader_begun_s[key] = perf_counter()
        workers = int(getattr(loader, "num_workers", 0) or 0)
        self.num_queued = max(self.num_queued, workers * int(getattr(loader, "prefetch_factor", 0) or 2))

    def ranks(self) -> dict[str, int]:
        """Return `rank` and `world_size` as the process group says them; empty without one."""
        distributed = getattr(self.torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": int(distributed.get_rank()), "world_size": int(distributed.get_world_size())}
        return {}
