"""Switches arms on and off while the program runs, and times stretches of its steps.

A block of an arm is four stretches, ABBA or BAAB: B with the arm's settings, A without. The device is synchronised at
both ends of each. After each switch some steps are not counted: those that hold what the switch sets off (plans,
kernels, code and memory that are needed for the first time), and as many as use up batches that were made before it.
Plans and blocks of memory that last beyond that are kept and looked up by what they are needed for, so the next stretch
without the arm finds its own again. A stretch in which the program did something else as well (it validated, wrote a
checkpoint) is timed again.

A call that fails while an arm is on is made again without it: the program goes on, and the arm is given up.

All ranks of a program switch at the same steps: then as many steps are not counted after each switch whatever they
hold, and no stretch is timed again.
"""

from __future__ import annotations

import os
import random
from statistics import median
from threading import get_ident
from time import perf_counter

from ..core.annotations import Any, Args, Around, Call, Kwargs, Program, Sequence, Stops
from ..core.covers import call_directly
from ..core.device import device_allocations, synchronise
from ..core.errors import by_a_signal
from .arm import Arm
from .results_within import ResultsWithin
from .switches import NotSwitched
from .task import Task

# After a switch: at least so many steps, the last of them quiet; a program that allocates in every step is never quiet.
WASH_OUT_STEPS, QUIET_STEPS, MOST_RESTLESS_STEPS = 3, 2, 30
# Steps that are left out after each switch, whatever they hold, by ranks and by a program that is never quiet.
STEPS_LEFT_OUT = 8
# A stretch with the begin of an epoch in it, a new allocation, or steps that took so many times as long as usual, is
# timed again, so often.
MOST_REPEATS = 2
ODD = 2.0
# A stretch is cut short once it has taken so many times as long as one of the baseline: few slow steps say enough.
LONG = 3.0
# Of what a step takes without it: an arm with which steps take longer has no more blocks, where that was asked for.
HOPELESS = 2.5
# Blocks in which the program itself compiled something, before its arm is given up.
MOST_SPOILT = 3
SHORT_EPOCHS = "epochs are shorter than a stretch, and each would start the workers of two loaders in place of one"
# A compiled program keeps few variants of its code; each arm that it compiles anew for takes one of them.
MOST_RECOMPILED = 2

ORDERS = ("ABBA", "BAAB")


class _Spoilt(Exception):
    """Spoilt block, which counts for nothing: the program compiled something of its own."""


