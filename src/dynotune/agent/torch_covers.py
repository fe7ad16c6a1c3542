"""Cover what a program calls of torch, and tell the agent's parts of each call."""

from __future__ import annotations

import functools

from .core.covers import on_compilations, replace, skip_agent_code
from .core.errors import guarded
from .steps import event_hooks
from .steps.outermost_modules import OutermostModules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .core.annotations import Around, Key
    from .core.errors import ErrorLog
    from .core.hooks import AfterImport
    from .core.program import Program
    from .facts.frames import Frames
    from .sites.other_arm import OtherArm
    from .sites.settings import Settings
    from .tasks.queue import TaskQueue
    from .tasks.startup_spans import StartupSpans


class TorchCovers:
    """Covers of torch in one process. `frames`, `startup`: None in a run without them.

    Attributes:
        compiled: not empty once the process compiles, or if it had compiled before the agent came.
        unknown_iterator: is called with an iterator that was made before the agent came; None if there is
            none.
        undo: functions that take out what is no cover, for an agent that leaves.
    """

    def __init__(
        self,
        program: Program,
        hooks: AfterImport,
        log: ErrorLog,
        *,
        settings: Settings,
        other_arm: OtherArm,
        tasks: TaskQueue,
        frames: Frames | None,
        startup: StartupSpans | None,
    ) -> None:
        self._program, self._hooks, self._log = program, hooks, log
        self._guard = functools.partial(guarded, log)
        self._settings, self._other_arm, self._tasks = settings, other_arm, tasks
        self._frames, self._startup = frames, startup
        self.compiled: list[bool] = []
        self.unknown_iterator: Callable[[Any], None] | None = None
        self.undo: list[Callable[[], object]] = []

    def cover_roots(self, torch: Any) -> None:
        program, state = self._program, self._program.state
        around: Around | None = self._settings.around_root if self._settings.wants_around else None
        if state is not None:
            around = state.models.around(around)
        if self._frames is not None:
            around = self._frames.around(around)
        around = self._tasks.around(around)
        program.roots = roots = OutermostModules(
            torch, self._root_met, self._settings.root_ran, program.steps.called, around, self._log
        )
        if self.compiled:
            roots.compilation_began()
        roots.watch_all()
        replace(torch, "compile", roots.pause(torch.compile))
        self._hooks.call("torch._dynamo.eval_frame", skip_agent_code)
        self._hooks.call("torch._dynamo.callback", lambda module: self._watch_compilations(module, roots))
        # dynamo must take the original call for the unpatched one, also if dynamo is imported now.
        self._hooks.call(
            "torch._dynamo.utils", lambda module: replace(module, "unpatched_nn_module_call", roots.original)
        )

    def cover_loaders(self, torch: Any) -> None:
        self._program.loaders = event_hooks.LoaderHooks(
            torch, self._program.steps, self._loader_begun, self._log, self.unknown_iterator
        )

    def cover_optimizers(self, torch: Any) -> None:
        self.undo.append(event_hooks.cover_optimizers(torch, self._program.steps, self.compiled, self._log))

    def cover_graphs(self, torch: Any) -> None:
        event_hooks.cover_graph_replay(torch, self._replayed, self._log)

    def _watch_compilations(self, callback: Any, roots: OutermostModules) -> None:
        program = self._program

        def begins(*args: Any) -> None:
            self.compiled[:] = [True]
            if not program.num_compilations:
                self._guard("compilation", program.event, {"event": "compiles"})
            program.num_compilations += 1
            if program.state is not None:
                program.state.compilation_begins(*args)
            self._guard("compilation", roots.compilation_begins)

        on_compilations(callback, lambda handler: handler.register_start_callback(begins))
        self.undo.append(lambda: callback.callback_handler.remove_start_callback(begins))

    def _root_met(self, module: Any) -> None:
        if self._startup is not None:
            self._startup.root_met()
        if self._program.state is not None:
            self._guard("model", self._program.state.models.met, module)
        if self._frames is not None:
            self._frames.num_models += 1
        self._settings.on_root(module)

    def _loader_begun(self, key: Key, loader: Any) -> Key:
        key = self._program.steps.iterator_made(key, loader.dataset)
        self._guard("loader", self._program.loader_begun, key, loader)
        if self._program.state is not None:
            self._guard("loader", self._program.state.loaders.begun, key, loader)
        self._guard("loader", self._settings.on_loader, loader)
        self._guard("loader", self._other_arm.on_loader, loader)
        return key

    def _replayed(self, graph: Any) -> None:
        self._program.replays_graphs = True
        roots = self._program.roots
        if roots is None or not roots.inside():
            self._program.steps.replayed(graph)
