"""Switch candidates on and off while the program runs, and time stretches of its steps.

A block of a candidate is four stretches, ABBA or BAAB: B has the candidate's settings, A has not. The device
is synchronised a step before each stretch and at its end. In the step before, the host gets ahead of the
device as in any other step; if a stretch began with an idle device, its first step would show all of the
host's work. Some more steps after each switch are not counted: steps with one-time effects of the switch
(plans, kernels, code and memory needed for the first time), and steps that use up batches made before the
switch. Plans and memory blocks that last longer are looked up by purpose, so the next stretch without the
candidate finds its own plans and blocks. A stretch with other work of the program (validation, a checkpoint)
is timed again.

A call that fails while a candidate is on is repeated without it: the program continues, and the candidate is
given up.

All ranks of a program switch at the same steps. With several ranks, a fixed number of steps is left out after
each switch, and no stretch is repeated.
"""

from __future__ import annotations

import os
import random
from statistics import median
from threading import get_ident
from time import perf_counter

from ..core import reasons
from ..core.allocator_counters import device_allocations
from ..core.covers import call_directly
from ..core.device import free_memory, synchronise
from ..core.errors import by_a_signal
from ..core.pace import pace_s
from ..core.program import WAITS
from ..core.stopwatch import Stopwatch
from ..sites.loader_router import router_of
from ..sites.site import NotSwitched
from .arm_switch import ArmSwitch
from .queue_level import QueueLevel
from .results_of_arms import ResultsOfArms
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..core.annotations import Answer, Args, Around, Call, Kwargs, Stops
    from ..core.program import Program

# After a switch, leave out at least this many steps, quiet ones, besides the one before the stretch; programs
# that always allocate are never quiet.
WASH_OUT_STEPS, QUIET_STEPS, MOST_RESTLESS_STEPS = 2, 2, 30
STEPS_LEFT_OUT = 8  # steps to leave out after each switch, for ranks and for a program that is never quiet
# A stretch is timed again, up to so often, for an epoch's begin, a new allocation, or steps this many times
# as long as usual.
MOST_REPEATS = 2
ODD = 2.0
# A stretch ends early after LONG times the duration of a baseline stretch, since few slow steps show enough.
# The duration is read up to LOOKS times in a stretch.
LONG, LOOKS = 3.0, 32
# Factor over the baseline's step: a candidate with longer steps gets no more blocks, if the task asks for
# that.
HOPELESS = 2.5
MOST_SPOILT = 3  # blocks that do not count, before the candidate is given up
SHORT_EPOCHS = "epochs are too short to switch workers within one run"
# A compiled program keeps few variants of its code, and each candidate that compiles takes one of them.
MOST_RECOMPILED = 2

ORDERS = ("ABBA", "BAAB")


class _Spoilt(Exception):
    """A block that does not count, because the program compiled something of its own."""


class _FromReserve(Exception):
    """A block that does not count, because workers might not have kept up: it drew batches that were ready
    before."""


