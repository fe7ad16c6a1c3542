"""Sample which source lines the program's threads execute, and in which step, about eighty times a second.

The sampling thread runs when it gets the interpreter's lock: when an operator or system call releases the
lock, or after the switch interval, which is 5 ms and longer than most source lines take. So the sampling
thread lowers the interval to 10 µs while it waits for the lock, in programs whose threads do not compete for
the lock, and has the kernel wake it at once, not 50 µs later. At 100 µs, a line that took less time and
preceded an operator was never sampled.

The thread that released the lock requests the lock again at once, and then runs for 5 ms. So all stacks are
copied first, in as few instructions as possible, and read afterwards.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from ..core.interpreters import frames_of_threads
from ..core.source_location import WHOSE_AGENT, WHOSE_INSTALLED, WHOSE_TORCH, WHOSE_USER, function, whose
from .sample_parts import SampleParts, text_of
from .threads import schedstat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import CodeType, FrameType
    from typing import Any

    from ..core.annotations import Taken

Frame = tuple[int, int]  # identity of code, and one of its lines
Key = tuple[int, int, int, int, str]  # the first, third and fourth are identities of code, 0 for none

INTERVAL_S = 0.012
SWITCH_S = 1e-5
SLACK_NS = 1000
MOST_FRAMES = 200
MOST_THREADS = 16
# Rare lines of a thread are left out.
MOST_LINES = 30
MOST_MOMENTS = 4000
# Parts of torch that show an activity of the program: drawing data, writing files.
_TELLING = tuple(
    os.sep + os.path.join("torch", *name) for name in (("utils", "data", ""), ("serialization.py",))
)
_LOADER = os.sep + os.path.join("torch", "utils", "data", "dataloader.py")
_SELECTORS = os.sep + "selectors.py"
LOADER, EVENT_LOOP = "loader", "event-loop"
_OF_PROGRAM = (WHOSE_USER, WHOSE_INSTALLED)


class Seen:
    """Samples of one thread at each place in the program, and the thread's processor time there, in
    nanoseconds.

    The thread may have run elsewhere since the last sample: half of the samples of a short sleep come right
    after other work. So the smaller of the two processor times, before and after each sample, is also summed
    up.
    """

    def __init__(self) -> None:
        self.num, self.cpu_ns = 0, 0
        self.at: dict[Key, list[int]] = {}
        self._last: tuple[list[int], int] | None = None

    def add(self, key: Key, cpu_ns: int) -> None:
        if self._last is not None:
            self._last[0][2] += min(self._last[1], cpu_ns)
        self.num += 1
        self.cpu_ns += cpu_ns
        found = self.at.setdefault(key, [0, 0, 0])
        found[0] += 1
        found[1] += cpu_ns
        self._last = found, cpu_ns


class Moments:
    """Stacks of the thread that runs the steps, outermost frame first, each with the step of its sample."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._seen: list[tuple[int, int]] = []

    def add(self, stack: list[Frame], step: int) -> None:
        """Add `stack`, whose first frame is the innermost."""
        if len(self._seen) < MOST_MOMENTS:
            self._seen.append((self._stacks.setdefault(tuple(reversed(stack)), len(self._stacks)), step))

    def facts(self, code_of: Callable[[int], CodeType]) -> dict[str, Any]:
        """Return `frames` and their `texts`; `stacks` of frame numbers; `seen`, pairs of stack number and
        step."""
        numbers: dict[Frame, int] = {}
        known, seen = list(self._stacks), list(self._seen)  # the sampling thread may add entries meanwhile
        stacks = [[numbers.setdefault(frame, len(numbers)) for frame in stack] for stack in known]
        frames = [(code_of(identity), line) for identity, line in numbers]
        return {
            "frames": [function(code, line) for code, line in frames],
            "texts": [text_of(code, line) for code, line in frames],
            "stacks": stacks,
            "seen": [(stack, step) for stack, step in seen if stack < len(known)],
        }


