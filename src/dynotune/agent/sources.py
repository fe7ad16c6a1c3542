"""Where events come from: loaders, optimizers, scalers and captured graphs, covered once torch is there."""

import functools
import importlib
from time import perf_counter


def cover_loaders(torch, drawn, met, log):
    """Call `drawn(token key, batch size, wait begin, wait end, batch)` after each batch.

    `met(token key, loader)` comes when an iterator of a loader is made.
    """
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    original_init, original_reset, original_next = iterator.__init__, iterator._reset, iterator.__next__

    @functools.wraps(original_init)
    def __init__(self, loader, *args, **kwargs):
        original_init(self, loader, *args, **kwargs)
        try:
            # No reference to the loader: it must die when it would have died.
            batch_size = getattr(loader, "batch_size", None)
            key = type(loader), id(loader.dataset), batch_size, type(loader.sampler), torch.is_grad_enabled()
            self._dynotune = key, batch_size
            met(key, loader)
        except Exception as error:
            log("loader", error)

    # A loader with persistent workers keeps its iterator and begins it anew.
    @functools.wraps(original_reset)
    def _reset(self, loader, *args, **kwargs):
        original_reset(self, loader, *args, **kwargs)
        try:
            if hasattr(self, "_dynotune"):
                met(self._dynotune[0], loader)
        except Exception as error:
            log("loader", error)

    @functools.wraps(original_next)
    def __next__(self):
        begin = perf_counter()
        batch = original_next(self)
        end = perf_counter()
        try:
            drawn(*self._dynotune, begin, end, batch)
        except Exception as error:
            log("draw", error)
        return batch

    iterator.__init__, iterator._reset, iterator.__next__ = __init__, _reset, __next__


def cover_loader_workers(torch, begun, log):
    """Call `begun()` in each process that begins work for a loader."""
    workers = importlib.import_module("torch.utils.data._utils.worker")
    original = workers._worker_loop

    # Pickled by its name, so a process that is spawned calls the cover of its own agent.
    @functools.wraps(original)
    def _worker_loop(*args, **kwargs):
        try:
            begun()
        except Exception as error:
            log("worker", error)
        return original(*args, **kwargs)

    workers._worker_loop = _worker_loop


def cover_optimizers(torch, built, entered, stepped, log):
    """Call `built(optimizer)` for each optimizer made, `entered()` and `stepped(optimizer)` around each of its steps.

    A GradScaler that skips the step because of infinities has stepped all the same: the program's cycle goes on.
    """
    # torch.optim deletes the attribute `optimizer`, so `torch.optim.optimizer` is not reachable by dots.
    optimizers = importlib.import_module("torch.optim.optimizer")
    is_compiling = torch.compiler.is_compiling
    original_init = optimizers.Optimizer.__init__
    scaled = []

    @functools.wraps(original_init)
    def __init__(self, *args, **kwargs):
        original_init(self, *args, **kwargs)
        built(self)

    def before(optimizer, args, kwargs):
        if not is_compiling():
            entered()

    def after(optimizer, args, kwargs):
        if is_compiling():
            return
        try:
            if not scaled:
                stepped(optimizer)
        except Exception as error:
            log("optimizer", error)

    optimizers.Optimizer.__init__ = __init__
    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)

    scaler = torch.amp.grad_scaler.GradScaler
    original_step = scaler.step

    @functools.wraps(original_step)
    def step(self, optimizer, *args, **kwargs):
        scaled.append(optimizer)
        try:
            result = original_step(self, optimizer, *args, **kwargs)
        finally:
            scaled.pop()
        try:
            stepped(getattr(optimizer, "optimizer", optimizer))
        except Exception as error:
            log("scaler", error)
        return result

    scaler.step = step


def cover_graph_replay(torch, replayed, log):
    """Call `replayed(graph)` after a captured graph was launched by hand."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    original = getattr(graph, "replay", None)
    if original is None:
        return

    @functools.wraps(original)
    def replay(self):
        result = original(self)
        try:
            replayed(self)
        except Exception as error:
            log("graph", error)
        return result

    graph.replay = replay