class SwitchArms(Task):
    """Task that compares each of `arms` with the program as it runs, in `num_blocks` blocks of `stretch_steps`.

    Events meanwhile: `arm_switched` (to an arm, or None), `arm_block`, `arm_results`, `arm_given_up`.
    """

    event = "switched"
    needs_torch = True

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._num_blocks, self._stretch_steps = int(order["num_blocks"]), max(1, int(order["stretch_steps"]))
        self._draw = random.Random(order.get("seed", 0))
        self._planned = order["arms"]
        self._arms: list[Arm] = []
        self._alive = list(range(len(self._planned)))
        self._num_recompiled = 0
        self._drawn: dict[int, int] = {}
        self._usual: dict[Arm | None, list[float]] = {None: [float(order.get("step_s") or 0.0)]}
        self._results: dict[Arm, ResultsWithin] = {}
        self._has_ranks = False
        self._is_restless = False  # it allocates in every step
        self._on: Arm | None = None
        self._thread: int | None = None  # in which steps end
        self._work: Stops | None = None
        self._stop = 0
        self._inner: list[Around | None] = []  # what calls went through before, once they go through an arm

    def begin(self, num_steps: int) -> int:
        program = self.program
        if program.compiles_itself is None:
            program.compiles_itself = bool(program.num_compilations)
            program.replays_itself = program.replays_graphs
        if program.replays_itself:
            self.give_up("it replays captured CUDA graphs, which no switch reaches")
            return num_steps
        self._has_ranks = program.ranks().get("world_size", 1) > 1
        if self._has_short_epochs:
            # What is usual of a step leaves the begin of an epoch out, and a stretch holds it.
            self._usual[None] = []
        self._arms = [Arm(planned, program) for planned in self._planned]
        if not self._has_ranks:
            wanted = self.order.get("num_results", 0)
            rounding = self.order.get("rounding", 0.0)
            self._results = {arm: ResultsWithin(program, wanted, rounding) for arm in self._arms if wanted}
        if any(arm.acts_in_calls for arm in self._arms):
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
            # Whoever ordered this has what it wanted.
            self.give_up("another task was ordered")
            return self._stop
        assert self._work is not None
        try:
            self._stop = num_steps + next(self._work)
        except StopIteration:
            self.complete()
        return self._stop

    def at_exit(self) -> None:
        self.give_up("the program ended before all arms were compared", at_exit=True)

    def clean_up(self) -> None:
        self._on = None
        for arm in self._arms:
            try:
                arm.off()
            except NotSwitched:
                pass  # what the program has changed stays
            except Exception as error:
                self.program.log("switched", error)
        for inner in self._inner:
            self._call_through(inner)

    def _call_through(self, around: Around | None) -> None:
        self.program.roots.around = around
        self.program.watch_calls()

    def _around(self, inner: Around | None) -> Around:
        """Return `inner`, around it the arm that is on."""
        self._inner.append(inner)

        plainly = inner or call_directly

        def around_root(call: Call, module: Any, args: Args, kwargs: Kwargs) -> Any:
            on = self._on
            if on is None:
                return plainly(call, module, args, kwargs)

            def without() -> Any:
                return plainly(call, module, args, kwargs)

            def with_it() -> Any:
                def through(module: Any, *args: Any, **kwargs: Any) -> Any:
                    return plainly(call, module, args, kwargs)

                return on.around_root(through, module, args, kwargs)

            results = self._results.get(on)
            try:
                if results is None:
                    return with_it()
                return results.compared(module, args, kwargs, without, on.paused, with_it)
            except Exception as error:
                if by_a_signal(error):
                    raise
                return on.called_without(error, with_it)

        return around_root

    # What comes after what

    def _all_blocks(self) -> Stops:
        for at, arm in enumerate(self._arms):
            if self._has_ranks and not arm.suits_ranks:
                self._say_dropped(at, "ranks of one model cannot switch it apart from each other")
        for number in range(self._num_blocks):
            turns = list(self._alive)
            self._draw.shuffle(turns)
            # Arms that compile take long the first time: the others have their first blocks before.
            turns.sort(key=lambda at: self._arms[at].compiles and not self._arms[at].has_been_on)
            for at in turns:
                if unsuited := self._has_short_epochs and self._arms[at].unsuited_to_short_epochs:
                    self._say_dropped(at, SHORT_EPOCHS, unsuited=unsuited)
                    continue
                try:
                    yield from self._block(at, number)
                except NotSwitched as error:
                    yield from self._drop(at, str(error), self._arms[at].blamed)
                if self._num_recompiled >= MOST_RECOMPILED:
                    reason = "torch compiles the program anew after a switch; more would be too many variants of it"
                    for other in list(self._alive):
                        self._say_dropped(other, reason)
                    return

    def _drop(self, at: int, reason: str, blamed: list[str]) -> Stops:
        self._say_dropped(at, reason, blamed)
        self._switch_off(at)
        yield from self._wash_out(None)

    def _say_dropped(self, at: int, reason: str, blamed: Sequence[str] = (), unsuited: Sequence[str] = ()) -> None:
        """Give an arm up.

        Args:
            blamed: the knobs without which a call went well that had failed.
            unsuited: the knobs that cannot be switched in this program.
        """
        self._alive.remove(at)
        knobs = {"blamed": list(blamed), "unsuited": list(unsuited)}
        self.program.event({"event": "arm_given_up", "arm": at, "reason": reason, **knobs})

    @property
    def _has_short_epochs(self) -> bool:
        epoch_steps = self.program.steps.epoch_steps
        return epoch_steps is not None and epoch_steps <= self._stretch_steps

    def _block(self, at: int, number: int) -> Stops:
        """Return one block of the arm; a spoilt one is begun anew.

        Raises NotSwitched: the arm is to be given up.
        """
        for _ in range(MOST_SPOILT):
            order = self._order(at, number)
            begin_s = perf_counter()
            try:
                timed = yield from self._stretches(at, order)
            except _Spoilt:
                self._switch_off(at)
                continue
            fields = {"arm": at, "number": number, "order": order, "begin_s": begin_s, "end_s": perf_counter()}
            self.program.event({"event": "arm_block", **fields, **timed})
            self._tell_results(at)
            return
        raise NotSwitched("the program compiles something again and again")

    def _tell_results(self, at: int) -> None:
        results = self._results.pop(self._arms[at], None)
        if results is not None and (found := results.read()) is not None:
            self.program.event({"event": "arm_results", "arm": at, **found})

    def _order(self, at: int, number: int) -> str:
        """Return an order; each comes once in two blocks of an arm: a drift then passes for no difference."""
        if number % 2 == 0:
            self._drawn[at] = self._draw.getrandbits(1)
            return ORDERS[self._drawn[at]]
        return ORDERS[1 - self._drawn[at]]

    def _stretches(self, at: int, order: str) -> Stops:
        arm = self._arms[at]
        timed: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
        yield from self._wash_out(arm)
        for which in order:
            if (which == "B") != arm.is_on:
                if which == "B":
                    self.program.event({"event": "arm_switched", "arm": at})
                    if arm.compiles and not arm.has_been_on:
                        os.environ.update(self.order.get("caches", {}))
                    arm.on()
                    self._on = arm
                else:
                    self._switch_off(at, told=True)
                yield from self._wash_out(arm)
            timed[which].append((yield from self._stretch(arm)))
        if arm.is_on:
            arm.check_acted()
        self._switch_off(at, told=True)
        return {"baseline": timed["A"], "candidate": timed["B"]}

    def _switch_off(self, at: int, told: bool = False) -> None:
        self._on = None
        was_on = self._arms[at].is_on
        try:
            self._arms[at].off()
        except NotSwitched:
            if told:
                raise
        finally:
            if was_on:
                self.program.event({"event": "arm_switched", "arm": None})

    # Steps that are timed, and steps that are not

    def _wash_out(self, arm: Arm | None) -> Stops:
        queued = max(self.program.num_queued, arm.num_queued if arm is not None else 0)
        if self._has_ranks:
            yield WASH_OUT_STEPS + queued + STEPS_LEFT_OUT
            return
        router, quiet, before = self.program.loader_router, 0, self._counters()
        # Until workers that are not drawn from have ended their work: how many steps that takes, they say.
        least = WASH_OUT_STEPS + (queued if router is None else 0)
        is_settled = router is None
        for number in range(1, WASH_OUT_STEPS + 2 * queued + MOST_RESTLESS_STEPS + 1):
            yield 1
            now = self._counters()
            if arm is not None:
                arm.refuse_failed()
            if not (arm is not None and arm.is_on and arm.compiles):
                self._refuse_compiled(arm, before, now)
            if not is_settled:
                is_settled, num_ready = router.waiting()
                least = max(least, number + num_ready)
            quiet, before = (quiet + 1 if now == before else 0), now
            is_quiet = self._is_restless or quiet >= QUIET_STEPS
            if is_settled and is_quiet and number >= least + self._is_restless * STEPS_LEFT_OUT:
                return
        # Where nothing has been switched on, it is the program's own way.
        self._is_restless |= arm is None or not arm.has_been_on

    def _stretch(self, arm: Arm) -> Stops:
        """Return the wall time of some steps, their samples or None, and how many they are."""
        length, steps = self._stretch_steps, self.program.steps
        for repeats_left in range(MOST_REPEATS, -1, -1):
            num_epochs = steps.num_epochs
            before = self._counters()
            counted, num_steps = (steps.num_samples, steps.num_uncounted), steps.num_steps
            synchronise(self.program.torch)
            begin_s = perf_counter()
            yield from self._steps(length, begin_s)
            synchronise(self.program.torch)
            duration_s = perf_counter() - begin_s
            arm.check()
            now = self._counters()
            self._refuse_compiled(arm, before, now)
            # Stretches of whole epochs hold as many begins each; of longer epochs they would differ.
            has_begin = steps.num_epochs != num_epochs and (steps.epoch_steps is None or steps.epoch_steps > length)
            is_odd = self._is_odd(arm, duration_s / (steps.num_steps - num_steps))
            is_quiet = now == before or (self._is_restless and now[0] == before[0])
            if self._has_ranks or not (repeats_left and (has_begin or is_odd or not is_quiet)):
                break
        if not has_begin:
            self._refuse_hopeless(arm, duration_s / (steps.num_steps - num_steps))
        uncounted = steps.num_uncounted - counted[1]
        return {
            "seconds": duration_s,
            "num_steps": steps.num_steps - num_steps,
            "num_samples": None if uncounted else steps.num_samples - counted[0],
        }

    def _steps(self, length: int, begin_s: float) -> Stops:
        """Wait for the steps of a stretch; for those of ranks and whole epochs to their end, however long it takes."""
        known = [] if self._has_ranks or self._has_short_epochs else [each for each in self._usual[None] if each > 0]
        part = max(1, length // 4) if known else length
        for begin in range(0, length, part):
            yield min(part, length - begin)
            if known and perf_counter() - begin_s > LONG * length * median(known):
                return

    def _is_odd(self, arm: Arm, step_s: float) -> bool:
        """Tell whether steps took far longer than is usual on their side: the program did something else in between.

        An arm's first stretch is held against the baseline's, and its next one against that: it may be slower.
        """
        usual = self._usual.setdefault(arm if arm.is_on else None, [])
        known = [each for each in usual or self._usual[None] if each > 0]
        is_odd = bool(known) and step_s > ODD * median(known)
        if not (is_odd and usual):
            usual.append(step_s)
        return is_odd

    def _refuse_hopeless(self, arm: Arm, step_s: float) -> None:
        """Raise NotSwitched if steps take so long with the arm that no more of its time is worth while."""
        known = [each for each in self._usual[None] if each > 0]
        if not (self.order.get("give_up_slow") and arm.is_on and known):
            return
        ratio = step_s / median(known)
        if ratio > HOPELESS:
            raise NotSwitched("with it a step takes %.1f times as long" % ratio)

    def _counters(self) -> tuple[int, int | None]:
        return self.program.num_compilations, device_allocations(self.program.torch)

    def _refuse_compiled(self, arm: Arm | None, before: tuple[int, Any], now: tuple[int, Any]) -> None:
        if now[0] == before[0] or arm is None:
            return
        if not arm.is_on or arm.compiles:
            raise _Spoilt
        self._num_recompiled += 1
        raise NotSwitched("torch compiled the program anew after the switch")
