"""Puts the agent's parts together in one process."""

import atexit
import json
import os
import random

from . import observe, sources
from .apply import Settings
from .hooks import AfterImport
from .marker import wrap_function
from .roots import Roots
from .steps import Steps
from .window import Window, device_allocations
from .writer import ALLOCATED, COMPILED, EPOCH, Writer


class Agent:
    """One process's agent. Its parts know nothing of each other; what happens when is said here."""

    @classmethod
    def from_environment(cls):
        folder = os.environ["DYNOTUNE_RUN"]
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        agent = cls(Writer(folder), plan)
        agent._attach()
        return agent

    def __init__(self, writer, plan):
        self._writer = writer
        self._plan = plan
        self._torch = None
        self._roots = None
        self._num_errors = 0
        # While measuring nobody is asked what a step allocated: that would cost more than the step's own record.
        self._counts_events = plan.get("window_steps") is None
        self._settings = Settings(plan["settings"], self._event, self.log)
        self._window = Window(
            plan.get("warmup_steps") or 1,
            plan.get("window_steps"),
            self._before_window,
            self._window_complete,
        )
        self._steps = Steps(self._grad_enabled, self._step_ended, self._step_fixed)

    def _attach(self):
        self._writer.event(event="process", **observe.process())
        watch = observe.EnvironmentWatch(self._event, self._settings.is_kept, self.log)
        watch.install()
        self._settings.before_torch()
        hooks = AfterImport(self.log)
        hooks.install()
        self._hooks = hooks
        if self._plan.get("seed") is not None:
            random.seed(self._plan["seed"])
            hooks.call("numpy.random", lambda module: module.seed(self._plan["seed"] % 2**32))
        hooks.call("torch", self._torch_is_here)
        if self._plan.get("step_on") and self._plan["step_on"] != "dynotune.step":
            wrap_function(self._plan["step_on"], hooks, self._steps.marked, self.log)
        hooks.offer_stub("dynotune", {"step": self.mark_step})
        atexit.register(self._finish)
        os.register_at_fork(after_in_child=self._forked)

    def log(self, where, error):
        """Write down a mistake of the agent's own."""
        self._num_errors += 1
        if self._num_errors <= 20:
            self._event({"event": "error", "where": where, "error": "%s: %s" % (type(error).__name__, error)})

    def mark_step(self):
        try:
            self._steps.marked()
        except Exception as error:
            self.log("step", error)

    def _event(self, fields):
        self._writer.event(**fields)

    # When torch is there

    def _torch_is_here(self, torch):
        self._torch = torch
        self._window.torch_is_here(torch)
        self._event(
            {
                "event": "torch",
                "version": str(torch.__version__),
                "cuda": getattr(torch.version, "cuda", None),
            }
        )
        self._guard("settings", self._settings.after_torch, torch)
        if self._plan.get("seed") is not None:
            torch.manual_seed(self._plan["seed"])
        self._guard("roots", self._cover_roots, torch)
        self._guard("loaders", sources.cover_loaders, torch, self._steps.drawn, self._loader_begun, self.log)
        self._guard("workers", sources.cover_loader_workers, torch, self._worker_begun, self.log)
        self._guard(
            "optimizers",
            sources.cover_optimizers,
            torch,
            self._optimizer_built,
            self._steps.optimizer_entered,
            self._steps.stepped,
            self.log,
        )
        self._guard("graphs", sources.cover_graph_replay, torch, self._replayed, self.log)

    def _cover_roots(self, torch):
        around = self._settings.around_root if self._settings.wants_around else None
        self._roots = Roots(torch, self._settings.on_root, self._steps.called, around, self.log)
        self._roots.watch_all()
        torch.compile = self._roots.pause(torch.compile)
        self._hooks.call("torch._dynamo.callback", self._watch_compilations)
        # What dynamo takes for the unpatched call must be the original, also when it is imported now.
        original = self._roots.original
        self._hooks.call("torch._dynamo.utils", lambda module: setattr(module, "unpatched_nn_module_call", original))

    def _watch_compilations(self, callback):
        def begins(*_):
            self._window.num_compilations += 1
            self._roots.compilation_begins()

        callback.callback_handler.register_start_callback(begins)

    def _loader_begun(self, key, loader):
        self._steps.iterator_made(key, loader.dataset)
        self._settings.on_loader(loader)

    def _optimizer_built(self, optimizer):
        # A window times the step that it began with.
        if not self._window.has_begun and self._steps.search_again() and self._roots is not None:
            self._roots.watch_all()
        self._steps.optimizer_built(optimizer)

    def _worker_begun(self):
        """This process works for a loader: what it calls, transforms for instance, are no steps of the program."""
        self._window.done = True
        self._steps.ignore()
        if self._roots is not None:
            self._roots.watch_only(())

    def _grad_enabled(self):
        return self._torch.is_grad_enabled()

    def _replayed(self, graph):
        if not self._roots.inside():
            self._steps.replayed(graph)

    # When a step has been found or has ended

    def _step_fixed(self, description, begin_s, classes, num_superseded):
        self._event(
            {
                "event": "cycle",
                "step": description,
                "begin_s": begin_s,
                "num_steps": self._steps.index,
                "num_superseded": num_superseded,
                **self._place_among_ranks(),
            }
        )
        if self._roots is not None:
            if self._settings.wants_around:
                classes = set(classes) | set(self._roots.known_classes())
            self._roots.watch_only(classes)
        self._guard("readback", self._read_back)

    def _step_ended(self, index, end_s, wait_s, num_samples, epoch, live):
        flags = EPOCH if epoch else 0
        if self._counts_events and live:
            flags |= self._new_events()
        self._writer.step(end_s, wait_s, num_samples, flags)
        if live:
            self._window.step_ended(index, wait_s, num_samples)

    def _new_events(self):
        """Whether something was compiled or device memory allocated in this step. Not asked while measuring."""
        now = (self._window.num_compilations, device_allocations(self._torch))
        before, self._before = getattr(self, "_before", now), now
        return (COMPILED if now[0] != before[0] else 0) | (ALLOCATED if now[1] != before[1] else 0)

    def _before_window(self):
        self._guard("settings", self._settings.hold)

    def _window_complete(self, fields):
        self._guard("memory", self._remember_memory)
        self._guard("readback", self._read_back)
        # Last: whoever reads it ends this process.
        self._event({"event": "window", "world_size": 1, **self._place_among_ranks(), **fields})

    def _place_among_ranks(self):
        """Rank and world size where a process group says them; the environment, read at the start, may not know."""
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
        return {}

    def _read_back(self):
        self._event({"event": "readback", "settings": self._settings.readback()})

    def _remember_memory(self):
        self._event({"event": "memory", **observe.memory(self._torch)})

    def _finish(self):
        if self._torch is not None:
            self._guard("memory", self._remember_memory)
            self._guard("readback", self._read_back)
        self._event({"event": "exit", "num_events": self._steps.num_events})

    def _forked(self):
        """In a forked child: a record of its own, begun when there is something to say.

        It has a window if it is what does the work: when its parent has done nothing yet.
        """
        self._writer.reset_after_fork()
        if self._steps.index or self._steps.num_events:
            self._window.done = True
        atexit.unregister(self._finish)

    def _guard(self, where, function, *args):
        try:
            function(*args)
        except Exception as error:
            self.log(where, error)
