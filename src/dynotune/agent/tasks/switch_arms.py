"""Switches arms on and off while the program runs, and times stretches of its steps.

A block of an arm is four stretches, ABBA or BAAB: B with the arm's settings, A without. The device is synchronised at
both ends of each. After each switch some steps are not counted: those that hold what the switch sets off (plans,
kernels and memory that are needed for the first time), and as many as use up batches that were made before it. Whatever
lasts after that is the same with the arm and without: plans and blocks of memory are kept and looked up by what they
are needed for, so the next stretch without the arm finds its own again. Settings of which this is not true are not
switched.
"""

from __future__ import annotations

import random
from threading import get_ident
from time import perf_counter

from ..core.device import device_allocations, synchronise
from .arm_toggle import ArmToggle, NotSwitched
from .task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from ..apply.site import Args, Kwargs
    from ..core.program import Program
    from .arm_toggle import Around, Call

    Steps = Generator[int, None, Any]  # yields after how many steps to go on

# After a switch: at least so many steps, the last of them quiet; a program that allocates in every step is never quiet.
WASH_OUT_STEPS, QUIET_STEPS, MOST_RESTLESS_STEPS = 3, 2, 30
# A stretch with the begin of an epoch in it, or a new allocation, is timed again, so often.
MOST_REPEATS = 2
# Blocks in which the program itself compiled something, before its arm is given up.
MOST_SPOILT = 3
# A compiled program keeps few variants of its code; each arm that it compiles anew for takes one of them.
MOST_RECOMPILED = 2

ORDERS = ("ABBA", "BAAB")


class _Spoilt(Exception):
    """The program compiled something of its own: the block counts for nothing."""


