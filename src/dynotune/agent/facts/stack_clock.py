"""Sample the main thread's stack during the whole run, so that the parent can say where its time went.

Each sample counts for the time since the sample before it: a sample comes late while code holds the
interpreter's lock, and that code is then still on the stack. The interval between samples grows with the run,
so that the cost falls and the record of a day has a few megabytes.

A child that the program forks has no sampling thread. The thread ends before each fork and begins again after
it, so that Python sees as many threads at a fork as without the agent, and no lock is held in the child.

The thread holds no object of the program's while the program may run, so that none is freed in it, and it
collects no garbage. Stacks are not sampled in a program that may have several interpreters or has no lock.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import weakref
from functools import partial
from itertools import accumulate, chain, repeat, starmap, takewhile
from operator import attrgetter, is_not
from time import perf_counter, sleep
from types import FrameType

from ..core.errors import guarded
from ..core.interpreters import MAKING_INTERPRETERS, may_be_several
from ..core.source_location import WHOSE_AGENT, WHOSE_USER, short_path, whose_file
from .collector_hold import CollectorHold, at_once
from .sample_parts import line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.hooks import AfterImport
    from ..core.program import Program

Code = tuple[str, str, int]  # file, name and first line: code itself would keep its constants alive
Frame = tuple[str, str, int, int]  # and one of its lines; 0 where lines do not matter
Place = tuple[Code, int, str]  # with its line now, and whose code it is

SHORTEST_S, LONGEST_S = 0.02, 0.5
OF_THE_RUN = 1 / 4000
"""Interval between samples as a share of the run so far."""
FLUSH_SHORTEST_S, FLUSH_LONGEST_S = 0.1, 10.0
FLUSH_OF_THE_RUN = 0.005
"""Time between events as a share of the run so far: a killed program loses so much of its samples."""
MOST_FRAMES = 200
DEEPEST = 60
CUTS = ((6000, DEEPEST), (7000, 8), (7100, 1), (7101, 0))
"""Once there are so many stacks, further ones are cut to the next number of outermost frames."""
MOST_OWNERS = 20_000
GOLDEN = 0.618
"""Varies the intervals, so that samples do not fall into step with a program's own period."""
PATIENCE_S = 0.2
SEVERAL = "the program may have several interpreters, whose threads Python cannot walk safely"
NO_LOCK = "this Python runs threads without the interpreter's lock"
_is_frame = partial(type.__instancecheck__, FrameType)


