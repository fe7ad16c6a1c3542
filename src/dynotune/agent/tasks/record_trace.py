"""Record a few steady steps with torch's profiler, and write the complete trace or no trace.

A step of the trace lasts from the end of one step to the end of the next, as steps are counted. So a batch
and the whole wait for the batch belong to one step, because loaders are covered around `__next__`. An
optimizer ends its step inside its own annotation; the boundary waits until that annotation is closed, which
otherwise would span two steps.
"""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import sys
from _thread import start_new_thread
from threading import Event
from time import perf_counter

from ..core import reasons
from ..core.allocator_counters import num_device_tensors
from ..core.covers import covers, uncover
from ..core.cupti import other_profiler
from ..core.device import is_capturing, synchronise
from ..core.observe import number
from ..core.profiler_session import Session, open_optimizer_annotation
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.program import Program

# A recording ends after the step that exceeds this, because larger traces cannot be opened. The profiler's
# memory is 0.85 times the size of its output, so this gives a file of 300 MB before compression; at the end
# it is 7 times as much.
MOST_BYTES = 256 << 20
MEMORY_EVERY_S = 0.05
# A trace of the largest size is written in less; the program waits so long where it cannot go on before.
MOST_ENDING_S = 60.0
# The file is a quarter larger than at level 6 but takes half the time, and the program waits for it.
GZIP_LEVEL = 3


