"""Connect the agent to a program that runs already, and take it out again."""

from __future__ import annotations

import atexit
import functools
import sys
from time import perf_counter

from .attach import Agent, read_plan
from .core import observe
from .core.covers import replaced
from .core.device import is_capturing
from .core.living_objects import note_frozen, watch_freezing
from .core.pieces import Pieces
from .core.writer import Writer
from .own_modules import forget_modules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from .core.forks import Forks
    from .core.pending_call import PendingCall
    from .facts.living import Living

PATIENCE_S = 1.0
"""Seconds that the main thread, which was interrupted, waits for the agent's own thread."""


class JoinedAgent(Agent):
    """An agent that comes late, by means alone that can be undone, and leaves again."""

    @classmethod
    def in_running_program(cls, folder: str, pid: int, forks: Forks) -> JoinedAgent:
        """Connect the agent to a program that has imported torch and runs; `leave` takes it out again.

        `pid`: this process's id as dynotune sees it, which differs in a container. `forks`: tells of the
        program's forks.
        """
        plan = read_plan(folder)
        agent = cls(Writer(folder, plan, pid), plan, folder)
        try:
            agent._join(pid, forks)
        except BaseException:
            agent.leave()
            raise
        return agent

    def __init__(self, writer: Writer, plan: dict[str, Any], folder: str) -> None:
        super().__init__(writer, plan, folder)
        if self._state is not None:
            self._state.lists_objects = False
        self._undo = self._torch_covers.undo
        self._pending_call: PendingCall | None = None
        self._too_long = ""

    def _join(self, pid: int, forks: Forks) -> None:
        """Connect to a program that runs, by means alone that can be undone: no audit hook, no seed, no stub.

        Forks leave at once: they are workers of loaders, or programs of their own.
        """
        from .facts.living import Living

        torch: Any = sys.modules["torch"]
        self._steps.is_joined = True
        self._program.pid = pid
        self._writer.event(event="process", **{**observe.process(), "pid": pid}, late=True)
        forks.in_child = functools.partial(self._guard, "fork", self._leave_in_child)
        self._cover_exit()
        atexit.register(self._finish)
        self._undo.append(lambda: atexit.unregister(self._finish))
        self._hooks.install()
        self._undo.append(self._hooks.remove)
        watch_freezing(self.log)
        pause = Pieces().pause
        note_frozen(pause)
        living = Living(torch, pause)
        if torch.utils.data.get_worker_info() is not None:
            self._join_worker(torch, living)
            return
        # What compiled code has seen must stay as it is, or it would be compiled again.
        self._torch_covers.compiled[:] = [True] * living.is_compiled
        for optimizer in living.optimizers:
            self._steps.optimizers.add(optimizer)
        # At an iterator's next batch, in the program's own thread, whose line is the place of its loader.
        self._torch_covers.unknown_iterator = lambda iterator: self._take_over(iterator, living)
        if self._state is not None:
            self._watch_fetches()
        self._torch_is_here(torch)
        if living.is_compiled and self._state is not None:
            for module in living.roots:
                self._guard("model", self._state.models.met, module)

    def _join_worker(self, torch: Any, living: Living) -> None:
        """Time what a loader's worker fetches; its steps are those of the process that draws its batches."""
        self._event({"event": "torch", "version": str(torch.__version__), "time_s": perf_counter()})
        self._worker_begun()
        if self._state is not None:
            self._watch_fetches()
            for fetcher in living.fetchers:
                self._guard("fetcher", self._cover_fetcher, torch, fetcher)

    def _cover_fetcher(self, torch: Any, fetcher: Any) -> None:
        if self._fetching is not None and self._fetch_delay is not None:
            self._fetching.cover_fetcher(torch, fetcher)
            self._fetch_delay.cover_fetcher(torch, fetcher)

    def _take_over(self, iterator: Any, living: Living) -> None:
        """Note an iterator that was made before the agent came, and time what it fetches in this process."""
        if self._program.loaders is None:
            return  # its covers are still being put in place
        self._program.loaders.take_over(iterator, living.loader_of(iterator))
        fetcher = getattr(iterator, "_dataset_fetcher", None)
        if fetcher is not None:
            self._cover_fetcher(self._program.torch, fetcher)

    def _leave_in_child(self) -> None:
        self._forked()
        self._writer.close()
        self._tasks.ignore()  # a recording cannot be ended in a fork
        self._take_out()
        forget_modules()

    @property
    def is_busy(self) -> bool:
        """Tell whether a task is under way, which the program's own thread has to end between two steps."""
        return self._tasks.is_busy

    @property
    def is_recording(self) -> bool:
        return self._tasks.is_recording

    def bound_recording(self, reason: str = "") -> None:
        """Have the main thread give up a recording that takes too long or too much memory, or for `reason`.

        Only the thread that began a session of the profiler can end it, and may make no step for long.
        """
        reason = self._tasks.overdue() or (reason if self.is_recording else "")
        if not reason:
            return
        if self._pending_call is None:
            from .core.pending_call import PendingCall

            self._pending_call = PendingCall(self._end_recording)
            self._undo.append(self._pending_call.cancel)
        self._too_long = reason
        self._pending_call.ask()

    def _end_recording(self) -> None:
        """Give up the recording, unless the main thread was interrupted while it begins or ends a session."""
        package = __name__.rpartition(".")[0]
        within = {package + name for name in (".core.profiler_session", ".core.cupti", ".tasks.record_trace")}
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_globals.get("__name__") in within:
                return
            frame = frame.f_back
        if not is_capturing(self._program.torch):
            end = functools.partial(self._tasks.end_recording, self._too_long)
            self._guard("recording", self._steps.unless_within, end, PATIENCE_S)

    def leave_between_tasks(self, patience_s: float, *, anyway: bool) -> bool:
        """Leave unless a task is under way, or `anyway`; tell whether the agent has left.

        A task that begins meanwhile in the program's own thread would put in place what was just taken out.
        """

        def leave() -> bool:
            if self.is_busy and not anyway:
                return False
            self.leave()
            return True

        return self._steps.between_events(leave, patience_s)

    def ask_to_end_tasks(self) -> None:
        """Have the program's thread give up the present task at the end of its next step."""
        self._tasks.is_leaving = True
        self._steps.look_soon()

    def leave(self) -> None:
        """Take the agent out of the program: hooks, covers, callbacks and the record's mapping.

        The last event names covers that the program has covered since; they stay, and do nothing.
        """
        try:
            self._guard("tasks", self._tasks.leave)
            self._event({"event": "left", "stay": self._take_out()})
        finally:
            self._writer.close()

    def _take_out(self) -> list[str]:
        self._guard("steps", self._steps.ignore)
        if self._state is not None:
            self._guard("state", self._state.leave)
        if self._fetching is not None:
            from .core.fetch_delay import let_go_of_pages

            self._guard("fetching", self._fetching.look_no_more)
            self._undo.append(let_go_of_pages)
        while self._undo:
            self._guard("leaving", self._undo.pop())
        stay = replaced.restore()
        if self._program.roots is not None:
            stay += self._guard("modules", self._program.roots.leave) or []
        return stay

    def _cover_workers(self, torch: Any) -> None:
        """Leave the workers' loop as it is: forks leave by themselves, and a start that is under way would
        find another loop than it is about to pickle."""