class StackClock:
    """Sample from `begin` until `end`; `begin` runs in the main thread.

    `program`: torch, steps and outermost modules are read from it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._turn, self._pid = 0, os.getpid()
        self._wake, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._hold = CollectorHold()
        self._changes = _thread.RLock()  # of what follows: threads may fork at once
        self._num_forking = 0
        self._thread_id: int | None = None
        self._of_program, self._begun_s = _thread.get_ident(), perf_counter()
        self._owners: dict[tuple[str, object, object], str] = {}
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._new_frames: list[tuple[Frame, str]] = []
        self._new_stacks: list[list[int]] = []
        self._samples: list[tuple[float, int, int]] = []
        self._sampled_s = self._flushed_s = self._begun_s
        self._trained: list[weakref.ref[Any]] | None = None

    def begin(self, hooks: AfterImport) -> None:
        """Begin to sample this thread, and hold still around each fork; end before a second interpreter."""
        is_without_lock = not getattr(sys, "_is_gil_enabled", lambda: True)()
        if is_without_lock or may_be_several():
            self._tell_end(NO_LOCK if is_without_lock else SEVERAL)
            return
        for name in MAKING_INTERPRETERS:
            hooks.call_before(name, self._end_for_interpreters)
        self._hold.cover()
        self._start()
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child
        )

    def end(self) -> None:
        """End for good, and write what was sampled."""
        if self._turn <= 0 or os.getpid() != self._pid:
            return
        with self._changes:
            turn, self._turn = self._turn, -1
            if turn > 0:
                guarded(self._program.log, "account", self._stop)
                self._hold.uncover()
                guarded(self._program.log, "account", self._flush)

    def _end_for_interpreters(self) -> None:
        if self._turn > 0:
            self.end()
            self._tell_end(SEVERAL)

    def _tell_end(self, why: str) -> None:
        self._program.event({"event": "stacks_end", "why": why, "at_s": perf_counter()})

    def _start(self) -> None:
        """Start the sampling thread, unless an earlier one has not ended, which reads a file that hangs."""
        if self._ended.locked():
            return
        self._turn += 1
        self._wake, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._wake.acquire()
        self._ended.acquire()
        self._hold.begin()
        try:
            # Not by the threading module, so that the program sees no thread that it did not start.
            _thread.start_new_thread(self._look, (self._turn, self._wake, self._ended))
        except RuntimeError:  # no thread can be started
            self._hold.end()
            self._ended.release()
            raise

    def _stop(self) -> None:
        """Wait until the sampling thread has ended, also for the kernel."""
        if self._wake.locked():
            self._wake.release()
        if self._ended.acquire(True, PATIENCE_S):
            self._ended.release()
            path = "/proc/self/task/%d" % (self._thread_id or 0)
            for _ in range(20):
                if not os.path.exists(path):
                    break
                sleep(0.0001)

    def _before_fork(self) -> None:
        if self._turn > 0 and os.getpid() == self._pid:
            with self._changes:
                self._num_forking += 1
                if self._num_forking == 1:
                    self._turn += 1
                    guarded(self._program.log, "account", self._stop)

    def _after_fork(self) -> None:
        if self._turn > 0 and os.getpid() == self._pid:
            with self._changes:
                self._num_forking -= 1
                if self._num_forking == 0 and self._turn > 0:
                    guarded(self._program.log, "account", self._start)

    def _in_child(self) -> None:
        self._turn, self._changes = -1, _thread.RLock()  # another thread may have held it
        self._hold.end()  # if the thread did not end in time
        self._hold.uncover()

    # In the sampling thread, which holds the collector unless it waits

    def _look(self, turn: int, wake: Any, ended: Any) -> None:
        try:
            self._thread_id = _thread.get_native_id()
            # The program may block a signal in its own threads to wait for it: it must not arrive here.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            number, acquire = 0, wake.acquire
            while not self._hold.while_off(acquire, True, self._interval_s(number)):
                if self._turn != turn or os.getpid() != self._pid:
                    break
                number += 1
                self._take()
        except Exception as error:
            if self._turn == turn:  # otherwise the interpreter is ending
                guarded(self._program.log, "account", self._program.log, "account", error)
        finally:
            self._hold.end()
            ended.release()

    def _interval_s(self, number: int) -> float:
        usual_s = min(LONGEST_S, max(SHORTEST_S, (perf_counter() - self._begun_s) * OF_THE_RUN))
        return usual_s * (0.75 + 0.5 * (number * GOLDEN % 1.0))

    def _take(self) -> None:
        """Take one sample."""
        if may_be_several():
            return
        at_s = perf_counter()
        places = self._places()
        stack = tuple(reversed(list(_telling(places))))
        owners = {code: owner for code, _, owner in places}
        self._samples.append((at_s, self._number(stack, owners), self._evaluates()))
        flush_s = min(FLUSH_LONGEST_S, max(FLUSH_SHORTEST_S, (at_s - self._begun_s) * FLUSH_OF_THE_RUN))
        if at_s - self._flushed_s >= flush_s:
            self._flush()

    def _places(self) -> list[Place]:
        """Return the stack, the innermost frame first."""
        modules = [map(attrgetter("f_globals"), self._walk()) for _ in range(2)]
        found = at_once(
            map(attrgetter(*_OF_FRAME), self._walk()),
            map(dict.get, modules[0], repeat("__name__")),
            map(dict.get, modules[1], repeat("__file__")),
        )
        num = len(found) // 3
        return [
            ((file, name, first), line or 0, self._owner(file, module, module_file))
            for (file, name, first, line), module, module_file in zip(
                found[:num], found[num : 2 * num], found[2 * num :]
            )
        ]

    def _walk(self) -> Iterator[FrameType]:
        """Return the frames of the program's thread in functions in C: a frame that the program leaves
        meanwhile would be freed here, with the objects of its function."""
        innermost: Iterator[Any] = map(dict.get, starmap(sys._current_frames, ((),)), (self._of_program,))
        # The last step lets go of the last frame.
        steps: Iterator[Any] = chain(repeat("f_back", MOST_FRAMES - 1), ("f_code",))
        return takewhile(_is_frame, accumulate(chain(innermost, steps), getattr))

    def _owner(self, file: str, module: object, module_file: object) -> str:
        key = file, module if type(module) is str else "", module_file if type(module_file) is str else ""
        known = self._owners.get(key)
        if known is None:
            if len(self._owners) >= MOST_OWNERS:
                self._owners.clear()
            known = self._owners[key] = whose_file(file, {"__name__": key[1], "__file__": key[2]})
        return known

    def _number(self, stack: tuple[Frame, ...], owners: dict[Code, str]) -> int:
        if len(stack) > DEEPEST:
            stack = stack[: DEEPEST // 2] + stack[-DEEPEST // 2 :]
        for most, deepest in CUTS:
            stack = stack[:deepest]
            number = self._stacks.get(stack)
            if number is None and len(self._stacks) < most:
                number = self._stacks[stack] = len(self._stacks)
                self._new_stacks.append([self._frame(frame, owners[frame[:3]]) for frame in stack])
            if number is not None:
                return number
        return 0

    def _frame(self, frame: Frame, owner: str) -> int:
        number = self._frames.get(frame)
        if number is None:
            number = self._frames[frame] = len(self._frames)
            self._new_frames.append((frame, owner))
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
        return int(any(mode is False for mode in at_once(*map(_training, self._trained))))

    # What is written

    def _flush(self) -> None:
        self._flushed_s = perf_counter()
        samples, self._samples = self._samples, []
        frames, self._new_frames = self._new_frames, []
        stacks, self._new_stacks = self._new_stacks, []
        if not samples:
            return
        begin_s, self._sampled_s = self._sampled_s, samples[-1][0]
        makers = self._data_set_constructors() if any(f[1] == "__init__" for f, _ in frames) else set()
        first = len(self._frames) - len(frames)
        self._program.event(
            {
                "event": "stacks",
                "begin_s": round(begin_s, 5),
                "frames": [
                    "%s(%d): %s" % (short_path(file), line or begins, name)
                    for (file, name, begins, line), _ in frames
                ],
                "texts": [line_of(file, line) if line else "" for (file, _, _, line), _ in frames],
                "own": [first + at for at, (_, owner) in enumerate(frames) if owner == WHOSE_USER],
                "makes_data": [first + at for at, (frame, _) in enumerate(frames) if frame[:3] in makers],
                "stacks": stacks,
                "seen": [[round(at_s, 5), stack, evaluates] for at_s, stack, evaluates in samples],
            }
        )

    def _data_set_constructors(self) -> set[Code]:
        """Return the code of the constructors of all classes of data sets."""
        data: Any = getattr(getattr(self._program.torch, "utils", None), "data", None)
        waiting = [getattr(data, "Dataset", object)] if data is not None else []
        found: set[Code] = set()
        while waiting:
            kind = waiting.pop()
            code = getattr(vars(kind).get("__init__"), "__code__", None)
            if code is not None:
                found.add((code.co_filename, code.co_name, code.co_firstlineno))
            waiting += kind.__subclasses__()
        return found


_OF_FRAME = "f_code.co_filename", "f_code.co_name", "f_code.co_firstlineno", "f_lineno"


def _telling(places: list[Place]) -> Iterator[Frame]:
    """Yield the frames that tell activities apart, the innermost first: the program's own lines, and for
    other code the outermost function of each run of frames in one file."""
    for at, (code, line, owner) in enumerate(places):
        if owner == WHOSE_USER:
            yield (*code, line)
        elif owner != WHOSE_AGENT:
            outer = places[at + 1][0] if at + 1 < len(places) else None
            if outer is None or outer[0] != code[0]:
                yield (*code, 0)


def _training(model: weakref.ref[Any]) -> Iterator[Any]:
    """Yield the mode of a model in functions in C: a model that the program drops must not be freed here."""
    alive = takewhile(partial(is_not, None), starmap(model, ((),)))
    return map(dict.get, map(attrgetter("__dict__"), alive), ("training",))