class RecordTrace(Task):
    """Prepare the profiler in one step, and record the `num_steps` steps after it."""

    event = "trace"
    needs_torch = True

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._num_steps, self._most_s = max(1, int(order["num_steps"])), float(order["most_s"])
        self._options = {name: bool(order.get(name)) for name in ("stacks", "shapes", "memory")}
        self._session: Session | None = None
        self._pending: tuple[str, int] | None = None
        self._cover: Any = None
        self._first_step = self._num_device_tensors = 0
        self._begin_s = self._last_s = self._asked_s = 0.0
        self._resident_bytes = 0
        self._prepared_s = 0.0
        self._makes_way = False  # for a session that the program begins
        self._has_ended = Event()
        self._outcome: Callable[[], None] | None = None
        self._step_s: list[float] = []
        self._notes: list[str] = []

    def begin(self, num_steps: int) -> int:
        profiler = self.program.profiler
        if profiler.in_the_way():
            self.give_up(profiler.place, code=reasons.PROGRAM_PROFILES, notes=self._notes)
            return num_steps
        if other := other_profiler():
            self.give_up(other, code=reasons.OTHER_PROFILER, notes=self._notes)
            return num_steps
        profiler.begins = self._make_way
        if self._options["stacks"] and sys.getprofile() is not None:
            self._options["stacks"] = False
            self._notes.append("stacks were left out: the program has a profile function of its own")
        self._prepared_s, self._resident_bytes = perf_counter(), _resident_bytes()
        # A running job, into which the agent was loaded, does not wait for the recording's end.
        self._session = Session(
            self.program.torch, profiler, ends_anywhere=self.program.steps.is_joined, **self._options
        )
        self._cover_annotations()
        return num_steps + 1

    def step_ended(self, num_steps: int) -> int:
        if self._session is not None and self._session.is_here and not self.is_ending:
            annotation = open_optimizer_annotation()
            if annotation is None:
                self._boundary(self._session, num_steps)
            else:
                self._pending = annotation, num_steps
        return num_steps + 1

    @property
    def is_here(self) -> bool:
        return self._session is None or self._session.is_here

    def overdue(self) -> str:
        """Bound the recording of a program that makes no step any more, as in an evaluation."""
        if self.is_ending:
            return ""
        since_s = perf_counter() - max(self._prepared_s, self._last_s)
        if since_s > self._most_s:
            return "no step ended for %.0f s" % since_s
        grown_bytes = _resident_bytes() - self._resident_bytes
        # Beyond the usual bound, so that a step which ends now still ends the recording with a trace.
        is_large = grown_bytes >= MOST_BYTES * 5 // 4
        return "its memory grew by %d MiB" % (grown_bytes >> 20) if is_large else ""

    def at_exit(self) -> None:
        if self.is_ending:
            self._has_ended.wait(MOST_ENDING_S)
            self._settle()
        reason = "the recording began"
        if self._session is not None:
            reason = "more than %d of %d steps were recorded" % (len(self._step_s), self._num_steps)
        self.give_up(reason, code=reasons.PROGRAM_ENDED, at_exit=True, notes=self._notes)

    def clean_up(self) -> None:
        if self.is_ending:
            self._has_ended.wait(MOST_ENDING_S)
        if self._cover is not None:
            uncover(self.program.torch.autograd.profiler.record_function, "__exit__", self._cover)
        if self.program.profiler is not None:
            self.program.profiler.begins = None
        session, self._session = self._session, None
        if session is not None and session.is_here and not self.is_ending:
            session.abandon(detach=not self._makes_way)

    # The session

    def _cover_annotations(self) -> None:
        kind = self.program.torch.autograd.profiler.record_function
        original = kind.__exit__

        @covers(kind, "__exit__")
        def __exit__(annotation: Any, *args: Any) -> Any:
            result = original(annotation, *args)
            if self._pending is not None and self._pending[0] == annotation.name:
                self._annotation_closed()
            return result

        self._cover = __exit__

    def _annotation_closed(self) -> None:
        session = self._session
        if self._pending is None or session is None or self.done or not session.is_here:
            return
        (_, num_steps), self._pending = self._pending, None
        try:
            self._boundary(session, num_steps)
        except Exception as error:
            self.failed(error)

    def _boundary(self, session: Session, num_steps: int) -> None:
        """Begin or end the recording of a step, between two steps."""
        now = perf_counter()
        if is_capturing(self.program.torch):
            return
        if not session.is_recording:
            # Work queued before would run inside the first step without its launches in the trace.
            synchronise(self.program.torch)
            session.begin()
            self._first_step, self._resident_bytes = num_steps, _resident_bytes()
            self._num_device_tensors = num_device_tensors(self.program.torch)
            self._begin_s = self._asked_s = perf_counter()
        else:
            session.close()
            self._step_s.append(now - self._last_s)
            if stopped_by := self._enough(now):
                self._stop(session, now, stopped_by)
                return
        session.open("ProfilerStep#%d" % num_steps)
        self._last_s = perf_counter()

    def _enough(self, now: float) -> str:
        if len(self._step_s) >= self._num_steps:
            return "steps"
        if now - self._begin_s >= self._most_s:
            return "time"
        # Not in every fast step, because the check takes 20 µs.
        if now - self._asked_s < MEMORY_EVERY_S:
            return ""
        self._asked_s = now
        return "memory" if _resident_bytes() - self._resident_bytes >= MOST_BYTES else ""

    def _stop(self, session: Session, end_s: float, stopped_by: str) -> None:
        synchronise(self.program.torch)
        num_tensors = num_device_tensors(self.program.torch) - self._num_device_tensors
        fields = {
            "first_step": self._first_step,
            "num_steps": len(self._step_s),
            "begin_s": self._begin_s,
            "end_s": end_s,
            "step_s": self._step_s,
            "stopped_by": stopped_by,
            "num_device_tensors": num_tensors,
        }
        if session.ends_anywhere:
            self.is_ending = True
            start_new_thread(self._end_beside, (session, fields))
        else:
            self._write_trace(session, fields)()

    def _end_beside(self, session: Session, fields: dict[str, Any]) -> None:
        """End the session in a thread of the agent, while the program makes further steps."""
        try:
            self._outcome = self._write_trace(session, fields)
        except Exception as error:
            self._outcome = functools.partial(self.failed, error)
        self._has_ended.set()
        self.program.steps.between_events(self._settle, MOST_ENDING_S)

    def _settle(self) -> bool:
        """Tell what came of the recording, once."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            outcome()
        return outcome is not None

    def _write_trace(self, session: Session, fields: dict[str, Any]) -> Callable[[], None]:
        """End the session and write its trace; return what tells so.

        Raises OSError: see `_write`.
        """
        session.end()
        self._session = None
        name = self._file_name()
        num_bytes, cupti_stays = _write(session, self.program.folder, name), session.cupti_stays
        return lambda: self.complete(
            file=name,
            reason="",
            num_bytes=num_bytes,
            cupti_stays=cupti_stays,
            notes=self._notes,
            **fields,
            **self._options,
        )

    def _file_name(self) -> str:
        rank = self.program.ranks().get("rank", number("RANK"))
        stem = "trace-pid%d" % os.getpid() if rank is None else "trace-rank%d" % rank
        taken = set(os.listdir(self.program.folder))
        # Do not let a running job into which the agent was loaded wait for the compression.
        ending = ".json" if self.program.steps.is_joined else ".json.gz"
        names = (stem + middle + ending for middle in ["", *("-%d" % number for number in range(2, 1000))])
        return next(name for name in names if name not in taken)

    # Without a trace

    def _make_way(self) -> None:
        """End the recording when the program begins a profiler session, because only one session can
        exist."""
        if self.is_ending:
            self._has_ended.wait(MOST_ENDING_S)
        elif not self.done and self._session is not None:
            self._makes_way = True
            self.give_up(self.program.profiler.place, code=reasons.PROGRAM_PROFILES, notes=self._notes)

    def failed(self, error: Exception) -> None:
        if isinstance(error, OSError):
            self.give_up("it could not be written: %s" % (error.strerror or error), notes=self._notes)
        else:
            super().failed(error)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _write(session: Session, folder: str, name: str) -> int:
    """Write the trace, readable by its owner only, and compressed if its name says so; return its bytes.

    Raises OSError: the disk has no room for the trace; no partial file remains.
    """
    path = os.path.join(folder, name)
    plain, packed = path + ".plain", path + ".partial"
    try:
        session.save(plain)
        _refuse_cut_short(plain)
        if not name.endswith(".gz"):
            os.chmod(plain, 0o600)
            os.replace(plain, path)
            return os.path.getsize(path)
        descriptor = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(plain, "rb") as source, os.fdopen(descriptor, "wb") as file:
            target = gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)
            shutil.copyfileobj(source, target, 1 << 20)
            target.close()
        os.replace(packed, path)
    finally:
        # The profiler first writes to its own temporary name, and leaves that file if there is no room.
        for left in os.listdir(folder):
            if left.startswith((name + ".plain", name + ".partial")):
                os.unlink(os.path.join(folder, left))
    return os.path.getsize(path)


def _refuse_cut_short(path: str) -> None:
    """Raise OSError if the file does not end like JSON, because the profiler does not report a full disk."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("the trace was cut short: is there room in the run folder?")
