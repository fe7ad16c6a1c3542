"""Puts the agent's parts together in one process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
from time import perf_counter

from .apply.settings import Settings
from .core import dynamo_skip, observe
from .core.errors import Mistakes
from .core.hooks import AfterImport
from .core.writer import ALLOCATED, COMPILED, Writer
from .steps import event_hooks, marker
from .steps.outermost_modules import Roots
from .steps.steps import Steps
from .tasks import planned
from .tasks.start_signal import Told
from .tasks.window import Window, device_allocations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .facts.models import Around
    from .facts.state import State
    from .steps.identities import Key
    from .tasks.outputs import Results

ALLOCATIONS_EVERY_S = 0.002


class Agent:
    """One process's agent. Its parts know nothing of each other; what happens when is said here."""

    @classmethod
    def from_environment(cls) -> Agent:
        folder = os.environ["DYNOTUNE_RUN"]
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            plan = json.load(file)
        agent = cls(Writer(folder), plan, folder)
        agent._attach()
        return agent

    def __init__(self, writer: Writer, plan: dict[str, Any], folder: str) -> None:
        self._writer = writer
        self._plan = plan
        self._torch: Any = None
        self._roots: Roots | None = None
        self.log = Mistakes(self._event)
        self._hooks = AfterImport(self.log)
        self._compiled: list[bool] = []
        self._needed: set[type] = set()
        self._settings = Settings(plan["settings"], self._event, self.log)
        self._state = self._planned_state() if plan.get("observe") else None
        is_told = self._state is not None and plan.get("warmup_steps") is None
        self._window = Window(
            plan.get("warmup_steps") or 1,
            plan.get("window_steps"),
            told=Told(folder, None, None) if is_told else None,
            prepare=self._before_window,
            complete=self._window_complete,
            level=self._state.level if self._state is not None else None,
        )
        profile, self._ceilings, self._screen = planned.recorders(
            folder,
            plan,
            place=self._place_among_ranks,
            num_compilations=lambda: self._window.num_compilations,
            prepare=self._before_window,
            complete=self._recorder_complete,
            event=self._event,
            log=self.log,
        )
        self._results = self._planned_results() if plan.get("guard") else None
        self._starting = planned.starting(plan, self._event, self.log)
        self._recorder = profile or self._ceilings or self._screen or self._results
        self._steps = self._window.steps = Steps(
            grad_enabled=self._grad_enabled,
            record=writer.step if self._screen is None else self._screen.recording(writer.step),
            # In a measured run nobody asks what a step allocated: that costs more than the step's own record.
            flags_now=self._new_events if plan.get("pilot") or self._state is not None else None,
            reached=(self._recorder or self._window).reached,
            fixed=self._step_fixed,
            search_again=self._search_again,
            has_stepped=self._state.optimizers.stepped if self._state is not None else None,
            marked_by_hand=bool(plan.get("step_on")),
            wait=self._window.wait if plan.get("sync_steps") else None,
        )
        for recorder in (self._ceilings, self._screen):
            if recorder is not None:
                recorder.steps = self._steps

    def _planned_results(self) -> Results:
        from .tasks.outputs import Results

        return Results(self._plan["guard"], lambda: bool(self._steps.optimizers), self._results_complete, self.log)

    def _planned_state(self) -> State:
        from .facts.state import State

        return State(self.log)

    def _attach(self) -> None:
        self._writer.event(event="process", **observe.process())
        watch = observe.EnvironmentWatch(self._event, self._settings.is_kept, self.log)
        watch.install()
        self._settings.before_torch()
        hooks = self._hooks
        hooks.install()
        if self._plan.get("seed") is not None:
            random.seed(self._plan["seed"])
            hooks.call("numpy.random", lambda module: module.seed(self._plan["seed"] % 2**32))
        hooks.call("torch", self._torch_is_here)
        if self._plan.get("observe"):
            self._watch_fetching(hooks)
        if self._plan.get("step_on") and self._plan["step_on"] != "dynotune.step":
            marker.wrap_function(self._plan["step_on"], hooks, self.mark_step, self.log)
        hooks.offer_stub("dynotune", {"step": self.mark_step})
        atexit.register(self._finish)
        self._cover_exit()
        os.register_at_fork(after_in_child=self._forked)
        if self._starting is not None:
            self._starting.install(hooks)

    def _watch_fetching(self, hooks: AfterImport) -> None:
        from .facts.workers import Fetching

        Fetching(self._event, self.log).install(hooks)

    def _cover_exit(self) -> None:
        """`os._exit` asks nobody, and is how children of multiprocessing end."""
        original = os._exit

        @functools.wraps(original)
        def _exit(*args: Any, **kwargs: Any) -> Any:
            self._guard("exit", self._steps.work_off_at_exit)
            return original(*args, **kwargs)

        os._exit = _exit

    def mark_step(self) -> None:
        try:
            self._steps.marked()
        except Exception as error:
            self.log("step", error)

    def _event(self, fields: dict[str, Any]) -> None:
        self._writer.event(**fields)

    # When torch is there

    def _torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        self._steps.grad_enabled = torch.is_grad_enabled
        self._window.torch_is_here(torch)
        if self._recorder is not None:
            self._guard("profiler", self._recorder.torch_is_here, torch)
        self._event(
            {
                "event": "torch",
                "version": str(torch.__version__),
                "cuda": getattr(torch.version, "cuda", None),
            }
        )
        if self._state is not None:
            self._guard("state", self._state.torch_is_here, torch)
        self._guard("settings", self._settings.after_torch, torch)
        if self._plan.get("seed") is not None:
            torch.manual_seed(self._plan["seed"])
        self._guard("roots", self._cover_roots, torch)
        self._guard("loaders", self._cover_loaders, torch)
        self._guard("workers", event_hooks.cover_loader_workers, torch, self._worker_begun, self.log)
        self._guard("optimizers", event_hooks.cover_optimizers, torch, self._steps, self._compiled, self.log)
        if self._plan.get("step_on"):
            self._guard("--step-function", marker.torch_is_here, torch, self.mark_step)
        self._guard("graphs", event_hooks.cover_graph_replay, torch, self._replayed, self.log)
        if self._starting is not None:
            self._starting.torch_is_here(torch)

    def _cover_loaders(self, torch: Any) -> None:
        around = self._ceilings.around if self._ceilings is not None else None
        event_hooks.cover_loaders(torch, self._steps, self._loader_begun, self.log, around)

    def _cover_roots(self, torch: Any) -> None:
        around: Around | None = self._settings.around_root if self._settings.wants_around else None
        if self._screen is not None and self._screen.wants_around:
            around = self._screen.around(around)
        if self._state is not None:
            around = self._state.models.around(around)
        if self._results is not None:
            around = self._results.around(around)
        self._roots = roots = Roots(
            torch, self._root_met, self._settings.root_ran, self._steps.called, around, self.log
        )
        roots.watch_all()
        torch.compile = roots.pause(torch.compile)
        self._hooks.call("torch._dynamo.eval_frame", dynamo_skip.skip)
        self._hooks.call("torch._dynamo.callback", lambda module: self._watch_compilations(module, roots))
        # What dynamo takes for the unpatched call must be the original, also when it is imported now.
        self._hooks.call(
            "torch._dynamo.utils", lambda module: setattr(module, "unpatched_nn_module_call", roots.original)
        )

    def _watch_compilations(self, callback: Any, roots: Roots) -> None:
        def begins(*args: Any) -> None:
            self._compiled[:] = [True]
            self._window.num_compilations += 1
            if self._state is not None:
                self._state.compilation_begins(*args)
            self._guard("compilation", roots.compilation_begins)

        handler = callback.callback_handler
        forget = type(handler).clear

        def clear(self: Any) -> None:
            # torch._dynamo.reset() clears the callbacks, ours too.
            forget(self)
            self.register_start_callback(begins)

        handler.register_start_callback(begins)
        type(handler).clear = clear

    def _root_met(self, module: Any) -> None:
        if self._starting is not None:
            self._starting.root_met()
        if self._state is not None:
            self._guard("model", self._state.models.met, module)
        self._settings.on_root(module)

    def _loader_begun(self, key: Key, loader: Any) -> Key:
        key = self._steps.iterator_made(key, loader.dataset)
        if self._ceilings is not None:
            self._ceilings.loader_begun(key)
        if self._screen is not None:
            self._guard("loader", self._screen.loader_begun, loader)
        if self._state is not None:
            self._guard("loader", self._state.loaders.begun, key, loader)
        self._guard("loader", self._settings.on_loader, loader)
        return key

    def _worker_begun(self) -> None:
        """This process works for a loader: what it calls, transforms for instance, are no steps of the program."""
        self._time_nothing()
        self._steps.ignore()
        if self._roots is not None:
            self._roots.watch_only(set())
        if self._state is not None:
            self._state.leave()

    def _time_nothing(self) -> None:
        self._window.done = True
        if self._recorder is not None:
            self._recorder.done = True

    def _grad_enabled(self) -> bool:
        return bool(self._torch.is_grad_enabled())

    def _replayed(self, graph: Any) -> None:
        if self._screen is not None:
            self._screen.replayed()
        if self._roots is None or not self._roots.inside():
            self._steps.replayed(graph)

    # When a step has been found or has ended

    def _search_again(self) -> bool:
        """Whether another step may be searched for: a window, or a trace, is of the one that it began with."""
        if (self._recorder or self._window).has_begun:
            return False
        if self._roots is not None:
            self._roots.watch_all()
        return True

    def _step_fixed(self, description: str, begin_s: float, classes: set[type], num_superseded: int) -> None:
        self._event(
            {
                "event": "cycle",
                "step": description,
                "begin_s": begin_s,
                "num_steps": self._steps.num_steps,
                "num_superseded": num_superseded,
                **self._place_among_ranks(),
            }
        )
        if self._state is not None:
            self._guard("state", self._state.models.step_found)
        if self._roots is not None and self._roots.calls_around:
            self._needed = classes
            self._roots.watch_only(set(classes) | set(self._roots.known_classes()))
        elif self._roots is not None:
            self._roots.watch_only(classes, self._steps.cover_of_anchor)
        self._guard("readback", self._read_back)

    def _new_events(self) -> int:
        """Whether something was compiled or device memory allocated since this was last asked, as flags of a step."""
        if self._recorder is not None and self._recorder.is_told:
            return 0  # it costs what the trace would show
        if self._state is not None:
            return self._new_events_observed(self._state)
        now = (self._window.num_compilations, device_allocations(self._torch))
        # That memory is allocated before the first step is known without asking; what is compiled by then costs most.
        before, self._before = getattr(self, "_before", (0, now[1])), now
        return (COMPILED if now[0] != before[0] else 0) | (ALLOCATED if now[1] != before[1] else 0)

    def _new_events_observed(self, state: State) -> int:
        """The same in steps that are timed: allocations are asked for once in two milliseconds, as it takes 20 µs.

        A step in which something was allocated is longer than others, so it is mostly the one after which is asked.
        """
        compiled, allocated, asked_s = getattr(self, "_before_observed", (0, None, 0.0))
        num, now = self._window.num_compilations, perf_counter()
        flags = state.garbage.flag() | (COMPILED if num != compiled else 0)
        if now - asked_s >= ALLOCATIONS_EVERY_S:
            before, allocated, asked_s = allocated, device_allocations(self._torch), now
            flags |= ALLOCATED if allocated != before else 0
        self._before_observed = num, allocated, asked_s
        return flags

    def _before_window(self) -> None:
        self._guard("settings", self._settings.hold)
        if self._state is not None:
            self._state.window_begins()
            if self._roots is not None and not self._settings.wants_around:
                self._guard("roots", self._roots.call_plainly, self._needed)

    def _window_complete(self, fields: dict[str, Any]) -> None:
        self._guard("memory", self._remember_memory)
        self._guard("readback", self._read_back)
        if self._state is not None:
            self._guard("state", self._say_state, self._state)
        # Last: whoever reads it ends this process.
        self._event({"event": "window", "world_size": 1, **self._place_among_ranks(), **fields})

    def _recorder_complete(self, fields: dict[str, Any]) -> None:
        self._guard("memory", self._remember_memory)
        self._guard("readback", self._read_back)
        self._event(fields)

    def _results_complete(self, fields: dict[str, Any]) -> None:
        self._guard("readback", self._read_back)
        self._event({"event": "guard", **fields})

    def _place_among_ranks(self) -> dict[str, int]:
        """Rank and world size where a process group says them; the environment, read at the start, may not know."""
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return {"rank": int(distributed.get_rank()), "world_size": int(distributed.get_world_size())}
        return {}

    def _say_state(self, state: State) -> None:
        self._event({"event": "state", **self._place_among_ranks(), **state.fields(self._steps.counts)})

    def _read_back(self) -> None:
        self._event({"event": "readback", "settings": self._settings.readback()})

    def _remember_memory(self) -> None:
        self._event({"event": "memory", **observe.memory(self._torch)})

    def _finish(self) -> None:
        self._guard("steps", self._steps.work_off_at_exit)
        if self._recorder is not None:
            self._guard("profiler", self._recorder.finish)
        if self._torch is not None:
            self._guard("memory", self._remember_memory)
            self._guard("readback", self._read_back)
        self._event({"event": "exit", "num_events": self._steps.num_events})

    def _forked(self) -> None:
        """In a forked child: a record of its own, begun when there is something to say.

        It has a window if it is what does the work: when its parent has done nothing yet.
        """
        self._writer.reset_after_fork()
        if self._starting is not None:
            self._starting.forked()
        self._steps.reset_after_fork()
        if self._roots is not None:
            self._roots.reset_after_fork()
        if self._steps.num_steps or self._steps.num_events:
            self._time_nothing()
        atexit.unregister(self._finish)

    def _guard(self, where: str, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            self.log(where, error)
