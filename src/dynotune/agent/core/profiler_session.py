"""Run one session of torch's profiler, and watch the program's own sessions: only one session can exist at a
time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from threading import get_ident

from . import source_location
from .covers import covers
from .cupti import Teardown, variables_kept
from .errors import guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import Any

    from .annotations import Log


_SEVERITY, _NOTHING = "_ZN9libkineto6Logger14severityLevel_E", 100
"""Kineto's variable with the least severity of messages that it prints, and one that no message has."""


@contextlib.contextmanager
def quiet(torch: Any) -> Iterator[None]:
    """Keep Kineto from printing to the program's standard error in this block, where its library has the
    variable."""
    try:
        folder = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
        level = ctypes.c_int.in_dll(ctypes.CDLL(folder), _SEVERITY)
    except (OSError, ValueError):
        yield
        return
    before, level.value = level.value, _NOTHING
    try:
        yield
    finally:
        level.value = before


class PastSessions:
    """Sessions of torch's profiler that Kineto recorded and that have ended.

    `num`: number of sessions. `place`: line of the user's code at which the last session began. `activities`:
    names of what any session recorded, such as "CUDA". `takes_cupti_down`: whether the environment asked
    Kineto, when the last session ended, to take CUPTI down.
    """

    def __init__(
        self,
        num: int = 0,
        place: str = "",
        activities: frozenset[str] = frozenset(),
        takes_cupti_down: bool = False,
    ) -> None:
        self.num = num
        self.place = place
        self.activities = activities
        self.takes_cupti_down = takes_cupti_down

    def followed_by(self, place: str, activities: set[str]) -> PastSessions:
        """Return these sessions and one that ends now."""
        takes_down = os.environ.get("TEARDOWN_CUPTI") == "1"
        return PastSessions(self.num + 1, place, self.activities | activities, takes_down)


