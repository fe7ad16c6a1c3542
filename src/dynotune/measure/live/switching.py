"""Arms that can change at any step, compared with the baseline within one live run.

Each arm is switched on and off in blocks of stretches. Nothing starts for it, and what differs between processes is the
same on both sides.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from dynotune import knobs
from dynotune.launch import error_line
from dynotune.launch.caches import contents
from dynotune.launch.process import environment
from dynotune.launch.records import Record
from dynotune.measure.live.live_run import Answer
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.pilot import epoch_steps
from dynotune.measure.live.placement import earliest, recent_step_s
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Estimate
from dynotune.schema.task import PlannedSetting, SwitchArms

NUM_BLOCKS = 8
CONFIDENCE = 0.95
# A process that is pushed off its core is away for some milliseconds; a short stretch holds that, or does not.
STRETCH_S = 0.15
FEWEST_STEPS = 4
# Of epochs up to so many stretches long, a stretch holds whole ones.
MOST_STRETCHES_AN_EPOCH = 4
# An arm that ends the program with an error takes the others' turns with it: they begin anew without it.
MOST_CRASHES = 2
FEWEST_BLOCKS = 3
# A start, and a block of an arm, take more than this.
LEAST_S = 5.0
CRASHED = "the program ended with an error while it was on"
HAS_ALREADY = "the program has it already"
"""As the agent says it of an arm that is given up, because it would change nothing."""
# What an arm leaves behind shows in the stretches without it: those after it differ from those before by so much.
LEFT_BEHIND, LEFT_BEHIND_ERROR = 0.03, 0.001


class Arm(Protocol):
    """`search.bench.Arm`, as much as is needed here."""

    @property
    def settings(self) -> tuple[Setting, ...]: ...

    @property
    def key(self) -> str: ...


class Stretch(msgspec.Struct, frozen=True):
    """Some steps, timed as a whole, the device synchronised at both ends."""

    seconds: float
    num_steps: int
    num_samples: int | None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Two stretches with the arm (its index) and two without, in `order`, of which A is without.

    Args:
        begin_s, end_s: of all of it, the steps that are not counted included; CLOCK_MONOTONIC.
    """

    arm: int
    number: int
    order: Literal["ABBA", "BAAB"]
    begin_s: float
    end_s: float
    baseline: list[Stretch]
    candidate: list[Stretch]

    def unit_s(self, *, by_sample: bool) -> tuple[float, float]:
        """Return the seconds a sample, or a step, of the baseline and of the arm."""
        return _unit_s(self.baseline, by_sample=by_sample), _unit_s(self.candidate, by_sample=by_sample)


class SwitchedArms(msgspec.Struct, frozen=True, kw_only=True):
    """What came of arms that were switched.

    Args:
        blocks: of each arm, by its key.
        given_up: keys of arms that have no estimate, with the reason.
        blamed: of an arm in which a call failed, the knobs without which it went well.
        unsuited: of an arm that was given up, the knobs that cannot be switched in this program.
        results: of each arm, what calls gave without it and with it; the agent's events.
        reason: why it ended before all arms had all their blocks; empty if they had.
        ended_program: the program ended with an error while an arm was on.
        ran_out: the program ended by itself before all arms had all their blocks.
        stretch_steps: steps of each stretch; 0 if it never began.
        wall_s: of all its runs, starts included.
        folder: of the last run.
        step: what a step is, in words.
    """

    blocks: dict[str, list[Block]] = {}
    given_up: dict[str, str] = {}
    blamed: dict[str, list[str]] = {}
    unsuited: dict[str, list[str]] = {}
    results: dict[str, dict[str, Any]] = {}
    reason: str = ""
    ended_program: bool = False
    ran_out: bool = False
    stretch_steps: int = 0
    wall_s: float = 0.0
    folder: str = ""
    step: str = ""
    outcome: Outcome | None = None

    @property
    def estimates(self) -> list[Estimate]:
        return [estimate(key, blocks) for key, blocks in self.blocks.items()]


