"""Have candidates take turns with the baseline, in blocks within live runs of the command.

A caller iterates over the blocks and stops when it has enough:

    with Live(run, folder, facts, watcher) as live:
        turns = live.turns([candidate], left_s=60.0)
        for blocks in turns:
            if judge(blocks[candidate.key]).finished:
                break
        found = turns.found()
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from dynotune.launch.caches import contents
from dynotune.launch.process import environment
from dynotune.launch.records import Record
from dynotune.measure.live import switching
from dynotune.measure.live.baseline_shift import larger_shift
from dynotune.measure.live.live_run import LiveRun, Order
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.placement import earliest, past_epoch_begin, recent_step_s, recent_wait_share
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.switching import SwitchedArms
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.measure.live.window_plan import epoch_steps
from dynotune.schema.arm import Arm
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.events import ArmSwitched, Block, Event, Window
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from dynotune.schema.task import PlannedSetting, SwitchArms, TimeWindow

NUM_BLOCKS = 8
# A process that the kernel preempts is away for some milliseconds, which a short stretch contains or not.
STRETCH_S = 0.15
FEWEST_STEPS = 4
PLAIN_STRETCHES = 2  # length of the plain window, if the live run has none yet
MOST_STRETCHES_AN_EPOCH = 4  # if epochs take at most this many stretches, a stretch contains whole epochs
# A candidate that ends the program with an error also ends the others' turns; they begin again without it.
MOST_CRASHES = 2
FEWEST_BLOCKS = 2
LEAST_S = 5.0  # a start and a block of a candidate together take longer than this
_BY_ARM = ("blocks", "given_up", "codes", "blamed", "unsuited", "results", "shifts")


class TurnsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How arms take turns.

    Args:
        num_blocks: most blocks of each arm. fewest_blocks: an arm with fewer blocks is given up.
        stretch_s: shortest duration (s) of a stretch.
        first_s: seconds after which the turns end if no block is whole.
        again: start the command again if it ends before all blocks were made.
        num_results: number of calls of each candidate whose results are compared.
        rounding: share by which the candidates may round a number.
        give_up_slow: stop blocks of a candidate whose steps take far longer.
    """

    num_blocks: int = NUM_BLOCKS
    fewest_blocks: int = FEWEST_BLOCKS
    stretch_s: float = STRETCH_S
    first_s: float = math.inf
    again: bool = False
    num_results: int = 0
    rounding: float = 0.0
    give_up_slow: bool = False


EACH_ARM_IN_TURN = TurnsPlan()