class SwitchArms(Task):
    """Compares each of `arms` with the program as it runs, in `num_blocks` blocks of stretches of `stretch_steps`.

    Events meanwhile: `arm_switched` (to an arm, or None), `arm_block`, `arm_given_up`.
    """

    event = "switched"

    def __init__(self, program: Program, order: dict[str, Any]) -> None:
        super().__init__(program, order)
        self._num_blocks, self._stretch_steps = int(order["num_blocks"]), max(1, int(order["stretch_steps"]))
        self._draw = random.Random(order.get("seed", 0))
        self._toggles = [ArmToggle(planned, program.event, program.log) for planned in order["arms"]]
        self._alive = list(range(len(self._toggles)))
        self._num_recompiled = 0
        self._on: ArmToggle | None = None
        self._thread: int | None = None  # in which steps end
        self._work: Steps | None = None
        self._stop = 0
        self._inner: list[Around | None] = []  # what calls went through before, once they go through an arm

    def begin(self, num_steps: int) -> int:
        world_size = self.program.ranks().get("world_size", 1)
        if world_size > 1:
            self.give_up("%d processes make this program: all of them would have to switch at one step" % world_size)
            return num_steps
        for toggle in self._toggles:
            toggle.torch_is_here(self.program.torch)
        if any(toggle.wants_around for toggle in self._toggles):
            self._call_through(self._around(self.program.roots.around))
        self._thread = get_ident()
        self._work = self._all_blocks()
        return self.step_ended(num_steps)

    def step_ended(self, num_steps: int) -> int:
        if num_steps < self._stop:
            return self._stop
        if get_ident() != self._thread:
            self.give_up("its steps are made in several threads")
        elif self.program.replays_graphs:
            self.give_up("it replays captured CUDA graphs, which no switch reaches")
        else:
            assert self._work is not None
            try:
                self._stop = num_steps + next(self._work)
            except StopIteration:
                self.complete({})
        return self._stop

    def at_exit(self) -> None:
        self.give_up("the program ended before all arms were compared", at_exit=True)

    def clean_up(self) -> None:
        self._on = None
        for toggle in self._toggles:
            try:
                toggle.off()
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
        """`inner`, around it the arm that is on."""
        self._inner.append(inner)

        def around_root(call: Call, module: Any, args: Args, kwargs: Kwargs) -> Any:
            on = self._on
            if on is None:
                return inner(call, module, args, kwargs) if inner is not None else call(module, *args, **kwargs)
            if inner is None:
                return on.around_root(call, module, args, kwargs)

            def through(module: Any, *args: Any, **kwargs: Any) -> Any:
                return inner(call, module, args, kwargs)

            return on.around_root(through, module, args, kwargs)

        return around_root

    # What comes after what

    def _all_blocks(self) -> Steps:
        for number in range(self._num_blocks):
            turns = list(self._alive)
            self._draw.shuffle(turns)
            for arm in turns:
                try:
                    yield from self._block(arm, number)
                except NotSwitched as error:
                    yield from self._drop(arm, str(error))
                if self._num_recompiled >= MOST_RECOMPILED:
                    reason = "torch compiles the program anew after a switch; more would be too many variants of it"
                    for other in list(self._alive):
                        self._say_dropped(other, reason)
                    return

    def _drop(self, arm: int, reason: str) -> Steps:
        self._say_dropped(arm, reason)
        self._switch_off(arm)
        yield from self._wash_out(None)

    def _say_dropped(self, arm: int, reason: str) -> None:
        self._alive.remove(arm)
        self.program.event({"event": "arm_given_up", "arm": arm, "reason": reason})

    def _block(self, arm: int, number: int) -> Steps:
        """One block of the arm; one that was spoilt is begun anew.

        Raises NotSwitched: the arm is to be given up.
        """
        for _ in range(MOST_SPOILT):
            order = ORDERS[self._draw.getrandbits(1)]
            begin_s = perf_counter()
            try:
                timed = yield from self._stretches(arm, order)
            except _Spoilt:
                self._switch_off(arm)
                continue
            fields = {"arm": arm, "number": number, "order": order, "begin_s": begin_s, "end_s": perf_counter()}
            self.program.event({"event": "arm_block", **fields, **timed})
            return
        raise NotSwitched("the program compiles something again and again")

    def _stretches(self, arm: int, order: str) -> Steps:
        toggle = self._toggles[arm]
        timed: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
        yield from self._wash_out(toggle)
        for which in order:
            if (which == "B") != toggle.is_on:
                if which == "B":
                    self.program.event({"event": "arm_switched", "arm": arm})
                    self._on = toggle
                    toggle.on()
                else:
                    self._switch_off(arm, told=True)
                yield from self._wash_out(toggle)
            timed[which].append((yield from self._stretch(toggle)))
        toggle.check_around()
        self._switch_off(arm, told=True)
        return {"baseline": timed["A"], "candidate": timed["B"]}

    def _switch_off(self, arm: int, told: bool = False) -> None:
        self._on = None
        was_on = self._toggles[arm].is_on
        try:
            self._toggles[arm].off()
        except NotSwitched:
            if told:
                raise
        finally:
            if was_on:
                self.program.event({"event": "arm_switched", "arm": None})

    # Steps that are timed, and steps that are not

    def _wash_out(self, toggle: ArmToggle | None) -> Steps:
        least = WASH_OUT_STEPS + self.program.num_queued
        quiet, before = 0, self._counters()
        for number in range(1, least + MOST_RESTLESS_STEPS + 1):
            yield 1
            now = self._counters()
            self._refuse_compiled(toggle, before, now)
            quiet, before = (quiet + 1 if now == before else 0), now
            if number >= least and quiet >= QUIET_STEPS:
                return

    def _stretch(self, toggle: ArmToggle) -> Steps:
        """Wall time of some steps, their samples or None, and how many they are."""
        length, steps = self._stretch_steps, self.program.steps
        for repeats_left in range(MOST_REPEATS, -1, -1):
            num_epochs = steps.num_epochs
            before = self._counters()
            counted, num_steps = (steps.num_samples, steps.num_uncounted), steps.num_steps
            synchronise(self.program.torch)
            begin_s = perf_counter()
            yield length
            synchronise(self.program.torch)
            duration_s = perf_counter() - begin_s
            toggle.check()
            now = self._counters()
            self._refuse_compiled(toggle, before, now)
            # Stretches of whole epochs hold as many begins each; of longer epochs they would differ.
            has_begin = steps.num_epochs != num_epochs and (steps.epoch_steps is None or steps.epoch_steps > length)
            if not (repeats_left and (has_begin or now != before)):
                break
        uncounted = steps.num_uncounted - counted[1]
        return {
            "seconds": duration_s,
            "num_steps": steps.num_steps - num_steps,
            "num_samples": None if uncounted else steps.num_samples - counted[0],
        }

    def _counters(self) -> tuple[int, int | None]:
        return self.program.num_compilations, device_allocations(self.program.torch)

    def _refuse_compiled(self, toggle: ArmToggle | None, before: tuple[int, Any], now: tuple[int, Any]) -> None:
        if now[0] == before[0] or toggle is None:
            return
        if toggle.is_on:
            self._num_recompiled += 1
            raise NotSwitched("torch compiled the program anew after the switch")
        raise _Spoilt
