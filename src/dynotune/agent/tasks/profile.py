"""Records a few steady steps with torch's profiler, once, and writes the trace whole or not at all.

A step of the trace is a step as it is counted: from where one ended to where the next one ends. So a batch lies with
its whole wait in one step, as loaders are covered around `__next__`. A step that an optimizer ends, it ends inside its
own annotation: the boundary waits until that one is closed, or it would lie across two steps.
"""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import sys
from time import perf_counter

from ..core.errors import by_a_signal
from ..core.profiler_session import ProgramsProfiler, Session, open_optimizer_annotation
from .start_signal import Told
from .window import NEVER, is_capturing, synchronise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.hooks import Event, Log

# Limits that end a recording after the step in which they are passed: a trace that nobody can open helps nobody. The
# profiler holds 0.85 times what it writes, so this makes a file of 300 MB before it is packed; and seven times as much
# when it ends.
MOST_S = 60.0
MOST_BYTES = 256 << 20
MEMORY_EVERY_S = 0.05
# A quarter larger than at level 6, in half the time; the program waits for it.
GZIP_LEVEL = 3


class Profile:
    """Begins after the step that it is told, lets the profiler get ready in one step and records those after it.

    Args:
        folder: where the trace goes.
        from_step: steps before it begins; None to be told.
        options: fields of `schema.run.TracePlan`.
        rank: says this process's rank; None where there is none.
        prepare: called before it begins.
        complete: called as `complete(fields)` when the trace is written, or why there is none.
    """

    def __init__(
        self,
        folder: str,
        from_step: int | None,
        options: dict[str, Any],
        *,
        rank: Callable[[], int | None],
        prepare: Callable[[], None],
        complete: Event,
        log: Log,
    ) -> None:
        self._folder, self._told = folder, Told(folder, from_step, options.get("num_steps"))
        self._options = {name: bool(options.get(name)) for name in ("stacks", "shapes", "memory")}
        self._rank, self._prepare, self._complete, self._log = rank, prepare, complete, log
        self._torch: Any = None
        self._program: Any = None
        self._session: Session | None = None
        self._pending: tuple[str, int] | None = None
        self._uncover: Callable[[], None] = lambda: None
        self._first_step = 0
        self._begin_s = self._last_s = self._asked_s = 0.0
        self._resident_bytes = 0
        self._step_s: list[float] = []
        self._notes: list[str] = []
        self._makes_steps = False
        self.done = False

    @property
    def is_told(self) -> bool:
        """Whether it is known where it begins."""
        return self._told.step is not None

    @property
    def has_begun(self) -> bool:
        return self._session is not None

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        self._program = ProgramsProfiler(torch, self._make_way, self._log)

    def reached(self, num_steps: int) -> int:
        """`num_steps` have ended, the last one now. The number at which to be called next."""
        if self.done:
            return NEVER
        self._makes_steps = True
        try:
            if self._session is not None:
                self._step_ended(num_steps)
            elif self._told.step is None:
                return self._told.look(num_steps)
            elif num_steps < self._told.step:
                return self._told.step
            elif not is_capturing(self._torch):
                self._begin()
        except Exception as error:
            self._failed(error)
        return NEVER if self.done else num_steps + 1

    def finish(self) -> None:
        """The program ends. Of a process without steps, such as a launcher, there is nothing to say."""
        if self._makes_steps and not self.done:
            self._give_up(
                "the program ended with %d of %d steps recorded" % (len(self._step_s), self._told.num_steps or 0)
                if self._session is not None
                else "the program ended before the recording began",
                at_exit=True,
            )

    # The session

    def _begin(self) -> None:
        if self._program.in_the_way():
            self._give_up(_own_words(self._program.place))
            return
        self._prepare()
        if self._options["stacks"] and sys.getprofile() is not None:
            self._options["stacks"] = False
            self._notes.append("stacks were left out: the program has a profile function of its own")
        self._session = Session(self._torch, self._program, **self._options)
        self._cover_annotations()

    def _step_ended(self, num_steps: int) -> None:
        if self._session is None or not self._session.is_here:
            return
        annotation = open_optimizer_annotation()
        if annotation is None:
            self._boundary(self._session, num_steps)
        else:
            self._pending = annotation, num_steps

    def _cover_annotations(self) -> None:
        kind = self._torch.autograd.profiler.record_function
        original = kind.__exit__

        @functools.wraps(original)
        def __exit__(annotation: Any, *args: Any) -> Any:
            result = original(annotation, *args)
            if self._pending is not None and self._pending[0] == annotation.name:
                self._annotation_closed()
            return result

        def uncover() -> None:
            if kind.__exit__ is __exit__:
                kind.__exit__ = original

        kind.__exit__, self._uncover = __exit__, uncover

    def _annotation_closed(self) -> None:
        session = self._session
        if self._pending is None or session is None or self.done or not session.is_here:
            return
        (_, num_steps), self._pending = self._pending, None
        try:
            self._boundary(session, num_steps)
        except Exception as error:
            self._failed(error)

    def _boundary(self, session: Session, num_steps: int) -> None:
        """Between two steps."""
        now = perf_counter()
        if is_capturing(self._torch):
            return
        if not session.is_recording:
            # What was queued before would run inside the first step without a launch to show for it.
            synchronise(self._torch)
            session.begin()
            self._first_step, self._resident_bytes = num_steps, _resident_bytes()
            self._begin_s = self._asked_s = perf_counter()
        else:
            session.close()
            self._step_s.append(now - self._last_s)
            stopped_by = self._enough(now)
            if stopped_by:
                self._end(session, now, stopped_by)
                return
        session.open("ProfilerStep#%d" % num_steps)
        self._last_s = perf_counter()

    def _enough(self, now: float) -> str:
        if len(self._step_s) >= (self._told.num_steps or 1):
            return "steps"
        if now - self._begin_s >= MOST_S:
            return "time"
        # Not in every fast step: it takes 20 µs to ask.
        if now - self._asked_s < MEMORY_EVERY_S:
            return ""
        self._asked_s = now
        return "memory" if _resident_bytes() - self._resident_bytes >= MOST_BYTES else ""

    def _end(self, session: Session, end_s: float, stopped_by: str) -> None:
        synchronise(self._torch)
        session.end()
        self._uncover()
        name = self._file_name()
        num_bytes = _write(session, self._folder, name)
        self._finished(
            {
                "file": name,
                "reason": "",
                "first_step": self._first_step,
                "num_steps": len(self._step_s),
                "begin_s": self._begin_s,
                "end_s": end_s,
                "step_s": self._step_s,
                "stopped_by": stopped_by,
                "num_bytes": num_bytes,
                "notes": self._notes,
                **self._options,
            }
        )

    def _file_name(self) -> str:
        rank = self._rank()
        name = "trace-pid%d.json.gz" % os.getpid() if rank is None else "trace-rank%d.json.gz" % rank
        if os.path.exists(os.path.join(self._folder, name)):
            name = name[: -len(".json.gz")] + "-pid%d.json.gz" % os.getpid()
        return name

    # Without a trace

    def _make_way(self) -> None:
        """The program begins a session of its own: there can only be one, and it is theirs."""
        if not self.done and self._session is not None:
            self._give_up(_own_words(self._program.place))

    def _failed(self, error: Exception) -> None:
        if by_a_signal(error):
            raise error
        if isinstance(error, OSError):
            self._give_up("it could not be written: %s" % (error.strerror or error))
        else:
            self._give_up("recording it failed: %s: %s" % (type(error).__name__, error))

    def _give_up(self, reason: str, at_exit: bool = False) -> None:
        self._uncover()
        session, self._session = self._session, None
        self._finished({"file": None, "reason": reason, "at_exit": at_exit, "notes": self._notes})
        if session is not None and session.is_here:
            try:
                session.abandon()
            except Exception as error:
                self._log("profiler", error)

    def _finished(self, fields: dict[str, Any]) -> None:
        # First: what goes wrong from here on must not bring it back.
        self.done = True
        self._complete(fields)


def _own_words(place: str) -> str:
    return "the program uses torch's profiler itself" + (" (%s)" % place if place else "")


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _write(session: Session, folder: str, name: str) -> int:
    """Write the trace, packed and readable by its owner alone; its size.

    Raises:
        OSError: there is no room for it; nothing is left behind.
    """
    path = os.path.join(folder, name)
    plain, packed = path + ".plain", path + ".partial"
    try:
        session.save(plain)
        _refuse_cut_short(plain)
        descriptor = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(plain, "rb") as source, os.fdopen(descriptor, "wb") as file:
            target = gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)
            shutil.copyfileobj(source, target, 1 << 20)
            target.close()
        os.replace(packed, path)
    finally:
        # The profiler writes to a name of its own at first, and leaves that when there is no room.
        for left in os.listdir(folder):
            if left.startswith((name + ".plain", name + ".partial")):
                os.unlink(os.path.join(folder, left))
    return os.path.getsize(path)


def _refuse_cut_short(path: str) -> None:
    """The profiler does not say when the disk is full.

    Raises:
        OSError: the file does not end as JSON does.
    """
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("the trace was cut short: is there room in the run folder?")