def switch_arms(
    request: RunSpec,
    arms: Sequence[Arm],
    left_s: float,
    *,
    folder: Path,
    facts: Facts,
    watcher: Watcher,
    cache_folder: Path | None = None,
    num_blocks: int = NUM_BLOCKS,
    fewest_blocks: int = FEWEST_BLOCKS,
    stretch_s: float = STRETCH_S,
    num_results: int = 0,
    give_up_slow: bool = False,
    runner: TaskRunner | None = None,
    goes_on: bool = False,
    enough: Callable[[Mapping[str, list[Block]]], bool] | None = None,
) -> SwitchedArms:
    """Compare each arm with the request's baseline, in turns within one run of the command.

    The machine is not asked for: whoever calls this has it to itself.

    Args:
        left_s: for all of it; what is known by then is given.
        folder: that the run folders are made in.
        facts: of machine and target.
        cache_folder: of compilers; by default what the request's environment says.
        fewest_blocks: an arm with fewer is given up.
        stretch_s: the least that a stretch lasts.
        num_results: calls of each arm whose results are compared.
        give_up_slow: have no more blocks of an arm with which steps take far longer.
        runner: has a live run of the baseline that may go on with this; None, or one that has ended, for a new one.
        goes_on: leave the runner's live run as it is afterwards, for further tasks.
        enough: is shown the blocks so far, by the arms' keys, and says whether they will do.

    Raises:
        CannotRunHere: the machine, not an arm: no folder can be made, the command cannot be started.
    """
    began_s = time.monotonic()
    given_up = {arm.key: reason for arm in arms if (reason := _why_not(arm))}
    found = SwitchedArms(given_up=given_up)
    waiting = [arm for arm in arms if arm.key not in given_up]
    if not waiting:
        return msgspec.structs.replace(found, reason="no arm can change at any step")
    caches = contents.environment(cache_folder) if cache_folder is not None else {}
    with ExitStack() as leave:
        for _ in range(1 + MOST_CRASHES):
            rest_s = left_s - (time.monotonic() - began_s)
            if rest_s < LEAST_S:
                found = msgspec.structs.replace(found, reason=found.reason or f"the {left_s:.0f} s given are too few")
                break
            watcher.running(f"{len(waiting)} arms in turns, within one run")
            if runner is None or not runner.goes_on:
                spec = msgspec.structs.replace(request, base=folder, run_to_end=False)
                runner = leave.enter_context(
                    TaskRunner(
                        spec,
                        watcher,
                        facts=facts,
                        label="the run that switches arms",
                        limit_s=min(rest_s, request.timeout_s or rest_s),
                        cache_folder=cache_folder,
                    )
                )
                runner.start()
            more = {"num_results": num_results, "give_up_slow": give_up_slow}
            switched = _Switched(runner, request, waiting, facts, num_blocks, rest_s, caches, enough, stretch_s, more)
            if not goes_on:
                runner.end()
            after = switched.found(fewest_blocks)
            both = {name: {**getattr(found, name), **getattr(after, name)} for name in _BY_ARM}
            found = msgspec.structs.replace(after, **both)
            waiting = [arm for arm in waiting if arm.key not in found.blocks and arm.key not in found.given_up]
            if not waiting:
                break
    unknown = {arm.key: found.reason for arm in waiting}
    return msgspec.structs.replace(found, given_up={**found.given_up, **unknown}, wall_s=time.monotonic() - began_s)


def estimate(key: str, blocks: Sequence[Block]) -> Estimate:
    """Return what an arm's blocks say; each gives one value, the logarithm of the baseline's time over the arm's.

    By sample if every stretch knows its samples, else by step. The interval is Student's t over the blocks.

    Raises:
        statistics.StatisticsError: there are fewer than two.
    """
    from scipy.special import stdtr, stdtrit

    by_sample = counts_samples(blocks)
    values = [math.log(a_s / b_s) for a_s, b_s in (block.unit_s(by_sample=by_sample) for block in blocks)]
    df = len(values) - 1
    mean, spread = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    reach = float(stdtrit(df, (1 + CONFIDENCE) / 2)) * spread
    p = float(stdtr(df, -mean / spread)) if spread else float(mean <= 0)
    return Estimate(
        arm=key,
        against="",
        phase="switch",
        speedup=math.exp(mean),
        ci=(math.exp(mean - reach), math.exp(mean + reach)),
        num_blocks=len(values),
        confidence=CONFIDENCE,
        p=p,
    )


