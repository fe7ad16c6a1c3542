"""Sample the main thread's stack during the whole run, so that the parent can say where its time went.

Each sample counts for the time since the sample before it: a sample comes late while code holds the
interpreter's lock, and that code is then still on the stack. The interval between samples grows with the run,
so that the cost falls and the record of a day has a few megabytes.

A child that the program forks has no sampling thread. The thread ends before each fork and begins again after
it, so that Python sees as many threads at a fork as without the agent, and no lock is held in the child.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import weakref
from time import perf_counter, sleep

from ..core.errors import guarded
from ..core.source_location import WHOSE_AGENT, WHOSE_USER, function, whose
from .sample_parts import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

    from ..core.program import Program

Frame = tuple[int, int]  # identity of code, and one of its lines; 0 where lines do not matter

SHORTEST_S, LONGEST_S = 0.02, 0.5
OF_THE_RUN = 1 / 4000
"""Interval between samples as a share of the run so far."""
FLUSH_SHORTEST_S, FLUSH_LONGEST_S = 0.1, 10.0
FLUSH_OF_THE_RUN = 0.005
"""Time between events as a share of the run so far: a killed program loses so much of its samples."""
MOST_FRAMES = 200
MOST_STACKS = 6000
"""Further stacks are cut to their outermost frames."""
DEEPEST, CUT = 60, 8
GOLDEN = 0.618
"""Varies the intervals, so that samples do not fall into step with a program's own period."""
PATIENCE_S = 0.2


