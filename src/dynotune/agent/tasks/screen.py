"""Screening: arms are switched on and off in turns while the program runs, and stretches of its steps are timed.

A block of an arm is four stretches, ABBA or BAAB: B with its settings, A without. The device is synchronised at both
ends of each. After each switch some steps are not counted: those that hold what the switch sets off (plans, kernels
and memory that are needed for the first time), and as many as use up batches that were made before it. What still lasts
then is the same with the arm and without: plans and blocks of memory are kept by what they are needed for, and looked
up by that, so the next stretch without the arm finds its own again. Settings of which that is not so are not screened.
"""

from __future__ import annotations

import random
from threading import get_ident
from time import perf_counter

from ..core.writer import EPOCH
from .arm_toggle import NotSwitched, Switch
from .window import NEVER, device_allocations, is_capturing, synchronise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from ..apply.site import Args, Kwargs
    from ..core.hooks import Event, Log
    from .arm_toggle import Around, Call
    from .start_signal import Told

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


class Screen:
    """Begins after the step that it is told.

    Args:
        plan: a dict with the fields of `schema.run.ScreenPlan`.
        world_size: tells how many processes make this program.
        num_compilations: of this process so far.
        prepare: called before it begins.
        complete: called as `complete(fields)` when every arm had its blocks or was given up, or why there are none.
        event: takes what happened meanwhile: `screen_switched` (to an arm, or None), `screen_block`,
            `screen_given_up`.
    """

    def __init__(
        self,
        told: Told,
        plan: dict[str, Any],
        *,
        world_size: Callable[[], int],
        num_compilations: Callable[[], int],
        prepare: Callable[[], None],
        complete: Event,
        event: Event,
        log: Log,
    ) -> None:
        self._told, self._world_size, self._num_compilations = told, world_size, num_compilations
        self._prepare, self._complete, self._event, self._log = prepare, complete, event, log
        self._num_blocks = int(plan["num_blocks"])
        self._draw = random.Random(plan.get("seed", 0))
        self._switches = [Switch(planned, event, log) for planned in plan["arms"]]
        self._alive = list(range(len(self._switches)))
        self._num_recompiled = 0
        self._torch: Any = None
        self._on: Switch | None = None
        self._thread: int | None = None  # in which steps end; None until it begins
        self._work: Steps | None = None
        self._stop = 0
        self._num_queued = 0
        self._epoch_began_at: int | None = None
        self._epoch_steps: int | None = None
        self._num_epochs = 0
        self._replays_graphs = self._makes_steps = False
        self.steps: Any = None
        self.done = False

    @property
    def is_told(self) -> bool:
        return self._told.step is not None

    @property
    def has_begun(self) -> bool:
        return self._work is not None

    @property
    def wants_around(self) -> bool:
        """Whether calls of outermost modules must go through what `around` gives."""
        return any(switch.wants_around for switch in self._switches)

    def torch_is_here(self, torch: Any) -> None:
        self._torch = torch
        for switch in self._switches:
            switch.torch_is_here(torch)

    def around(self, inner: Around | None) -> Around:
        """`inner`, around it the arm that is on."""

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

    def recording(self, record: Callable[[float, float, int, int], None]) -> Callable[[float, float, int, int], None]:
        """`record`, which takes each step, looked at for begins of epochs."""

        def step(end_s: float, wait_s: float, num_samples: int, flags: int) -> None:
            if flags & EPOCH:
                self._num_epochs += 1
                at, now = self._epoch_began_at, self.steps.num_steps
                self._epoch_steps, self._epoch_began_at = (None if at is None else now - at), now
            record(end_s, wait_s, num_samples, flags)

        return step

    def loader_begun(self, loader: Any) -> None:
        """Its workers may have so many batches ready that the steps before a switch left over."""
        workers = int(getattr(loader, "num_workers", 0) or 0)
        self._num_queued = max(self._num_queued, workers * int(getattr(loader, "prefetch_factor", 0) or 2))

    def replayed(self) -> None:
        """A captured graph was launched: its kernels are what they were when it was captured."""
        self._replays_graphs = True

    def reached(self, num_steps: int) -> int:
        """`num_steps` have ended, the last one now. The number at which to be called next."""
        if self.done:
            return NEVER
        self._makes_steps = True
        try:
            if self._told.step is None:
                return self._told.look(num_steps)
            if num_steps < max(self._told.step, self._stop):
                return max(self._told.step, self._stop)
            if is_capturing(self._torch):
                return num_steps + 1
            if self._work is None:
                self._begin()
            if not self.done:
                self._go_on(num_steps)
        except Exception as error:
            self._failed(error)
        return NEVER if self.done else self._stop

    def finish(self) -> None:
        """The program ends. Of a process without steps, such as a launcher, there is nothing to say."""
        if self._makes_steps and not self.done:
            self._end("the program ended before all was screened", at_exit=True)

    # What comes after what

    def _begin(self) -> None:
        world_size = self._world_size()
        if world_size > 1:
            self._end("%d processes make this program: all of them would have to switch at one step" % world_size)
            return
        self._prepare()
        self._thread = get_ident()
        self._work = self._all_blocks()

    def _go_on(self, num_steps: int) -> None:
        if get_ident() != self._thread:
            self._end("its steps are made in several threads")
            return
        if self._replays_graphs:
            self._end("it replays captured CUDA graphs, which no switch reaches")
            return
        assert self._work is not None
        try:
            self._stop = num_steps + next(self._work)
        except StopIteration:
            self._end("")

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
        self._event({"event": "screen_given_up", "arm": arm, "reason": reason})

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
            self._event({"event": "screen_block", **fields, **timed})
            return
        raise NotSwitched("the program compiles something again and again")

    def _stretches(self, arm: int, order: str) -> Steps:
        switch = self._switches[arm]
        timed: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
        yield from self._wash_out(switch)
        for which in order:
            if (which == "B") != switch.is_on:
                if which == "B":
                    self._event({"event": "screen_switched", "arm": arm})
                    self._on = switch
                    switch.on()
                else:
                    self._switch_off(arm, told=True)
                yield from self._wash_out(switch)
            timed[which].append((yield from self._stretch(switch)))
        switch.check_around()
        self._switch_off(arm, told=True)
        return {"baseline": timed["A"], "candidate": timed["B"]}

    def _switch_off(self, arm: int, told: bool = False) -> None:
        self._on = None
        was_on = self._switches[arm].is_on
        try:
            self._switches[arm].off()
        except NotSwitched:
            if told:
                raise
        finally:
            if was_on:
                self._event({"event": "screen_switched", "arm": None})

    # Steps that are timed, and steps that are not

    def _wash_out(self, switch: Switch | None) -> Steps:
        least = WASH_OUT_STEPS + self._num_queued
        quiet, before = 0, self._counters()
        for number in range(1, least + MOST_RESTLESS_STEPS + 1):
            yield 1
            now = self._counters()
            self._refuse_compiled(switch, before, now)
            quiet, before = (quiet + 1 if now == before else 0), now
            if number >= least and quiet >= QUIET_STEPS:
                return

    def _stretch(self, switch: Switch) -> Steps:
        """Wall time of some steps, their samples or None, and how many they are."""
        length = max(1, self._told.num_steps or 1)
        for repeats_left in range(MOST_REPEATS, -1, -1):
            num_epochs = self._num_epochs
            before = self._counters()
            counted, num_steps = (self.steps.num_samples, self.steps.num_uncounted), self.steps.num_steps
            synchronise(self._torch)
            begin_s = perf_counter()
            yield length
            synchronise(self._torch)
            duration_s = perf_counter() - begin_s
            switch.check()
            now = self._counters()
            self._refuse_compiled(switch, before, now)
            # Stretches of whole epochs hold as many begins each; of longer epochs they would differ.
            has_begin = self._num_epochs != num_epochs and (self._epoch_steps is None or self._epoch_steps > length)
            if not (repeats_left and (has_begin or now != before)):
                break
        uncounted = self.steps.num_uncounted - counted[1]
        return {
            "seconds": duration_s,
            "num_steps": self.steps.num_steps - num_steps,
            "num_samples": None if uncounted else self.steps.num_samples - counted[0],
        }

    def _counters(self) -> tuple[int, int | None]:
        return self._num_compilations(), device_allocations(self._torch)

    def _refuse_compiled(self, switch: Switch | None, before: tuple[int, Any], now: tuple[int, Any]) -> None:
        if now[0] == before[0] or switch is None:
            return
        if switch.is_on:
            self._num_recompiled += 1
            raise NotSwitched("torch compiled the program anew after the switch")
        raise _Spoilt

    # Its end

    def _end(self, reason: str, at_exit: bool = False) -> None:
        self.done = True
        self._on = None
        for switch in self._switches:
            try:
                switch.off()
            except NotSwitched:
                pass  # what the program has changed stays
            except Exception as error:
                self._log("screen", error)
        self._complete({"reason": reason, "at_exit": at_exit})

    def _failed(self, error: Exception) -> None:
        self._log("screen", error)
        self._end("it failed: %s: %s" % (type(error).__name__, error))