class Lines:
    """Sample stacks from `begin` until `facts`; the thread that calls `begin` runs the steps.

    `among`: threads to sample for parts of samples, which are few and change; None for all threads.
    """

    def __init__(self, among: Container[int] | None = None) -> None:
        self._among = among
        self._seen: dict[int, Seen] = {}
        # Owner of the code, and whether it appears in stacks. Keyed by identity: comparing code is slow.
        self._known: dict[int, tuple[str, CodeType, bool]] = {}
        self._of_steps = 0
        self._turn = 0  # a thread of an earlier sampler ends by itself
        self._cpu_ns = 0
        self._ran_ns: dict[int, int | None] = {}
        self._switch_s: float | None = None  # the program's own interval, if it was lowered
        self._step: Callable[[], int] | None = None
        self._moments = Moments()
        self._parts: dict[int, SampleParts] = {}  # by thread; the threads in `among` share one entry

    def begin(self, step: Callable[[], int] | None = None) -> None:
        """Begin to sample; `step` returns the thread's present step, None without steps."""
        self._step, self._moments = step, Moments()
        self._seen, self._parts, self._of_steps = {}, {}, _thread.get_ident()
        self._ran_ns = {ident: ran_ns for ident, (_, ran_ns) in _threads().items()}
        self._clock = time.pthread_getcpuclockid(self._of_steps)
        self._cpu_ns = time.clock_gettime_ns(self._clock)
        self._turn += 1
        if not _has_threads_of_its_own(self._of_steps) and sys.getswitchinterval() > SWITCH_S:
            self._switch_s = sys.getswitchinterval()
        # Do not use the threading module, so that the program sees no thread that it did not start.
        _thread.start_new_thread(self._look, (self._turn, os.getpid(), self._switch_s))

    def end(self) -> None:
        """Sample no more."""
        self._turn += 1
        _wait_for_lock(self._switch_s, False)
        self._switch_s = None

    def facts(self) -> list[dict[str, Any]]:
        """Return the samples of each thread that ran the user's code, beginning with the thread that runs the
        steps."""
        if not self._turn:
            return []
        self.end()
        threads, found = _threads(), []
        for ident, seen in list(self._seen.items()):
            lines = self._lines(ident, seen)
            if not lines and ident != self._of_steps:
                continue
            name, ran_ns = threads.get(ident, ("", None))
            before_ns = self._ran_ns.get(ident, 0)
            ran_s = None if ran_ns is None or before_ns is None else (ran_ns - before_ns) * 1e-9
            of_steps = ident == self._of_steps
            found.append(
                {
                    "name": name,
                    "of_steps": of_steps,
                    "num": seen.num,
                    "cpu_s": seen.cpu_ns * 1e-9 if of_steps else ran_s,
                    "lines": lines[:MOST_LINES],
                    "parts": self.parts(ident),
                }
            )
        self._seen = {}
        return sorted(_most_first(found), key=lambda thread: not thread["of_steps"])[:MOST_THREADS]

    def moments(self) -> dict[str, Any] | None:
        """Return the stacks of the thread that runs the steps, by step; None without samples."""
        return (
            self._moments.facts(lambda identity: self._known[identity][1]) if self._step is not None else None
        )

    def parts(self, ident: int = 0) -> list[dict[str, Any]]:
        """Return how a thread's time divides into parts of making a sample; by default for all threads in
        `among`."""
        return self._parts[ident].facts() if ident in self._parts else []

    def _lines(self, ident: int, seen: Seen) -> list[dict[str, Any]]:
        lines = [self._line(key, counts, ident) for key, counts in list(seen.at.items()) if key[0]]
        return _most_first(lines)

    def _line(self, key: Key, counts: list[int], ident: int) -> dict[str, Any]:
        (own, line, callee, leaf, inside), (num, cpu_ns, least_ns) = key, counts
        return {
            "function": function(self._known[own][1], line),
            "text": text_of(self._known[own][1], line),
            "callee": function(self._known[callee][1]) if callee else "",
            "leaf": function(self._known[leaf][1]) if leaf != own else "",
            "inside": inside,
            "num": num,
            "cpu_s": cpu_ns * 1e-9 if ident == self._of_steps else None,
            "least_cpu_s": least_ns * 1e-9 if ident == self._of_steps else None,
        }

    def _look(self, turn: int, pid: int, own_s: float | None) -> None:
        me = _thread.get_ident()
        _be_woken_at_once()
        looked_ns = time.perf_counter_ns()
        try:
            while self._turn == turn and os.getpid() == pid:
                _wait_for_lock(own_s, True)
                time.sleep(INTERVAL_S)
                taken, ran_ns = self._take(me)
                before_ns, looked_ns = looked_ns, time.perf_counter_ns()
                _wait_for_lock(own_s, False)
                for ident, stack in taken if self._turn == turn and os.getpid() == pid else ():
                    if ident in self._seen or len(self._seen) < 4 * MOST_THREADS:
                        self._see(ident, stack, ran_ns, looked_ns - before_ns)
        except (
            Exception
        ):  # the thread of the steps has ended, or the interpreter is ending: return the samples so far
            return

    def _take(self, me: int) -> tuple[list[tuple[int, list[Taken]]], int]:
        """Copy all stacks, innermost frame first, the steps' thread before others; and that thread's
        processor time.

        Do not keep a reference to a frame: a frame keeps all objects of its function alive. The frame of this
        function would also form a reference cycle with its own variable.
        """
        frames, taken = frames_of_threads(), []
        frames.pop(me, None)
        for ident, innermost in ((self._of_steps, frames.pop(self._of_steps, None)), *frames.items()):
            frame: FrameType | None = innermost
            stack: list[Taken] = []
            while frame is not None and len(stack) < MOST_FRAMES:
                stack.append((frame.f_code, frame.f_lineno or 0, frame.f_globals, frame.f_lasti))
                frame = frame.f_back
            # If this thread lost the lock meanwhile, the frames were read at different points in time.
            if (
                innermost
                and innermost.f_lasti == stack[0][3]
                and (self._among is None or ident in self._among)
            ):
                taken.append((ident, stack))
        return taken, time.clock_gettime_ns(self._clock)

    def _see(self, ident: int, taken: list[Taken], ran_ns: int, wall_ns: int) -> None:
        if self._among is not None:
            self._add_part(0, taken, wall_ns)
            return
        seen = self._seen.setdefault(ident, Seen())
        if ident != self._of_steps:
            seen.add(self._key(taken, None), 0)
            self._add_part(ident, taken, wall_ns)
            return
        cpu_ns, self._cpu_ns = ran_ns - self._cpu_ns, ran_ns
        stack: list[Frame] | None = [] if self._step is not None else None
        seen.add(key := self._key(taken, stack), cpu_ns)
        if key[4] == LOADER:
            self._add_part(ident, taken, wall_ns)
        if stack is not None and self._step is not None:
            self._moments.add(stack, self._step())

    def _add_part(self, key: int, taken: list[Taken], wall_ns: int) -> None:
        self._parts.setdefault(key, SampleParts(self._owner)).add(taken, wall_ns)

    def _key(self, taken: list[Taken], stack: list[Frame] | None) -> Key:
        """Return the user's innermost source line, the function that it calls, the running code, and
        enclosing lines.

        If no frame is the user's, as in a command that a package installs, use a package's innermost line
        outside torch.

        `stack`: receives all frames except those of torch and of the standard library.
        """
        own = line = callee = leaf = 0
        installed = (0, 0, 0)
        inside = ""
        for code, at, module, _ in taken:
            owner = self._owner(code, module)
            if stack is not None and self._known[id(code)][2]:
                stack.append((id(code), at))
            if owner != WHOSE_AGENT:
                leaf = leaf or id(code)
                if code.co_filename.endswith(_LOADER):
                    inside = LOADER  # also while it waits for a worker
                elif leaf == id(code) and code.co_filename.endswith(_SELECTORS):
                    inside = EVENT_LOOP
                if owner == WHOSE_USER and not own:
                    own, line = id(code), at
                elif not own:
                    if owner == WHOSE_INSTALLED and not installed[0]:
                        installed = id(code), at, callee
                    callee = id(code)
        if inside == EVENT_LOOP and (awaiting := self._suspended()) is not None:
            own, line, callee = awaiting
        elif not own:
            own, line, callee = installed
        return own, line, callee, leaf, inside

    def _owner(self, code: CodeType, module: dict[str, Any]) -> str:
        found = self._known.get(id(code))
        if found is None:
            owner = whose(code, module)
            tells = owner == WHOSE_TORCH and any(part in code.co_filename for part in _TELLING)
            found = self._known[id(code)] = owner, code, tells or owner in _OF_PROGRAM
        return found[0]

    def _suspended(self) -> tuple[int, int, int] | None:
        """Return where the first event-loop task in the user's code waits, and the object that this task
        awaits."""
        tasks: Any = sys.modules.get("asyncio.tasks")
        try:
            for task in list(getattr(tasks, "_scheduled_tasks", None) or tasks._all_tasks):
                found, awaited, coroutine = None, 0, task.get_coro()
                while (frame := getattr(coroutine, "cr_frame", None)) is not None:
                    if self._owner(frame.f_code, frame.f_globals) == WHOSE_USER:
                        found, awaited = frame, 0
                    else:
                        awaited = awaited or id(frame.f_code)
                    coroutine = coroutine.cr_await
                if found is not None:
                    return id(found.f_code), found.f_lineno or 0, awaited
        except Exception:  # the loop changes its tasks meanwhile
            return None
        return None