class Live(AbstractContextManager["Live"]):
    """A live run of the command as it is, in which arms take turns with it. Leaving the `with` block ends the
    run.

    The command starts with the first turns, and again with later ones if it has ended by then. The machine
    has to be reserved by the caller.

    Args:
        run: the command, with the baseline's settings.
        folder: folder in which run folders are made.
        facts: facts of machine and target.
        cache_folder: folder of compilers' caches; by default that of the run's environment.
        limit_s: most seconds of a live run; None for the time of the turns that start it.
        runner: of a live run that another has begun. If that run has ended, the command is started here.
    """

    def __init__(
        self,
        run: RunSpec,
        folder: Path,
        facts: Facts,
        watcher: Watcher,
        *,
        cache_folder: Path | None = None,
        limit_s: float | None = None,
        runner: TaskRunner | None = None,
    ) -> None:
        self.run, self.folder, self.facts, self.watcher = run, folder, facts, watcher
        self.cache_folder, self.limit_s = cache_folder, limit_s
        self._leave, self._runner, self._is_own = ExitStack(), runner, runner is None

    def __exit__(self, *error: object) -> None:
        with self._leave:
            if not error or error[0] is None:
                self.end()

    @property
    def goes_on(self) -> bool:
        return self._runner is not None and self._runner.goes_on

    def makes_steps(self) -> bool:
        """Tell whether the run goes on and makes steps; while it compiles, no step may end for minutes."""
        return self._runner is not None and self._runner.goes_on and self._runner.makes_steps()

    def outcome(self) -> Outcome | None:
        """Return what the present run has shown so far; None if no run goes on."""
        return self._runner.outcome() if self._runner is not None and self._runner.goes_on else None

    def turns(self, arms: Sequence[Arm], left_s: float, plan: TurnsPlan = EACH_ARM_IN_TURN) -> "Turns":
        """Return the arms' turns with the baseline, in at most `left_s` seconds; nothing runs before the
        first block.

        The iteration raises CannotRunHere: no folder can be made, or the command cannot start, whatever the
        candidate.
        """
        return Turns(self, arms, left_s, plan)

    def ready(self, left_s: float) -> TaskRunner:
        """Return the runner of a live run that goes on, which is started if there is none."""
        if self._runner is not None and self._runner.goes_on:
            return self._runner
        limit_s = self.limit_s or min(left_s, self.run.timeout_s or left_s)
        if self._runner is None or not self._is_own:
            run = msgspec.structs.replace(self.run, base=self.folder, run_to_end=False)
            made = TaskRunner(
                run,
                self.watcher,
                facts=self.facts,
                label="the run that switches arms",
                limit_s=limit_s,
                cache_folder=self.cache_folder,
            )
            self.end()
            self._runner, self._is_own = self._leave.enter_context(made), True
        self._runner.limit_s = limit_s
        self._runner.start()
        return self._runner

    def end(self) -> None:
        """End the run, so that other runs have the machine; later turns start it again."""
        if self._runner is not None and self._runner.live is not None:
            self._runner.end()