class SwitchArms(Task):
    """Compare each of `arms` with the program as it runs, in `num_blocks` blocks of `stretch_steps`.

    The task writes the events `arm_switched` (to a candidate, or None), `arm_block`, `arm_results` and
    `arm_given_up`.
    """

    event = "switched"
    needs_torch = True

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._num_blocks, self._stretch_steps = int(order["num_blocks"]), max(1, int(order["stretch_steps"]))
        self._draw = random.Random(order.get("seed", 0))
        self._planned = order["arms"]
        self._arms: list[ArmSwitch] = []
        self._alive = list(range(len(self._planned)))
        self._num_recompiled = 0
        self._drawn: dict[int, int] = {}
        self._usual: dict[ArmSwitch | None, list[float]] = {None: [float(order.get("step_s") or 0.0)]}
        self._waited: set[ArmSwitch | None] = set()  # arms with which the program waits for the loader
        self._queue = QueueLevel(program)
        self._results = ResultsOfArms(program, (), order)
        self._has_ranks = False
        self._is_restless = False  # whether it allocates in every step
        self._on: ArmSwitch | None = None
        self._thread: int | None = None  # the thread in which steps end
        self._work: Stops | None = None
        self._stop = 0
        self._inner: list[Around | None] = []  # the caller of modules before the candidates' own caller

    def begin(self, num_steps: int) -> int:
        program = self.program
        if program.compiles_itself is None:
            program.compiles_itself = bool(program.num_compilations)
            program.replays_itself = program.replays_graphs
        self._has_ranks = program.ranks().get("world_size", 1) > 1
        if self._has_short_epochs:
            # The usual step time excludes an epoch's begin, but a stretch may include one.
            self._usual[None] = []
        self._arms = [ArmSwitch(planned, program) for planned in self._planned]
        if program.replays_itself and not all(arm.reaches_graphs for arm in self._arms):
            self.give_up("it replays captured CUDA graphs, which no switch reaches")
            return num_steps
        if not self._has_ranks:
            self._results = ResultsOfArms(program, self._arms, self.order)
        same = any(not arm.num_queued for arm in self._arms)
        if same and program.num_queued and program.loaders is not None and not self._has_ranks:
            router_of(program)  # from now on, the router knows how many batches are ready
        if self._results.compares_calls or any(arm.acts_in_calls for arm in self._arms):
            self._call_through(self._around(program.roots.around))
        self._thread = get_ident()
        self._work = self._all_blocks()
        return self.step_ended(num_steps)

    def step_ended(self, num_steps: int) -> int:
        if num_steps < self._stop:
            return self._stop
        if get_ident() != self._thread:
            self.give_up("its steps are made in several threads")
            return self._stop
        if self.program.more_ordered():
            # The caller needs no more blocks.
            self.give_up("another task was ordered")
            return self._stop
        assert self._work is not None
        try:
            self._stop = num_steps + next(self._work)
        except StopIteration:
            self.complete()
        return self._stop

    def at_exit(self) -> None:
        self.give_up("all candidates were compared", code=reasons.PROGRAM_ENDED, at_exit=True)

    def clean_up(self) -> None:
        self._on = None
        for arm in self._arms:
            self._results.unwatch(arm)
            try:
                arm.off()
            except NotSwitched:
                pass  # values that the program itself has changed stay
            except Exception as error:
                self.program.log("switched", error)
        for inner in self._inner:
            self._call_through(inner)

    def _call_through(self, around: Around | None) -> None:
        self.program.roots.around = around
        self.program.watch_calls()

    def _around(self, inner: Around | None) -> Around:
        """Return `inner`, wrapped by the candidate that is switched on now."""
        self._inner.append(inner)
        plainly = inner or call_directly

        def around_root(call: Call, module: Any, args: Args, kwargs: Kwargs) -> Any:
            on = self._on
            if on is None or not (on.acts_in_calls or self._results.compares_calls_of(on)):
                return plainly(call, module, args, kwargs)

            def without() -> Any:
                return plainly(call, module, args, kwargs)

            def with_it() -> Any:
                def through(module: Any, *args: Any, **kwargs: Any) -> Any:
                    return plainly(call, module, args, kwargs)

                return on.around_root(through, module, args, kwargs)

            try:
                return self._results.compared(on, module, args, kwargs, without, with_it)
            except Exception as error:
                if by_a_signal(error):
                    raise
                if on.acts_in_calls:
                    return on.called_without(error, with_it)
                # Not the candidate failed, but the comparison, for which memory may lack.
                self._results.forget_calls(on)
                free_memory(self.program.torch, error)
                return with_it()

        return around_root

    # Order of blocks

    def _all_blocks(self) -> Stops:
        for at, arm in enumerate(self._arms):
            if self._has_ranks and not arm.suits_ranks:
                self._say_dropped(at, "ranks of one model cannot switch it apart from each other")
        for number in range(self._num_blocks):
            turns = list(self._alive)
            self._draw.shuffle(turns)
            # Candidates that compile take long the first time, so the others have their first blocks before.
            # Candidates that settle at once come first: the caller may need fewer blocks of the others.
            turns.sort(key=lambda at: self._arms[at].compiles and not self._arms[at].has_been_on)
            turns.sort(key=lambda at: not self._arms[at].settles_at_once)
            for at in turns:
                if unsuited := self._has_short_epochs and self._arms[at].unsuited_to_short_epochs:
                    self._say_dropped(at, SHORT_EPOCHS, unsuited=unsuited)
                    continue
                try:
                    yield from self._block(at, number)
                except NotSwitched as error:
                    yield from self._drop(at, error)
                if self._num_recompiled >= MOST_RECOMPILED:
                    reason = (
                        "torch compiles the program again after each switch, and keeps few variants of it"
                    )
                    for other in list(self._alive):
                        self._say_dropped(other, reason)
                    return

    def _drop(self, at: int, error: NotSwitched) -> Stops:
        arm = self._arms[at]
        self._say_dropped(at, str(error), code=error.code, blamed=arm.blamed, unsuited=arm.unsuited)
        self._switch_off(at)
        yield from self._wash_out(None)

    def _say_dropped(
        self,
        at: int,
        reason: str,
        *,
        code: str = "",
        blamed: Sequence[str] = (),
        unsuited: Sequence[str] = (),
    ) -> None:
        """Give a candidate up, and record why.

        Args:
            reason: the words that the sentence of `code` needs, as in `schema.events.ArmGivenUp`; without a
                code, all.
            blamed: knobs without which a failed call succeeded.
            unsuited: knobs that cannot change in this program.
        """
        self._alive.remove(at)
        knobs = {"blamed": list(blamed), "unsuited": list(unsuited)}
        self.program.event({"event": "arm_given_up", "arm": at, "code": code, "reason": reason, **knobs})

    @property
    def _has_short_epochs(self) -> bool:
        epoch_steps = self.program.steps.epoch_steps
        return epoch_steps is not None and epoch_steps <= self._stretch_steps

    def _block(self, at: int, number: int) -> Stops:
        """Return one block of the candidate; a block that does not count is repeated.

        Raises NotSwitched: the candidate must be given up.
        """
        num_spoilt = 0
        while num_spoilt < MOST_SPOILT:
            order = self._order(at, number)
            begin_s = perf_counter()
            try:
                timed = yield from self._stretches(at, order)
            except _Spoilt:
                num_spoilt += 1
                self._switch_off(at)
                continue
            except _FromReserve:  # once for each candidate
                self._switch_off(at)
                continue
            fields = {
                "arm": at,
                "number": number,
                "order": order,
                "begin_s": begin_s,
                "end_s": perf_counter(),
            }
            self.program.event({"event": "arm_block", **fields, **timed})
            for results in self._results.told(self._arms[at]):
                self.program.event({"event": "arm_results", "arm": at, "begin_s": begin_s, **results})
            return
        raise NotSwitched("the program compiles something again and again")

    def _order(self, at: int, number: int) -> str:
        """Return ABBA or BAAB; each order comes once in two blocks, so that a drift does not look like a
        difference."""
        if number % 2 == 0:
            self._drawn[at] = self._draw.getrandbits(1)
        return ORDERS[self._drawn[at] ^ number % 2]

    def _stretches(self, at: int, order: str) -> Stops:
        arm = self._arms[at]
        timed: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
        readback: list[Answer] = []
        yield from self._wash_out(arm)
        for which in order:
            if (which == "B") != arm.is_on:
                if which == "B":
                    self.program.event({"event": "arm_switched", "arm": at})
                    if arm.compiles and not arm.has_been_on:
                        os.environ.update(self.order.get("caches", {}))
                    arm.on()
                    self._on = arm
                    self._results.watch(arm)
                else:
                    self._switch_off(at, told=True)
                yield from self._wash_out(arm)
            timed[which].append((yield from self._stretch(arm)))
            if arm.is_on:
                readback = arm.acted()
        self._switch_off(at, told=True)
        return {"baseline": timed["A"], "candidate": timed["B"], "readback": readback}

    def _switch_off(self, at: int, told: bool = False) -> None:
        arm, self._on = self._arms[at], None
        was_on = arm.is_on
        self._results.unwatch(arm)
        try:
            arm.off()
        except NotSwitched:
            if told:
                raise
        finally:
            if was_on:
                self.program.event({"event": "arm_switched", "arm": None})

    # Timed steps, and steps that do not count

    def _wash_out(self, arm: ArmSwitch | None) -> Stops:
        if arm is not None and arm.settles_at_once:
            return
        queued = self._within_epoch(max(self.program.num_queued, arm.num_queued if arm is not None else 0))
        if self._has_ranks:
            yield from self._pass(arm, WASH_OUT_STEPS + queued + STEPS_LEFT_OUT)
            return
        router, has_level = self._queue.router(arm), self._queue.is_known(arm)
        if has_level:
            if arm is not None and not self._keeps_level(arm):
                yield from self._queue.settle(arm, queued, lambda: self._pass(arm, 1))
            queued = 0
        quiet, before = 0, self._counters()
        # Wait until workers that are not drawn from are idle; they report how many steps that takes.
        least = WASH_OUT_STEPS + (queued if router is None else 0)
        is_settled = router is None
        for number in range(1, WASH_OUT_STEPS + 2 * queued + MOST_RESTLESS_STEPS + 1):
            yield from self._pass(arm, 1)
            now = self._counters()
            self._queue.look(arm)
            if arm is not None:
                arm.refuse_failed()
            if not (arm is not None and arm.is_on and arm.compiles):
                self._refuse_compiled(arm, before, now)
            if router is not None and not is_settled:
                is_idle, is_steady, num_ready = router.waiting()
                most = self._within_epoch(2 * arm.num_workers if arm is not None else 0)
                is_settled = is_idle and (has_level or is_steady or number > most)
                least = least if has_level else max(least, number + num_ready)
            quiet, before = (quiet + 1 if now == before else 0), now
            is_quiet = self._is_restless or quiet >= QUIET_STEPS
            if is_settled and is_quiet and number >= least + self._is_restless * STEPS_LEFT_OUT:
                return
        # If nothing was switched on, the program runs in its own way.
        self._is_restless |= is_settled and (arm is None or not arm.has_been_on)

    def _within_epoch(self, num_steps: int) -> int:
        """Return the number of steps, at most an epoch's: no batch that was ready outlasts its epoch.

        With several loaders, each has epochs of its own, and only the last one's length is known.
        """
        steps = self.program.steps
        is_known = steps.epoch_steps is not None and steps.num_loaders == 1
        return min(num_steps, steps.epoch_steps) if is_known else num_steps

    def _keeps_level(self, arm: ArmSwitch | None) -> bool:
        """Tell whether the loader's queue stays as full as it is when the candidate is switched.

        The candidate's pace is known only after a stretch, and taken for the baseline's until then.
        """
        paces = [[each for each in self._usual.get(which) or [] if each > 0] for which in (None, arm)]
        return self._queue.is_kept(arm, median(paces[0]) / median(paces[1]) if all(paces) else 1.0)

    def _stretch(self, arm: ArmSwitch) -> Stops:
        """Return the wall time (s) of the stretch's steps, the number of samples or None, and the number of
        steps."""
        length, steps = self._length(arm), self.program.steps
        for repeats_left in range(MOST_REPEATS, -1, -1):
            pace_before_s = pace_s()
            synchronise(self.program.torch)
            yield from self._pass(arm, 1)
            arm.refuse_failed()
            at_epochs, kept_level = self._at_epochs, self._keeps_level(arm)
            before, waited_s = self._counters(), steps.wait_s
            counted, num_steps = (steps.num_samples, steps.num_uncounted), steps.num_steps
            stopwatch = Stopwatch(self.program.torch)
            yield from self._steps(arm, length, stopwatch.begin_s)
            duration_s = stopwatch.seconds()
            if steps.wait_s - waited_s > WAITS * duration_s:
                self._waited.add(arm if arm.is_on else None)
            arm.check()
            now = self._counters()
            self._refuse_compiled(arm, before, now)
            # Stretches of whole epochs have equal numbers of epoch begins; within longer epochs they would
            # differ.
            has_begin = self._at_epochs != at_epochs and (
                steps.epoch_steps is None or steps.epoch_steps > length
            )
            is_odd = self._is_odd(arm, duration_s / (steps.num_steps - num_steps))
            is_quiet = now == before or (self._is_restless and now[0] == before[0])
            self._queue.look(arm)
            if arm.is_on and kept_level and not self._keeps_level(arm):
                # The stretch may have used up batches that were ready: all blocks are timed with the queue's
                # own level.
                self._queue.drain_with(arm)
                self._usual.pop(arm, None)
                raise _FromReserve
            if self._has_ranks or not (repeats_left and (has_begin or is_odd or not is_quiet)):
                break
        if is_odd:
            # The step time was the same when the stretch was timed again, so it is the usual one now.
            self._usual[arm if arm.is_on else None].append(duration_s / (steps.num_steps - num_steps))
        if not has_begin:
            self._refuse_hopeless(arm, duration_s / (steps.num_steps - num_steps))
        uncounted = steps.num_uncounted - counted[1]
        return {
            "seconds": duration_s,
            "num_steps": steps.num_steps - num_steps,
            "num_samples": None if uncounted else steps.num_samples - counted[0],
            "pace_s": (pace_before_s + pace_s()) / 2,
        }

    @property
    def _at_epochs(self) -> int:
        """Count begins of epochs, and draws at their ends of batches that took no time to make since."""
        router = self.program.loader_router
        return int(self.program.steps.num_epochs + (0 if router is None else router.num_drained))

    def _length(self, arm: ArmSwitch) -> int:
        """Return the number of steps in a stretch."""
        waits = self.order.get("waits", 0.0) > WAITS or (arm if arm.is_on else None) in self._waited
        if not waits or self._has_ranks or self._has_short_epochs:
            return self._stretch_steps
        epoch_steps = self.program.steps.epoch_steps
        length = -(-self._stretch_steps // arm.num_workers) * arm.num_workers
        return length if epoch_steps is None or length < epoch_steps else self._stretch_steps

    def _pass(self, arm: ArmSwitch | None, num_steps: int) -> Stops:
        """Let steps pass. An arm that acts between steps does so before each, and its baseline stops as
        often."""
        if arm is None or not arm.acts_between_steps:
            yield num_steps
            return
        for _ in range(num_steps):
            if arm.is_on:
                arm.between_steps()
            yield 1

    def _steps(self, arm: ArmSwitch, length: int, begin_s: float) -> Stops:
        """Wait for the steps of a stretch; with several ranks or whole epochs, wait for all steps without
        limit."""
        known = (
            []
            if self._has_ranks or self._has_short_epochs
            else [each for each in self._usual[None] if each > 0]
        )
        part = max(1, length // LOOKS) if known else length
        for begin in range(0, length, part):
            yield from self._pass(arm, min(part, length - begin))
            if known and perf_counter() - begin_s > LONG * length * median(known):
                return

    def _is_odd(self, arm: ArmSwitch, step_s: float) -> bool:
        """Tell whether steps took far longer than usual with the same settings, because the program did other
        work.

        A candidate's first stretch is compared with the baseline's, later stretches with the candidate's
        first stretch.
        """
        usual = self._usual.setdefault(arm if arm.is_on else None, [])
        known = [each for each in usual or self._usual[None] if each > 0]
        is_odd = bool(known) and step_s > ODD * median(known)
        if not (is_odd and usual):
            usual.append(step_s)
        return is_odd

    def _refuse_hopeless(self, arm: ArmSwitch, step_s: float) -> None:
        """Raise NotSwitched if the candidate's steps take so long that more blocks are not worthwhile."""
        known = [each for each in self._usual[None] if each > 0]
        if not (self.order.get("give_up_slow") and arm.is_on and known):
            return
        ratio = step_s / median(known)
        if ratio > HOPELESS:
            raise NotSwitched("its steps took %.1f times as long as usual, so it was given up" % ratio)

    def _counters(self) -> tuple[int, int | None]:
        return self.program.num_compilations, device_allocations(self.program.torch)

    def _refuse_compiled(self, arm: ArmSwitch | None, before: tuple[int, Any], now: tuple[int, Any]) -> None:
        if now[0] == before[0] or arm is None:
            return
        if not arm.is_on or arm.compiles:
            raise _Spoilt
        self._num_recompiled += 1
        raise NotSwitched("torch compiled the program again after the switch")
