"""Where events come from: loaders, optimizers, scalers and captured graphs, covered once torch is there."""

from __future__ import annotations

import functools
import importlib
import weakref
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter

from .steps import MAX_INSIDE_OPTIMIZER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..core.hooks import Log
    from .steps import Steps


class LoaderHooks:
    """Calls `steps.drawn(key, batch size, wait begin, wait end, batch)` after each batch of a loader.

    Making an iterator, which starts workers, and finding it exhausted, which ends them, are told as
    `steps.waited_before(key, seconds)`.

    Args:
        met: called as `met(key, loader)` when an iterator of a loader is made; gives the key to use.
    """

    def __init__(self, torch: Any, steps: Steps, met: Callable[[Any, Any], Any], log: Log) -> None:
        self._steps, self._met, self._log = steps, met, log
        iterator, loaders = torch.utils.data.dataloader._BaseDataLoaderIter, torch.utils.data.DataLoader
        self._original_next = iterator.__next__
        self._draw = [iterator.__next__]  # a task may change it
        self._are_unseen = False
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        iterator.__init__, iterator._reset = self._init(iterator.__init__), self._reset(iterator._reset)
        iterator.__next__, loaders.__iter__ = self._next(), self._iter(loaders.__iter__)

    def draw_through(self, around: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> None:
        """From here on batches are drawn by `around(the iterator's own __next__)`."""
        self._draw[0] = around(self._original_next)

    def draw_plainly(self) -> None:
        self._draw[0] = self._original_next

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Iterators that are made meanwhile are not the program's."""
        self._are_unseen = True
        try:
            yield
        finally:
            self._are_unseen = False

    def _waited_before(self, iterator: Any, begin: float) -> None:
        try:
            of = getattr(iterator, "_dynotune", None)  # none where another library brings its own iterator
            if of is not None:
                self._steps.waited_before(of[0], perf_counter() - begin)
        except Exception as error:
            self._log("loader", error)

    def _iter(self, original: Any) -> Any:
        hooks = self

        @functools.wraps(original)
        def __iter__(self: Any) -> Any:
            begin = perf_counter()
            made = original(self)
            hooks._waited_before(made, begin)
            return made

        return __iter__

    def _init(self, original: Any) -> Any:
        hooks = self

        @functools.wraps(original)
        def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            original(self, loader, *args, **kwargs)
            if hooks._are_unseen:
                return
            try:
                # No reference to the loader: it must die when it would have died. Of what it holds, the iterator needs
                # nearly all.
                self._dynotune_loader = type(loader), {n: v for n, v in vars(loader).items() if n != "_iterator"}
                batch_size = getattr(loader, "batch_size", None)
                key = type(loader), id(loader.dataset), batch_size, type(loader.sampler), hooks._steps.grad_enabled()
                self._dynotune = hooks._met(key, loader), batch_size
                hooks.iterators.add(self)
            except Exception as error:
                hooks._log("loader", error)

        return __init__

    def _reset(self, original: Any) -> Any:
        hooks = self

        # A loader with persistent workers keeps its iterator and begins it anew.
        @functools.wraps(original)
        def _reset(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            original(self, loader, *args, **kwargs)
            if hooks._are_unseen:
                return
            try:
                is_first = bool(args[0] if args else kwargs.get("first_iter", False))
                if hasattr(self, "_dynotune") and not is_first:  # it has just been made
                    hooks._met(self._dynotune[0], loader)
            except Exception as error:
                hooks._log("loader", error)

        return _reset

    def _next(self) -> Any:
        hooks = self
        steps, draw, log = hooks._steps, hooks._draw, hooks._log

        @functools.wraps(hooks._original_next)
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
                log("draw", error)
            return batch

        return __next__


def cover_loader_workers(torch: Any, begun: Callable[[], None], log: Log) -> None:
    """Call `begun()` in each process that begins work for a loader."""
    workers: Any = importlib.import_module("torch.utils.data._utils.worker")
    original = workers._worker_loop

    # Pickled by its name, so a process that is spawned calls the cover of its own agent.
    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        try:
            begun()
        except Exception as error:
            log("worker", error)
        return original(*args, **kwargs)

    workers._worker_loop = _worker_loop


def cover_optimizers(torch: Any, steps: Steps, compiled: list[bool], log: Log) -> None:
    """Tell `steps` of each optimizer made, and before and after each of its steps.

    A GradScaler that skips the step because of infinities has stepped all the same: the program's cycle goes on.

    Args:
        compiled: holds something once the process compiles; only then can a hook be traced.
    """
    # torch.optim deletes the attribute `optimizer`, so `torch.optim.optimizer` is not reachable by dots.
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    is_compiling = torch.compiler.is_compiling
    original_init = optimizers.Optimizer.__init__
    limit = MAX_INSIDE_OPTIMIZER
    scaling: set[int] = set()  # threads inside a scaler's step

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        try:
            steps.optimizer_built(self)
        except Exception as error:
            log("optimizer", error)

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

    optimizers.Optimizer.__init__ = __init__
    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)

    scaler = torch.amp.grad_scaler.GradScaler
    original_step = scaler.step

    @functools.wraps(original_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        try:
            scaling.add(thread)
            result = original_step(self, optimizer, *args, **kwargs)
        finally:
            scaling.discard(thread)
        try:
            steps.stepped(getattr(optimizer, "optimizer", optimizer))
        except Exception as error:
            log("scaler", error)
        return result

    scaler.step = step


def cover_graph_replay(torch: Any, replayed: Callable[[Any], None], log: Log) -> None:
    """Call `replayed(graph)` after a captured graph was launched by hand."""
    graph: Any = getattr(torch.cuda, "CUDAGraph", None)
    original = getattr(graph, "replay", None)
    if original is None:
        return

    @functools.wraps(original)
    def replay(self: Any) -> Any:
        result = original(self)
        try:
            replayed(self)
        except Exception as error:
            log("graph", error)
        return result

    graph.replay = replay