class Turns:
    """Iterates over the blocks so far, by arm's key, each time that a block was made. Stop iterating to end
    the turns.

    Blocks of an earlier item may be left out of a later one: if the command is started again, orders have to
    balance.
    """

    def __init__(self, live: Live, arms: Sequence[Arm], left_s: float, plan: TurnsPlan) -> None:
        self._live, self._plan = live, plan
        self._began_s, self._left_s = time.monotonic(), left_s
        given_up = {arm.key: reason for arm in arms if (reason := switching.why_not(arm))}
        self._found = SwitchedArms(given_up=given_up)
        self._round: _Round | None = None
        self._waiting = [arm for arm in arms if arm.key not in given_up]
        if not self._waiting:
            self._found = msgspec.structs.replace(self._found, reason="no candidate can change at any step")

    def __iter__(self) -> Iterator[dict[str, list[Block]]]:
        num_crashes = 0
        while self._waiting and num_crashes <= MOST_CRASHES:
            starts, rest_s = not self._live.goes_on, self._rest_s
            if rest_s < (LEAST_S if starts else 4 * self._plan.stretch_s):
                few = f"the {self._left_s:.0f} s given are too few"
                self._found = msgspec.structs.replace(self._found, reason=self._found.reason or few)
                break
            num = len(self._waiting)
            arms = "the command with and without it" if num == 1 else f"the command with {num} arms"
            self._live.watcher.running(f"{arms}, in turns within one run")
            runner = self._live.ready(rest_s)
            self._time_plainly(runner, rest_s)
            self._round = _Round(
                runner, [arm.key for arm in self._waiting], self._task, rest_s, self._is_late
            )
            for made in self._round:
                yield self._with_earlier(made)
            before, waiting = self._found, self._waiting
            if self._goes_through_again(self._end_round(), starts):
                # The next run begins with both orders, so the number of blocks before it must be even.
                even = {key: blocks[: len(blocks) // 2 * 2] for key, blocks in self._found.blocks.items()}
                self._found = msgspec.structs.replace(self._found, given_up=before.given_up, blocks=even)
                self._waiting = waiting
            else:
                num_crashes += 1

    @property
    def _rest_s(self) -> float:
        return self._left_s - (time.monotonic() - self._began_s)

    def _is_late(self) -> bool:
        return time.monotonic() - self._began_s > self._plan.first_s

    def found(self) -> SwitchedArms:
        """Return what the turns so far say of each arm."""
        if self._round is not None:
            self._end_round()
        found = self._found
        unknown = {arm.key: found.reason for arm in self._waiting if arm.key not in found.blocks}
        given_up, wall_s = {**found.given_up, **unknown}, time.monotonic() - self._began_s
        return msgspec.structs.replace(found, given_up=given_up, wall_s=wall_s)

    def _with_earlier(self, now: dict[str, list[Block]]) -> dict[str, list[Block]]:
        return {key: [*self._found.blocks.get(key, ()), *blocks] for key, blocks in now.items()}

    @property
    def _num_earlier(self) -> int:
        return max(len(self._found.blocks.get(arm.key, ())) for arm in self._waiting)

    def _end_round(self) -> SwitchedArms:
        """Add what the present live run says, and return that."""
        assert self._round is not None
        before, after = self._found, self._round.result(self._plan.fewest_blocks - self._num_earlier)
        self._round = None
        both: dict[str, Any] = {name: {**getattr(before, name), **getattr(after, name)} for name in _BY_ARM}
        for key in before.shifts.keys() & after.shifts.keys():
            both["shifts"][key] = larger_shift(before.shifts[key], after.shifts[key])
        both["cupti_stays"] = before.cupti_stays or after.cupti_stays
        both["blocks"] = before.blocks | self._with_earlier(after.blocks)
        self._found = found = msgspec.structs.replace(after, **both)
        self._waiting = [
            arm for arm in self._waiting if arm.key not in found.blocks and arm.key not in found.given_up
        ]
        return after

    def _goes_through_again(self, after: SwitchedArms, starts: bool) -> bool:
        """Tell whether the command, which ended before enough blocks were made, goes through its steps
        again."""
        made = max(map(len, after.blocks.values()), default=0)
        has_time = self._rest_s >= LEAST_S
        again = self._plan.again and after.ran_out and has_time and (not starts or made > 1)
        if again:
            self._live.watcher.say(f"The command is run again for more blocks: {after.reason}.")
        return again

    def _task(self, runner: TaskRunner, records: Sequence[Record]) -> SwitchArms:
        # Recent steps may have been made with an earlier candidate, which stays on until the next task
        # begins.
        live, plan, step_s = self._live, self._plan, runner.step_s or recent_step_s(records[0])
        return SwitchArms(
            at_step=earliest(records),
            arms=[self._planned(arm) for arm in self._waiting],
            num_blocks=plan.num_blocks - self._num_earlier,
            stretch_steps=stretch_steps(records, plan.stretch_s, step_s, self._waiting),
            seed=live.run.seed or 0,
            step_s=step_s,
            waits=1.0 if _most_workers(self._waiting) else recent_wait_share(records[0]),
            num_results=plan.num_results,
            rounding=plan.rounding,
            give_up_slow=plan.give_up_slow,
            caches=contents.environment(live.cache_folder) if live.cache_folder is not None else {},
        )

    def _planned(self, arm: Arm) -> list[PlannedSetting]:
        run_dir, facts = self._live.run.base, self._live.facts
        return environment.build(arm.settings, {}, run_dir=run_dir, facts=facts)[1]

    def _time_plainly(self, runner: TaskRunner, limit_s: float) -> None:
        """Time a window of the command as it is, unless the live run has one; without one, no baseline is
        checked."""
        if runner.live is not None and any(
            record.last(Window) is not None for record in runner.live.records()
        ):
            return

        def plain(records: Sequence[Record]) -> TimeWindow:
            step_s = runner.step_s or recent_step_s(records[0])
            num_steps = PLAIN_STRETCHES * stretch_steps(records, self._plan.stretch_s, step_s, self._waiting)
            return TimeWindow(
                at_step=past_epoch_begin(records[0], earliest(records), num_steps), num_steps=num_steps
            )

        def within(record: Record) -> TimeWindow:
            raise CannotRunHere(f"the program ended after {len(record.steps)} steps")

        with suppress(CannotRunHere):
            runner.do(plain, within, what="timed", limit_s=limit_s)


class _Round:
    """One task in one live run. Iterates over the task's blocks so far, by arm's key, each time that one was
    made.

    Args:
        runner: runner of a live run with the baseline's settings.
        keys: keys of the task's candidates.
        place: makes the task from the records of a program whose steps are steady.
        is_late: tells whether a first block is out of time.
    """

    def __init__(
        self,
        runner: TaskRunner,
        keys: Sequence[str],
        place: Callable[[TaskRunner, Sequence[Record]], SwitchArms],
        limit_s: float,
        is_late: Callable[[], bool],
    ) -> None:
        self._runner, self._keys, self._place = runner, keys, place
        self._limit_s, self._is_late = limit_s, is_late
        self._task: SwitchArms | None = None
        self._order: Order | None = None
        self._since_s, self._before = 0.0, dict[type[Event], int]()  # events of earlier tasks
        self._reason, self._ran_out = "", False

    def __iter__(self) -> Iterator[dict[str, list[Block]]]:
        try:
            self._order = order = self._runner.order(self._placed, limit_s=self._limit_s)
        except CannotRunHere as error:
            self._reason = error.message
            return
        live, num, goes_on = self._live, 0, order is not None
        while order is not None and goes_on and not order.is_over:

            def until(records: list[Record], seen: int = num) -> bool:
                return order(records) or self._num_made(records) > seen or (not seen and self._is_late())

            goes_on = live.until(until)
            if (made := self._num_made(live.records())) > num:
                num = made
                yield self._said().blocks
            if not num and self._is_late() and not order.is_over:
                return
        self._conclude()

    @property
    def _live(self) -> LiveRun:
        assert self._runner.live is not None
        return self._runner.live

    def _placed(self, records: Sequence[Record]) -> SwitchArms:
        self._since_s = time.monotonic()
        self._before.update({kind: len(events) for kind, events in records[0].events.items()})
        self._task = self._place(self._runner, records)
        return self._task

    def _num_made(self, records: Sequence[Record]) -> int:
        made = records[0].all(Block) if records else []
        return len(made) - self._before.get(Block, 0)

    def _conclude(self) -> None:
        """Note why the task ended, whose caller would have taken more blocks."""
        answer = None if self._order is None else self._live.answer(self._order)
        if answer is not None and not (answer.reason and answer.at_exit):
            self._reason = answer.reason
            return
        self._ran_out, self._reason = self._runner.ended_well, self._live.answer_at_end().reason

    def _said(self) -> SwitchedArms:
        return switching.said(next(iter(self._live.records()), None), self._keys, self._before, self._since_s)

    def result(self, fewest_blocks: int) -> SwitchedArms:
        """Return what the task says of its arms, and the state of the program meanwhile."""
        self._live.look()
        tasks_switched = self._before.get(ArmSwitched, 0) if self._task is not None else None
        return switching.concluded(
            self._runner.outcome(),
            self._said(),
            self._keys,
            fewest_blocks,
            reason=self._reason,
            ran_out=self._ran_out or self._task is None,
            stretch_steps=0 if self._task is None else self._task.stretch_steps,
            num_switched_before=tasks_switched,
        )


def stretch_steps(records: Sequence[Record], stretch_s: float, step_s: float, arms: Sequence[Arm]) -> int:
    """Return the number of steps of a stretch that is long enough to time, with whole epochs if epochs are
    short.

    All ranks take equally many steps, so there a stretch has a batch of each worker of any candidate.
    """
    num_steps = max(
        FEWEST_STEPS, math.ceil(stretch_s / step_s), _most_workers(arms) if len(records) > 1 else 0
    )
    epoch = epoch_steps(records)
    if epoch is not None and epoch <= MOST_STRETCHES_AN_EPOCH * num_steps:
        num_steps = math.ceil(num_steps / epoch) * epoch
    return num_steps


def _most_workers(arms: Sequence[Arm]) -> int:
    """Return the largest number of workers that an arm asks for, since batches come in bursts of so many."""
    asked = (one.value for arm in arms for one in arm.settings if one.knob == "loader.num_workers")
    return max([0, *(int(str(value)) for value in asked)])
