"""Collect events from loaders, optimizers, scalers and captured graphs, which are covered after torch is
imported."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter

from ..core.covers import covers, replace
from ..core.errors import guarded
from .steps import MAX_INSIDE_OPTIMIZER, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.annotations import Log


class LoaderHooks:
    """Call `steps.drawn(key, batch size, wait begin, wait end, batch)` after each batch of a loader.

    `steps.waited_before(key, seconds)` reports the time to create an iterator, which starts workers, and the
    time to find an iterator exhausted, which ends workers.

    `met`: called as `met(key, loader)` when an iterator of a loader is created; returns the key to use.
    `unknown`: called with an iterator that gives a batch and was made before this agent came; None if there
        can be none.
    """

    def __init__(
        self,
        torch: Any,
        steps: Steps,
        met: Callable[[Any, Any], Any],
        log: Log,
        unknown: Callable[[Any], None] | None = None,
    ) -> None:
        self._steps, self._met, self._log = steps, met, log
        iterator, loaders = torch.utils.data.dataloader._BaseDataLoaderIter, torch.utils.data.DataLoader
        self._original_next = iterator.__next__
        self._draw = [iterator.__next__]  # a task may change it
        self._are_unseen = False
        self._unknown = unknown
        self._cover_begins(iterator)
        self._cover_next(iterator)
        self._cover_iter(loaders)

    def draw_through(self, around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
        """From now on, draw batches by calling `around(the iterator's own __next__)`."""
        self._draw[0] = around(self._original_next)

    def draw_plainly(self) -> None:
        self._draw[0] = self._original_next

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Ignore iterators that are created in this block."""
        self._are_unseen = True
        try:
            yield
        finally:
            self._are_unseen = False

    def _waited_before(self, iterator: Any, begin: float) -> None:
        guarded(self._log, "loader", self._tell_wait, iterator, perf_counter() - begin)

    def _tell_wait(self, iterator: Any, wait_s: float) -> None:
        # An iterator of another library has no such attribute, or answers by its own code, which may raise.
        of = getattr(iterator, "_dynotune", None)
        if isinstance(of, tuple):
            self._steps.waited_before(of[0], wait_s)

    def _cover_iter(self, loaders: Any) -> None:
        hooks, original = self, loaders.__iter__

        @covers(loaders, "__iter__")
        def __iter__(self: Any) -> Any:
            begin = perf_counter()
            made = original(self)
            hooks._waited_before(made, begin)
            return made

    def _cover_begins(self, iterator: Any) -> None:
        hooks, init, reset = self, iterator.__init__, iterator._reset

        @covers(iterator, "__init__")
        def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            init(self, loader, *args, **kwargs)
            if not hooks._are_unseen:
                guarded(hooks._log, "loader", hooks._made, self, loader)

        # A loader with persistent workers keeps its iterator and restarts it.
        @covers(iterator, "_reset")
        def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            reset(self, loader, *args, **kwargs)
            is_first = args[0] if args else kwargs.get("first_iter")
            guarded(hooks._log, "loader", hooks._begun_anew, self, loader, is_first)

    def _begun_anew(self, iterator: Any, loader: Any, is_first: Any) -> None:
        """Note an iterator that begins an epoch; `is_first`: whether the iterator is new."""
        if not (self._are_unseen or is_first) and hasattr(iterator, "_dynotune"):
            self._met(iterator._dynotune[0], loader)

    def _made(self, iterator: Any, loader: Any) -> None:
        # Do not refer to the loader, whose lifetime must not change. The iterator needs nearly all of it.
        fields = {n: v for n, v in vars(loader).items() if n != "_iterator"}
        replace(iterator, "_dynotune_loader", (type(loader), fields))
        batch_size = getattr(loader, "batch_size", None)
        key = type(loader), id(loader.dataset), batch_size, type(loader.sampler), self._steps.grad_enabled()
        replace(iterator, "_dynotune", (self._met(key, loader), batch_size))

    def take_over(self, iterator: Any, loader: Any) -> None:
        """Note an iterator that was made before this agent came: no epoch begins with its next batch."""
        self._made(iterator, loader)
        self._steps.epoch_goes_on(iterator._dynotune[0])

    def _cover_next(self, iterator: Any) -> None:
        hooks = self
        steps, draw, log = hooks._steps, hooks._draw, hooks._log

        @covers(iterator, "__next__")
        def __next__(self: Any) -> Any:
            begin = perf_counter()
            try:
                batch = draw[0](self)
            except StopIteration:
                hooks._waited_before(self, begin)
                raise
            end = perf_counter()
            try:
                key, batch_size = self._dynotune
                steps.drawn(key, batch_size, begin, end, batch)
            except Exception as error:
                if hooks._unknown is None or hasattr(self, "_dynotune"):
                    log("draw", error)
                else:
                    guarded(log, "draw", hooks._unknown, self)
            return batch


def cover_loader_workers(torch: Any, begun: Callable[[], None], log: Log) -> None:
    """Call `begun()` in each process that begins work for a loader."""
    workers: Any = importlib.import_module("torch.utils.data._utils.worker")
    original = workers._worker_loop

    # Pickled by name, so a spawned process calls the cover of its own agent.
    @covers(workers, "_worker_loop")
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        guarded(log, "worker", begun)
        return original(*args, **kwargs)


def cover_optimizers(torch: Any, steps: Steps, compiled: list[bool], log: Log) -> Callable[[], None]:
    """Report to `steps` each new optimizer, and the begin and end of each of its steps.

    An optimizer step that a GradScaler skips because of infinities still counts, because the program's cycle
    continues.

    `compiled`: non-empty once the process compiles; torch.compile can trace a hook only from then on.

    Return a function that removes the hooks of steps.
    """
    # torch.optim deletes the attribute `optimizer`, so a dotted path does not reach `torch.optim.optimizer`.
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    is_compiling = torch.compiler.is_compiling
    original_init = optimizers.Optimizer.__init__
    limit = MAX_INSIDE_OPTIMIZER
    scaling: set[int] = set()  # threads inside a scaler's step

    @covers(optimizers.Optimizer, "__init__")
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        guarded(log, "optimizer", steps.optimizer_built, self)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not (compiled and is_compiling()):
            steps.inside_optimizer = limit

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiled and is_compiling():
            return
        try:
            if not (scaling and get_ident() in scaling):
                steps.stepped(optimizer)
        except Exception as error:
            log("optimizer", error)

    hooks = (
        optimizers.register_optimizer_step_pre_hook(before),
        optimizers.register_optimizer_step_post_hook(after),
    )

    scaler = torch.amp.grad_scaler.GradScaler
    original_step = scaler.step

    @covers(scaler, "step")
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        try:
            scaling.add(thread)
            result = original_step(self, optimizer, *args, **kwargs)
        finally:
            scaling.discard(thread)
        guarded(log, "scaler", lambda: steps.stepped(getattr(optimizer, "optimizer", optimizer)))
        return result

    def remove() -> None:
        for hook in hooks:
            hook.remove()

    return remove


def cover_graph_replay(torch: Any, replayed: Callable[[Any], None], log: Log) -> None:
    """Call `replayed(graph)` after the program has launched a captured graph itself."""
    graph: Any = getattr(torch.cuda, "CUDAGraph", None)
    original = getattr(graph, "replay", None)
    if original is None:
        return

    @covers(graph, "replay")
    def replay(self: Any) -> Any:
        result = original(self)
        guarded(log, "graph", replayed, self)
        return result