class StackClock:
    """Sample from `begin` until `end`; `begin` runs in the main thread.

    `program`: torch, steps and outermost modules are read from it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._turn, self._pid = 0, os.getpid()
        self._wake, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._thread_id: int | None = None
        self._of_program, self._begun_s = _thread.get_ident(), perf_counter()
        # Owner of the code and its number among the frames, by identity; the code is kept alive.
        self._codes: dict[int, tuple[str, CodeType]] = {}
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._new_frames: list[Frame] = []
        self._new_stacks: list[list[int]] = []
        self._samples: list[tuple[float, int, int]] = []
        self._sampled_s = self._flushed_s = self._begun_s
        self._trained: list[weakref.ref[Any]] | None = None

    def begin(self) -> None:
        """Begin to sample this thread, and hold still around each fork."""
        self._start()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child
        )

    def end(self) -> None:
        """End for good, and write what was sampled."""
        turn, self._turn = self._turn, -1
        if turn > 0:
            guarded(self._program.log, "account", self._stop)
            guarded(self._program.log, "account", self._flush)

    def _start(self) -> None:
        self._turn += 1
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._ended.acquire(False)
        # Do not use the threading module, so that the program sees no thread that it did not start.
        _thread.start_new_thread(self._look, (self._turn, self._wake, self._ended))

    def _stop(self) -> None:
        """Wait until the sampling thread has ended, also for the kernel."""
        self._wake.release()
        if self._ended.acquire(True, PATIENCE_S):
            path = "/proc/self/task/%d" % (self._thread_id or 0)
            for _ in range(20):
                if not os.path.exists(path):
                    break
                sleep(0.0001)

    def _before_fork(self) -> None:
        if self._turn > 0 and os.getpid() == self._pid and _thread.get_ident() != self._thread_id:
            self._turn += 1
            guarded(self._program.log, "account", self._stop)

    def _after_fork(self) -> None:
        if self._turn > 0 and os.getpid() == self._pid:
            guarded(self._program.log, "account", self._start)

    def _in_child(self) -> None:
        self._turn = -1

    # In the sampling thread

    def _look(self, turn: int, wake: Any, ended: Any) -> None:
        self._thread_id = _thread.get_native_id()
        number = 0
        try:
            # The program may block a signal in its own threads to wait for it: it must not arrive here.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while not wake.acquire(True, self._interval_s(number)):
                if self._turn != turn or os.getpid() != self._pid:
                    break
                number += 1
                self._take()
        except Exception as error:
            if self._turn == turn:  # otherwise the interpreter is ending
                guarded(self._program.log, "account", self._program.log, "account", error)
        finally:
            ended.release()

    def _interval_s(self, number: int) -> float:
        usual_s = min(LONGEST_S, max(SHORTEST_S, (perf_counter() - self._begun_s) * OF_THE_RUN))
        return usual_s * (0.75 + 0.5 * (number * GOLDEN % 1.0))

    def _take(self) -> None:
        """Take one sample. No reference to a frame is kept: a frame keeps the objects of its function
        alive."""
        taken: list[tuple[CodeType, int, dict[str, Any]]] = []
        frame: FrameType | None = sys._current_frames().get(self._of_program)
        while frame is not None and len(taken) < MOST_FRAMES:
            taken.append((frame.f_code, frame.f_lineno or 0, frame.f_globals))
            frame = frame.f_back
        at_s = perf_counter()
        stack = tuple(reversed(list(self._compact(taken))))
        self._samples.append((at_s, self._number(stack), self._evaluates()))
        flush_s = min(FLUSH_LONGEST_S, max(FLUSH_SHORTEST_S, (at_s - self._begun_s) * FLUSH_OF_THE_RUN))
        if at_s - self._flushed_s >= flush_s:
            self._flush()

    def _compact(self, taken: list[tuple[CodeType, int, dict[str, Any]]]) -> Iterator[Frame]:
        """Yield the frames that tell activities apart, the innermost first: the program's own lines, and for
        other code the outermost function of each run of frames in one file."""
        for at, (code, line, module) in enumerate(taken):
            owner = self._owner(code, module)
            if owner == WHOSE_USER:
                yield id(code), line
            elif owner != WHOSE_AGENT:
                outer = taken[at + 1][0] if at + 1 < len(taken) else None
                if outer is None or outer.co_filename != code.co_filename:
                    yield id(code), 0

    def _owner(self, code: CodeType, module: dict[str, Any]) -> str:
        known = self._codes.get(id(code))
        if known is None:
            known = self._codes[id(code)] = whose(code, module), code
        return known[0]

    def _number(self, stack: tuple[Frame, ...]) -> int:
        if len(stack) > DEEPEST:
            stack = stack[: DEEPEST // 2] + stack[-DEEPEST // 2 :]
        number = self._stacks.get(stack)
        if number is None and len(self._stacks) >= MOST_STACKS:
            stack = stack[:CUT]
            number = self._stacks.get(stack)
        if number is None:
            number = self._stacks[stack] = len(self._stacks)
            self._new_stacks.append([self._frame(frame) for frame in stack])
        return number

    def _frame(self, frame: Frame) -> int:
        number = self._frames.get(frame)
        if number is None:
            number = self._frames[frame] = len(self._frames)
            self._new_frames.append(frame)
        return number

    def _evaluates(self) -> int:
        """Return 1 if a model that trains in the steps is in evaluation mode now, else 0."""
        program = self._program
        steps, roots = program.steps, program.roots
        if self._trained is None:
            if roots is None or not steps.num_steps:
                return 0
            trained = [root for root in roots.alive() if root.__dict__.get("training")]
            self._trained = [weakref.ref(root) for root in trained] if len(steps.optimizers) else []
        for reference in self._trained:
            root = reference()
            if root is not None and root.__dict__.get("training") is False:
                return 1
        return 0

    # What is written

    def _flush(self) -> None:
        self._flushed_s = perf_counter()
        samples, self._samples = self._samples, []
        frames, self._new_frames = self._new_frames, []
        stacks, self._new_stacks = self._new_stacks, []
        if not samples:
            return
        begin_s, self._sampled_s = self._sampled_s, samples[-1][0]
        codes = [(self._codes[identity][1], line) for identity, line in frames]
        makers = self._data_set_constructors() if any(c.co_name == "__init__" for c, _ in codes) else set()
        owners = [self._codes[identity][0] for identity, _ in frames]
        first = len(self._frames) - len(frames)
        self._program.event(
            {
                "event": "stacks",
                "begin_s": round(begin_s, 5),
                "frames": [function(code, line or None) for code, line in codes],
                "texts": [text_of(code, line) if line else "" for code, line in codes],
                "own": [first + at for at, owner in enumerate(owners) if owner == WHOSE_USER],
                "makes_data": [first + at for at, (code, _) in enumerate(codes) if code in makers],
                "stacks": stacks,
                "seen": [[round(at_s, 5), stack, evaluates] for at_s, stack, evaluates in samples],
            }
        )

    def _data_set_constructors(self) -> set[CodeType]:
        """Return the code of the constructors of all classes of data sets."""
        data: Any = getattr(getattr(self._program.torch, "utils", None), "data", None)
        waiting = [getattr(data, "Dataset", object)] if data is not None else []
        found: set[CodeType] = set()
        while waiting:
            kind = waiting.pop()
            code = getattr(vars(kind).get("__init__"), "__code__", None)
            if code is not None:
                found.add(code)
            waiting += kind.__subclasses__()
        return found