def counts_samples(blocks: Sequence[Block]) -> bool:
    """Whether every stretch of the blocks knows its samples."""
    return all(stretch.num_samples for block in blocks for stretch in [*block.baseline, *block.candidate])


def _unit_s(stretches: Sequence[Stretch], *, by_sample: bool) -> float:
    units = sum((stretch.num_samples or 0) if by_sample else stretch.num_steps for stretch in stretches)
    return sum(stretch.seconds for stretch in stretches) / units


def why_left_behind(blocks: Sequence[Block]) -> str:
    """Return why the baseline is not what it was once the arm is off again; empty if it is.

    In a block ABBA one stretch of the baseline comes before the arm and one after it.
    """
    from scipy.special import stdtr

    by_sample = counts_samples(blocks)
    shifts = [
        math.log(_unit_s(block.baseline[1:], by_sample=by_sample) / _unit_s(block.baseline[:1], by_sample=by_sample))
        for block in blocks
        if block.order == "ABBA" and len(block.baseline) == 2
    ]
    if len(shifts) < 3:
        return ""
    mean, spread = statistics.fmean(shifts), statistics.stdev(shifts) / math.sqrt(len(shifts))
    p = 2 * float(stdtr(len(shifts) - 1, -abs(mean) / spread)) if spread else float(mean == 0)
    if abs(mean) <= LEFT_BEHIND or p > LEFT_BEHIND_ERROR:
        return ""
    return f"once it is off again, a step takes {math.expm1(mean):+.0%} of what it took before"


def _why_not(arm: Arm) -> str:
    if not arm.settings:
        return "it is the baseline"
    reasons = ((setting, knobs.why_not_switched(setting)) for setting in arm.settings)
    return "; ".join(f"{setting}: {reason}" for setting, reason in reasons if reason)


_BY_ARM = ("blocks", "given_up", "blamed", "unsuited", "results")