class ProgramsProfiler:
    """Watch each session of torch's profiler that the program itself begins.

    `is_running`: whether a session is running. `place`: where in the program the last session began; ""
    without a session. `num_begun`: number of sessions so far. `begins`: function that is called before a
    session begins.
    `past`: the sessions that Kineto recorded and that have ended.
    """

    def __init__(self, torch: Any, log: Log) -> None:
        self.begins: Callable[[], None] | None = None
        self.num_begun = 0
        self.is_running = False
        self.place = ""
        self.past = PastSessions()
        self._activities: set[str] = set()
        self._line = ""
        self._enabled = torch.autograd._profiler_enabled
        self._log = log
        self._ours = 0  # the thread whose sessions are the agent's
        module = torch.autograd.profiler
        for name, running in (
            ("_prepare_profiler", True),
            ("_enable_profiler", True),
            ("_disable_profiler", False),
        ):
            self._cover(module, name, running)

    def in_the_way(self) -> bool:
        """Tell whether a session that begins now would disturb another session."""
        return self.is_running or bool(self._enabled())

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """Mark sessions that begin and end in this block as the agent's, not the program's."""
        before, self._ours = self._ours, get_ident()
        try:
            yield
        finally:
            self._ours = before

    def _cover(self, module: Any, name: str, running: bool) -> None:
        original = getattr(module, name)

        @covers(module, name)
        def covered(*args: Any, **kwargs: Any) -> Any:
            if self._ours != get_ident():
                guarded(self._log, "profiler", self._meet, running, args, kwargs)
            return original(*args, **kwargs)

    def _meet(self, running: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if running and not self.is_running:
            self.place, self._line = _place_in_program(), source_location.line()
            self.num_begun += 1
            if self.begins is not None:
                self.begins()
        if running:
            self._activities = _activities(*args, **kwargs)
        elif self.is_running and self._activities:  # emit_nvtx and emit_itt name none: Kineto records nothing
            self.past = self.past.followed_by(self._line, self._activities)
        self.is_running = running


class Session:
    """Profiler session that prepares in one step and records the following steps, all in one thread.

    `stacks`, `shapes`, `memory`: whether to record these as well. `program`: the watch of the program's
        sessions.
    `ends_anywhere`: whether any thread may end the session; only if asked for, if torch can, and without a
        device, whose work the end waits for: that would break a capture of a CUDA graph in another thread.
    `cupti_stays`: after the end, why CUPTI is still attached; "" if it is not.
    """

    def __init__(
        self,
        torch: Any,
        program: ProgramsProfiler,
        *,
        stacks: bool,
        shapes: bool,
        memory: bool,
        ends_anywhere: bool = False,
    ) -> None:
        profiler = torch.profiler
        kinds = [profiler.ProfilerActivity.CPU]
        # Naming a device that the program does not use would create a context there.
        if torch.cuda.is_initialized() and profiler.ProfilerActivity.CUDA in profiler.supported_activities():
            kinds.append(profiler.ProfilerActivity.CUDA)
        self._annotation = torch.autograd.profiler.record_function
        self._open: Any = None
        self._program = program
        self._teardown = Teardown(torch)
        self._thread = get_ident()
        self.is_recording = False
        self._is_over = False
        config = _of_all_threads(torch) if ends_anywhere and len(kinds) == 1 else None
        self.ends_anywhere = config is not None
        self._profile = profiler._KinetoProfile(
            activities=kinds,
            with_stack=stacks,
            record_shapes=shapes,
            profile_memory=memory,
            experimental_config=config,
        )
        self._torch = torch
        with program.ours(), quiet(torch):
            self._profile.prepare_trace()
        # Up to torch 2.5, the session's end would convert all events to Python objects, which are not needed.
        self._profile.profiler._parse_kineto_results = lambda *args, **kwargs: []
        # A process's first annotation takes 0.7 ms, so it must not fall into the first step.
        self.open("getting ready")
        self.close()

    @property
    def is_here(self) -> bool:
        """Tell whether this thread can end the session."""
        return self.ends_anywhere or get_ident() == self._thread

    def begin(self) -> None:
        with self._program.ours(), variables_kept(), quiet(self._torch):
            self._profile.start_trace()
        self.is_recording = True

    def open(self, name: str) -> None:
        """Begin a step in the trace by the annotation `ProfilerStep#N`, which readers of traces look for."""
        self._open = self._annotation(name)
        self._open.__enter__()

    def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def end(self, *, detach: bool = True) -> None:
        """Stop recording; the profiler first waits for the device. `detach`: whether to detach CUPTI as
        well."""
        self.is_recording, self._is_over = False, True
        teardown = self._teardown if detach else contextlib.nullcontext()
        with self._program.ours(), quiet(self._torch), teardown:
            self._profile.stop_trace()

    @property
    def cupti_stays(self) -> str:
        return self._teardown.stays

    def abandon(self, *, detach: bool) -> None:
        """Release torch's profiler, for the program's own session (which needs CUPTI at once) or
        permanently."""
        if self._is_over:
            return
        self.close()
        if not self.is_recording:
            self.begin()  # a session that is only prepared cannot be ended
        self.end(detach=detach)

    def save(self, path: str) -> None:
        with quiet(self._torch):
            self._profile.export_chrome_trace(path)


def _of_all_threads(torch: Any) -> Any:
    """Return the options of a session that records all threads, and so belongs to none; None if torch has no
    such option."""
    try:
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        return None


def open_optimizer_annotation() -> str | None:
    """Return the name of the profiler annotation around the optimizer's running step; None outside such a
    step."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return None
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == "torch.optim.optimizer":
            name = frame.f_locals.get("profile_name")
            return name if isinstance(name, str) else None
        frame = frame.f_back
    return None


def _activities(config: Any = None, activities: Iterable[Any] = (), **others: Any) -> set[str]:
    """Name what a session records, from the arguments with which torch prepares or enables it."""
    return {activity.name for activity in activities}


def _place_in_program() -> str:
    """Return file and line of the innermost frame outside torch and the agent."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        skip = name == "contextlib" or name.partition(".")[0] == "torch"
        if not skip and not frame.f_code.co_filename.startswith(own):
            return "%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""