def _most_first(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(seen, key=lambda each: -int(each["num"]))


def _wait_for_lock(own_s: float | None, waits: bool) -> None:
    """Lower the interpreter's switch interval, or restore it, unless the program has set its own interval
    meanwhile.

    `own_s`: the program's interval; None to leave the interval alone.
    """
    if own_s is not None and abs(sys.getswitchinterval() - (own_s if waits else SWITCH_S)) < 1e-7:
        sys.setswitchinterval(SWITCH_S if waits else own_s)


def _be_woken_at_once() -> None:
    try:
        with open("/proc/%d/timerslack_ns" % _thread.get_native_id(), "w", encoding="ascii") as file:
            file.write(str(SLACK_NS))
    except OSError:  # lines shorter than the usual 50 µs are then seen too rarely
        pass


def _has_threads_of_its_own(of_steps: int) -> bool:
    """Tell whether the program runs threads besides the threads of torch's loaders and of queues between
    processes."""
    for ident, thread in list(getattr(sys.modules.get("threading"), "_active", {}).items()):
        module = str(getattr(getattr(thread, "_target", None), "__module__", ""))
        if ident != of_steps and not module.startswith(("torch.", "multiprocessing.")):
            return True
    return False


def _threads() -> dict[int, tuple[str, int | None]]:
    """Return by identity each thread's name and run time in ns; None if the kernel does not report it."""
    found: dict[int, tuple[str, int | None]] = {}
    active = getattr(sys.modules.get("threading"), "_active", {})
    for ident, thread in list(active.items()):
        counted = schedstat("/proc/self/task/%s" % thread.native_id)
        found[ident] = str(thread.name), counted and counted[0]
    return found