class _Switched:
    """What came of one task, and of the program meanwhile.

    Args:
        runner: of a live run of the command with the baseline's settings.
        more: fields of the task.
    """

    def __init__(
        self,
        runner: TaskRunner,
        run: RunSpec,
        arms: Sequence[Arm],
        facts: Facts,
        num_blocks: int,
        limit_s: float,
        caches: Mapping[str, str],
        enough: Callable[[Mapping[str, list[Block]]], bool] | None,
        stretch_s: float,
        more: dict[str, Any],
    ) -> None:
        self._arms, self._runner, self._caches, self._stretch_s = arms, runner, caches, stretch_s
        self._more = more
        self._run, self._facts, self._num_blocks = run, facts, num_blocks
        self._task: SwitchArms | None = None
        self._before: dict[str, int] = {}  # events of earlier tasks
        self._ran_out = False
        self._keys = [arm.key for arm in arms]

        def have_enough(records: Sequence[Record]) -> bool:
            return bool(records) and enough is not None and enough(self._said(records[0]).blocks)

        try:
            self._answer = runner.do(self._soon, self._within, what="switched", limit_s=limit_s, enough=have_enough)
        except CannotRunHere as error:
            self._answer = Answer(reason=error.message)
        self._outcome: Outcome = runner.outcome()
        self._record = next(iter(self._outcome.records), None)

    def _soon(self, records: Sequence[Record]) -> SwitchArms:
        self._before = {name: len(events) for name, events in records[0].events.items()}
        self._task = SwitchArms(
            at_step=earliest(records),
            arms=[_planned(arm, self._run.base, self._facts) for arm in self._arms],
            num_blocks=self._num_blocks,
            stretch_steps=_stretch_steps(records, self._stretch_s, self._arms),
            seed=self._run.seed or 0,
            step_s=recent_step_s(records[0]),
            **self._more,
            caches=dict(self._caches),
        )
        return self._task

    def _within(self, record: Record) -> SwitchArms:
        self._ran_out = True
        raise CannotRunHere(f"the program ended after {len(record.steps)} steps")

    @property
    def crashed(self) -> int | None:
        """The arm that was on when the program ended with an error; None if none did."""
        run = self._outcome.run
        if self._record is None or run.ended_by != "command" or not run.exit_code:
            return None
        arm = (self._record.last("arm_switched") or {}).get("arm")
        return arm if isinstance(arm, int) and 0 <= arm < len(self._arms) else None

    def _said(self, record: Record | None) -> SwitchedArms:
        """What the agent has said of this task's arms so far; what is damaged in a record says nothing."""
        keys = self._keys
        found = SwitchedArms(blocks={key: [] for key in keys}, given_up={}, blamed={}, unsuited={}, results={})
        for at, event in self._events(record, "arm_given_up"):
            found.given_up[keys[at]] = str(event.get("reason", ""))
            found.blamed[keys[at]] = [str(knob) for knob in event.get("blamed") or ()]
            found.unsuited[keys[at]] = [str(knob) for knob in event.get("unsuited") or ()]
        for at, event in self._events(record, "arm_results"):
            found.results[keys[at]] = event
        for at, event in self._events(record, "arm_block"):
            if (block := _block(event)) is not None:
                found.blocks[keys[at]].append(block)
        return found

    def _events(self, record: Record | None, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Those of this task, with the arm that they are of."""
        if record is None:
            return
        for event in record.events.get(name, [])[self._before.get(name, 0) :]:
            if isinstance(at := event.get("arm"), int) and 0 <= at < len(self._keys):
                yield at, event

    def found(self, fewest_blocks: int) -> SwitchedArms:
        said = self._said(self._record)
        given_up, blocks = dict(said.given_up), {}
        if self.crashed is not None:
            line = error_line(self._outcome.folder)
            given_up[self._keys[self.crashed]] = ": ".join(filter(None, [CRASHED, line]))
        for key in (key for key in self._keys if key not in given_up):
            whole = said.blocks[key]
            if reason := why_left_behind(whole):
                given_up[key] = reason
            elif len(whole) >= fewest_blocks:
                blocks[key] = whole
            elif self.crashed is None:
                # If another arm ended the program, there is one more run for those that it left without.
                why = self._answer.reason or "the others were not whole"
                given_up[key] = f"only {len(whole)} of its blocks count: {why}"
        step = (self._record.last("cycle") or {}).get("step", "") if self._record is not None else ""
        return SwitchedArms(
            blocks=blocks,
            given_up=given_up,
            blamed=said.blamed,
            unsuited=said.unsuited,
            results=said.results,
            reason=self._answer.reason,
            ended_program=self.crashed is not None,
            ran_out=self._ran_out,
            stretch_steps=self._task.stretch_steps if self._task is not None else 0,
            folder=str(self._outcome.folder),
            step=step,
            outcome=self._outcome.without_steps,
        )


def _planned(arm: Arm, folder: Path, facts: Facts) -> list[PlannedSetting]:
    _, planned = environment.build(arm.settings, {}, run_dir=folder, facts=facts)
    return planned


def _stretch_steps(records: Sequence[Record], stretch_s: float, arms: Sequence[Arm]) -> int:
    """Steps of a stretch that is long enough to time, and of whole epochs where they are short.

    Workers make batches side by side, so that they come several at a time: a stretch holds one of each worker's.
    """
    workers = [int(str(one.value)) for arm in arms for one in arm.settings if one.knob == "loader.num_workers"]
    num_steps = max(FEWEST_STEPS, math.ceil(stretch_s / recent_step_s(records[0])), *workers)
    epoch = epoch_steps(records)
    if epoch is not None and epoch <= MOST_STRETCHES_AN_EPOCH * num_steps:
        num_steps = math.ceil(num_steps / epoch) * epoch
    return num_steps


def _block(event: dict[str, Any]) -> Block | None:
    """None if it is not whole."""
    try:
        block = document.convert(event, Block)
    except ValueError:
        return None
    stretches = [*block.baseline, *block.candidate]
    is_whole = block.baseline and block.candidate and all(s.seconds > 0 and s.num_steps > 0 for s in stretches)
    return block if is_whole else None
