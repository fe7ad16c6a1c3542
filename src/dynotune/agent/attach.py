"""Connect the agent's parts in one process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import sys
from time import perf_counter

from .core import allocator_counters, observe
from .core.allocator_counters import device_allocations
from .core.covers import covers
from .core.device import is_capturing, synchronise
from .core.errors import ErrorLog, guarded
from .core.hooks import AfterImport
from .core.living_objects import watch_freezing
from .core.program import Program
from .core.writer import ALLOCATED, COMPILED, Writer
from .facts import stacks
from .facts.frames import Frames
from .sites.other_arm import OtherArm
from .sites.settings import Settings
from .steps import event_hooks, marker, samples
from .steps.steps import Steps
from .tasks.queue import TaskQueue
from .torch_covers import TorchCovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core.fetch_delay import FetchDelay
    from .facts.fetching import Fetching
    from .facts.stack_clock import StackClock
    from .facts.state import State
    from .tasks.startup_spans import StartupSpans

ALLOCATIONS_EVERY_S = 0.002
_MOST_PARTS = 12  # of a cycle in its event


class Agent:
    """The agent of one process. The agent's parts do not know each other; this class passes events between
    them."""

    @classmethod
    def from_environment(cls) -> Agent:
        folder = os.environ["DYNOTUNE_RUN"]
        plan = read_plan(folder)
        agent = cls(Writer(folder, plan), plan, folder)
        agent._attach()
        return agent

    def __init__(self, writer: Writer, plan: dict[str, Any], folder: str) -> None:
        self._writer, self._plan = writer, plan
        self.log = ErrorLog(self._event)
        self._guard = functools.partial(guarded, self.log)
        self._hooks = AfterImport(self.log)
        self._program = program = Program(folder, self._event, self.log)
        self._settings = Settings(plan["settings"], program)
        self._other_arm = OtherArm(plan.get("other_arm") or [], program)
        self._state: State | None = None
        if plan.get("observe"):
            from .facts.state import State

            self._state = State(self.log)
        self._frames: Frames | None = None
        if plan.get("frames"):
            self._frames = Frames(
                self._event, samples.in_call, self._peak_device_bytes, plan["frames"], self.log
            )
        self._startup: StartupSpans | None = None
        whole = bool(plan.get("account"))
        if plan.get("startup") or whole:
            from .tasks.startup_spans import StartupSpans

            # The bootstrap recorded when this process reached its first line.
            package = sys.modules.get(__name__.rpartition(".")[0])
            begun_s = getattr(package, "begun_s", perf_counter())
            self._startup = StartupSpans(begun_s, self._event, self.log, whole=whole)
        self._clock: StackClock | None = None
        if whole:
            from .facts.stack_clock import StackClock

            self._clock = StackClock(program)
        self._fetching: Fetching | None = None
        self._fetch_delay: FetchDelay | None = None
        self._is_watched = bool(plan.get("watched"))
        self._needed: set[type] = set()
        self._events_before: tuple[int, int | None, float] = 0, None, 0.0
        program.state = self._state
        program.prepare, program.before_result = self._before_task, self._before_result
        program.say_state, program.watch_calls = self._say_state, self._watch_calls
        self._tasks = TaskQueue(program, plan.get("tasks") or [], live=bool(plan.get("live")))
        self._steps = program.steps = Steps(
            grad_enabled=lambda: bool(program.torch.is_grad_enabled()),
            record=writer.step,
            # Measured runs do not ask whether a step allocated memory, since that costs more than recording
            # the step.
            flags_now=self._new_events if plan.get("note_events") or self._state is not None else None,
            reached=self._tasks.reached,
            fixed=self._step_fixed,
            search_again=self._search_again,
            has_stepped=self._state.optimizers.stepped if self._state is not None else None,
            marked_by_hand=bool(plan.get("step_function")),
            phase=plan.get("phase"),
            wait=self._wait_for_device if plan.get("sync_steps") else None,
        )
        self._torch_covers = TorchCovers(
            program,
            self._hooks,
            self.log,
            settings=self._settings,
            other_arm=self._other_arm,
            tasks=self._tasks,
            frames=self._frames,
            startup=self._startup,
        )

    def _attach(self) -> None:
        self._writer.event(event="process", **observe.process())
        watch = observe.EnvironmentWatch(self._event, self._settings.is_kept, self.log)
        watch.install()
        self._settings.before_torch()
        hooks, plan = self._hooks, self._plan
        hooks.install()
        if self._state is not None or plan.get("tasks") or plan.get("live"):
            watch_freezing(self.log)
        self._settings.on_imports(hooks)
        if plan.get("seed") is not None:
            random.seed(plan["seed"])
            hooks.call("numpy.random", lambda module: module.seed(plan["seed"] % 2**32))
        hooks.call("torch", self._torch_is_here)
        if self._state is not None:
            from .facts.program_options import ProgramOptions
            from .facts.trainers import Trainers

            self._watch_fetches()
            Trainers(self._event, self.log).install(hooks)
            ProgramOptions(self._event, self._writer.without_secrets, self.log).install(hooks)
        if plan.get("step_function") and plan["step_function"] != "dynotune.step":
            marker.wrap_function(plan["step_function"], hooks, self._step_function_ended, self.log)
        hooks.offer_stub("dynotune", {"step": self.mark_step, "frame_done": self.frame_done})
        atexit.register(self._finish)
        self._cover_exit()
        os.register_at_fork(after_in_child=self._forked)
        if self._clock is not None:
            self._guard("account", self._clock.begin, hooks)
        if self._startup is not None:
            self._startup.install(hooks)

    def _watch_fetches(self) -> None:
        from .core.fetch_delay import FetchDelay
        from .facts.fetching import Fetching
        from .facts.pinning import Pinning

        self._fetching = Fetching(self._event, self.log)
        self._fetch_delay = FetchDelay(self._program.folder, self.log)
        # The delay comes last and so is outside: fetches are timed without it.
        for part in (self._fetching, self._fetch_delay, Pinning(self._event, self.log)):
            part.install(self._hooks)

    def _cover_exit(self) -> None:
        """Cover `os._exit` too, which skips exit handlers and ends children of multiprocessing."""
        original = os._exit

        @covers(os, "_exit")
        def _exit(*args: Any, **kwargs: Any) -> Any:
            self._guard("exit", self._steps.work_off_at_exit)
            if self._clock is not None:
                self._clock.end()
            return original(*args, **kwargs)

    def mark_step(self) -> None:
        self._guard("step", self._steps.marked)

    def _step_function_ended(self, begin_s: float) -> None:
        """Note the return of the function that the user named as the step; its call began at `begin_s`."""
        if self._program.step_function_ended is not None:
            self._guard("call", self._program.step_function_ended, begin_s)
        self.mark_step()

    def frame_done(self, stream: object, since_s: float) -> None:
        if self._frames is not None:
            self._guard("frames", self._frames.marked, stream, since_s)

    def _event(self, fields: dict[str, Any]) -> None:
        self._writer.event(**fields)

    # After torch is imported

    def _torch_is_here(self, torch: Any) -> None:
        program, state = self._program, self._state
        program.torch = torch
        if self._plan.get("pretend"):
            from .fake.device import pretend

            self._guard("pretended device", pretend, torch, self._plan["pretend"], program)
        self._steps.grad_enabled = torch.is_grad_enabled
        self._guard("allocator's counters", allocator_counters.keep, torch)
        if self._tasks.takes_traces or state is not None:
            from .core.profiler_session import ProgramsProfiler

            program.profiler = self._guard("profiler", ProgramsProfiler, torch, self.log)
        cuda = getattr(torch.version, "cuda", None)
        self._event(
            {"event": "torch", "version": str(torch.__version__), "cuda": cuda, "time_s": perf_counter()}
        )
        if state is not None:
            self._guard("state", state.torch_is_here, torch, program.profiler)
        self._guard("settings", self._settings.after_torch)
        if self._plan.get("seed") is not None:
            torch.manual_seed(self._plan["seed"])
        self._guard("tasks", self._tasks.torch_is_here)
        self._guard("modules", self._torch_covers.cover_roots, torch)
        self._guard("loaders", self._torch_covers.cover_loaders, torch)
        self._guard("workers", self._cover_workers, torch)
        self._guard("optimizers", self._torch_covers.cover_optimizers, torch)
        if self._plan.get("step_function"):
            self._guard("--step-function", marker.torch_is_here, torch, self._step_function_ended)
        self._guard("graphs", self._torch_covers.cover_graphs, torch)
        if self._startup is not None:
            self._startup.torch_is_here(torch)

    def _cover_workers(self, torch: Any) -> None:
        event_hooks.cover_loader_workers(torch, self._worker_begun, self.log)

    def _worker_begun(self) -> None:
        """Note that this process works for a loader, so its calls (such as transforms) are not steps of the
        program."""
        self._tasks.ignore()
        self._steps.ignore()
        self._end_account()
        self._program.pretended = None
        if self._program.roots is not None:
            self._program.roots.watch_only(set())
        if self._state is not None:
            self._state.leave()

    def _peak_device_bytes(self) -> int | None:
        return observe.memory(self._program.torch).get("peak_device_bytes")

    def _wait_for_device(self) -> None:
        """Wait for the device at the end of a step that is timed individually."""
        if not is_capturing(self._program.torch):
            synchronise(self._program.torch)

    # Called after a step has been found or has ended.

    def _search_again(self) -> bool:
        """Tell whether to search for another kind of step; not during a task, whose step must not change."""
        if self._tasks.has_begun:
            return False
        if self._program.roots is not None:
            self._program.roots.watch_all()
        return True

    def _step_fixed(
        self,
        parts: list[dict[str, Any]],
        begin_s: float,
        classes: set[type],
        num_superseded: int,
        call_samples: int | None,
    ) -> None:
        listens = self._is_watched and not self._steps.is_joined  # a signal's file could not be closed
        stacks_by = self._guard("stacks", stacks.listen, self._program.folder) if listens else None
        self._event(
            {
                "event": "cycle",
                "parts": parts[:_MOST_PARTS],
                "num_parts": len(parts),
                "kinds": self._steps.kinds,
                "begin_s": begin_s,
                "num_steps": self._steps.num_steps,
                "num_superseded": num_superseded,
                "call_samples": call_samples,
                "stacks_by": stacks_by,
                **self._program.ranks(),
            }
        )
        if self._state is not None:
            self._guard("state", self._state.models.step_found)
        self._needed = classes
        self._guard("modules", self._watch_calls)
        self._guard("readback", self._read_back)

    def _watch_calls(self) -> None:
        """Cover only the calls that steps, settings or the recorded state need."""
        roots = self._program.roots
        if roots is None:
            return
        if roots.around is not None:
            roots.watch_only(self._needed | set(roots.known_classes()))
        else:
            roots.watch_only(self._needed, self._steps.cover_of_anchor)

    def _new_events(self) -> int:
        """Return a step's flags for events since the last call: compilations, new device memory, garbage
        collections.

        Allocations are read at most once in two milliseconds, because reading takes 20 µs. A step with an
        allocation is longer than others, so the read mostly follows that step. Traced steps are not checked,
        because the trace would show the check.
        """
        if self._tasks.is_recording:
            return 0
        state, now = self._state, perf_counter()
        num, allocated, asked_s = self._events_before
        compilations = self._program.num_compilations
        flags = (state.garbage.flag() if state is not None else 0) | (COMPILED if compilations != num else 0)
        if now - asked_s >= ALLOCATIONS_EVERY_S:
            before, allocated, asked_s = allocated, device_allocations(self._program.torch), now
            flags |= ALLOCATED if allocated != before else 0
        self._events_before = compilations, allocated, asked_s
        return flags

    # Before and after tasks

    def _before_task(self) -> None:
        """Restore the settings' values, and stop recording the program's state, before a task begins."""
        self._guard("settings", self._settings.hold)
        self._end_account()
        roots = self._program.roots
        if self._state is not None and self._frames is not None:
            self._frames.takes_calls = False
        if self._state is not None and roots is not None and not self._settings.wants_around:
            self._guard("modules", roots.call_plainly, self._needed)

    def _end_account(self) -> None:
        """Record no stacks and no spans from now on, because measured steps are to be as without."""
        if self._clock is not None and self._startup is not None:
            self._clock.end()
            self._startup.end()

    def _before_result(self) -> None:
        self._guard("memory", lambda: self._event({"event": "memory", **observe.memory(self._program.torch)}))
        self._guard("readback", self._read_back)

    def _say_state(self) -> None:
        state = self._state
        if state is not None:
            self._event({"event": "state", **self._program.ranks(), **state.fields(self._steps.counts)})

    def _read_back(self) -> None:
        already = self._other_arm.already()
        self._event({"event": "readback", "settings": self._settings.readback(), "already": already})

    def _say_out_of_memory(self) -> None:
        roots = self._program.roots.alive() if self._program.roots is not None else []
        found = observe.out_of_memory(self._program.torch, roots, list(self._steps.optimizers))
        if found is not None:
            self._event({"event": "out_of_memory", **found})

    # The end of this process, and its child processes

    def _finish(self) -> None:
        self._guard("steps", self._steps.work_off_at_exit)
        if self._frames is not None:
            self._guard("frames", self._frames.write)
        self._guard("tasks", self._tasks.at_exit)
        if self._program.torch is not None:
            self._before_result()
            self._guard("out of memory", self._say_out_of_memory)
        if self._clock is not None:
            self._clock.end()
        self._event({"event": "exit", "num_events": self._steps.num_events, "at_s": perf_counter()})

    def _forked(self) -> None:
        """Give a forked child its own record, which begins with the child's first event.

        The child accepts tasks if the child does the program's work, that is, if the parent has not run any
        step yet.
        """
        self._writer.reset_after_fork()
        if self._startup is not None:
            self._startup.end()  # the child's start is not the program's
        self._steps.reset_after_fork()
        if self._frames is not None:
            self._frames.reset_after_fork()
        if self._program.roots is not None:
            self._program.roots.reset_after_fork()
        if self._steps.num_steps or self._steps.num_events:
            self._tasks.ignore()
        atexit.unregister(self._finish)


def read_plan(folder: str) -> dict[str, Any]:
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    return plan
