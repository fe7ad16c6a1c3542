"""Screening: arms that can change at any step are tried in one process, in turns, before any is raced.

What is found is an `Estimate` of phase "switch": it orders the arms and drops the hopeless. It proves nothing: that is
for fresh processes.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from dynotune import knobs, probe
from dynotune.launch.process import environment
from dynotune.launch.records import Record
from dynotune.measure.live.live_run import Answer
from dynotune.measure.live.machine import facts_of
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.pilot import epoch_steps
from dynotune.measure.live.placement import earliest, recent_step_s
from dynotune.measure.live.request import Silent, Watcher
from dynotune.measure.live.task_runner import TaskRunner
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

LASTS: Mapping[str, str] = {
    "cudnn.benchmark": "cuDNN keeps the plan that it chose for a shape, by whichever way, and looks there first: of "
    "shapes seen before the switch nothing would change",
    "compile.mode": "a module that is compiled stays so, and compiling takes longer than a run",
    "transfer.non_blocking": "it covers Tensor.to and others, and the covers would stay in the baseline's way",
    "determinism.algorithms=true": "an operation without a deterministic algorithm would end the program, and with it "
    "the screening of all others",
    "precision.autocast=fp16": "the loss scale that one half settles at would be taken into the other",
    "precision.autocast=off": "the loss scale that one half settles at would be taken into the other",
}
"""Knobs, or settings, that can change at any step and are not screened, with the reason.

Of the others: matrix products are planned by their precision, convolutions by determinism and type, so the plans of
both halves lie side by side; threads are as many as the last call says, in the thread that makes the steps; what
autocast casts is dropped at the end of each call; and the allocator's free blocks of the other half lie idle, which
costs nothing while memory suffices.
"""


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


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a screening.

    Args:
        given_up: keys of arms that have no estimate, with the reason.
        reason: why it ended before all arms had all their blocks; empty where they had.
        num_void: blocks that count for nothing: something outside the command's processes disturbed them.
        stretch_steps: steps of each stretch; 0 where it never began.
        wall_s: of all its runs, starts included.
        folder: of the last run.
    """

    estimates: list[Estimate] = []
    given_up: dict[str, str] = {}
    reason: str = ""
    num_void: int = 0
    stretch_steps: int = 0
    wall_s: float = 0.0
    folder: str = ""


def why_not_in_process(setting: Setting) -> str:
    """Why a setting cannot be screened; empty where it can.

    Raises:
        UsageError: there is no such knob.
    """
    if knobs.get(setting.knob).when != "any":
        return "it acts when something begins or is made, not at any step"
    return LASTS.get(setting.knob, "") or LASTS.get(str(setting), "")


def screened(
    request: RunSpec,
    arms: Sequence[Arm],
    left_s: float,
    *,
    folder: Path | None = None,
    cache_folder: Path | None = None,
    facts: Facts | None = None,
    watcher: Watcher | None = None,
    num_blocks: int = NUM_BLOCKS,
    runner: TaskRunner | None = None,
) -> Screened:
    """Compare each arm with the request's baseline, in turns within one run of the command.

    The machine is not asked for: whoever calls this has it to itself.

    Args:
        left_s: for all of it; what is known by then is given.
        folder: that the run folders are made in; by default the request's.
        cache_folder: of the baseline's compile and kernel caches; by default what the request's environment says.
        facts: of machine and target; asked for where None.
        runner: has a live run of the baseline that may go on with this; None, or one that has ended, for a new one.

    Raises:
        CannotRunHere: the machine, not an arm: no folder can be made, the command cannot be started.
    """
    began_s = time.monotonic()
    facts = facts if facts is not None else facts_of(request)
    given_up = {arm.key: reason for arm in arms if (reason := _why_not(arm))}
    found = Screened(given_up=given_up)
    waiting = [arm for arm in arms if arm.key not in given_up]
    if not waiting:
        return msgspec.structs.replace(found, reason="no arm can change at any step")
    with ExitStack() as leave:
        for _ in range(1 + MOST_CRASHES):
            rest_s = left_s - (time.monotonic() - began_s)
            if rest_s < LEAST_S:
                found = msgspec.structs.replace(found, reason=found.reason or f"the {left_s:.0f} s given are too few")
                break
            if watcher is not None:
                watcher.running(f"{len(waiting)} arms in turns, in one process")
            if runner is None or not runner.goes_on:
                spec = msgspec.structs.replace(request, base=folder or request.base, run_to_end=False)
                runner = leave.enter_context(
                    TaskRunner(
                        spec,
                        watcher or Silent(),
                        facts=facts,
                        label="the run that switches arms",
                        limit_s=min(rest_s, request.timeout_s or rest_s),
                        cache_folder=cache_folder,
                    )
                )
                runner.start()
            switched = _Switched(runner, request, waiting, facts, num_blocks, rest_s)
            runner.end()
            found = _merged(found, switched.found)
            waiting = _still_waiting(waiting, found)
            if not waiting:
                break
    unknown = {arm.key: found.reason for arm in waiting}
    return msgspec.structs.replace(found, given_up={**found.given_up, **unknown}, wall_s=time.monotonic() - began_s)


def estimate(key: str, blocks: Sequence[Block]) -> Estimate:
    """Of an arm's blocks, each of which gives one value: the logarithm of the baseline's time over the arm's.

    By sample where every stretch knows its samples, else by step. The interval is Student's t over the blocks.

    Raises:
        statistics.StatisticsError: there are fewer than two.
    """
    from scipy.special import stdtr, stdtrit

    values = [_log_ratio(block) for block in blocks]
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


def _log_ratio(block: Block) -> float:
    stretches = [*block.baseline, *block.candidate]
    by_sample = all(stretch.num_samples for stretch in stretches)

    def a_unit_s(half: Sequence[Stretch]) -> float:
        units = sum((stretch.num_samples or 0) if by_sample else stretch.num_steps for stretch in half)
        return sum(stretch.seconds for stretch in half) / units

    return math.log(a_unit_s(block.baseline) / a_unit_s(block.candidate))


def _why_not(arm: Arm) -> str:
    if not arm.settings:
        return "it is the baseline"
    reasons = ((setting, why_not_in_process(setting)) for setting in arm.settings)
    return "; ".join(f"{setting}: {reason}" for setting, reason in reasons if reason)


def _still_waiting(arms: Sequence[Arm], found: Screened) -> list[Arm]:
    known = {estimate.arm for estimate in found.estimates}
    return [arm for arm in arms if arm.key not in known and arm.key not in found.given_up]


def _merged(before: Screened, after: Screened) -> Screened:
    return msgspec.structs.replace(
        after,
        estimates=[*before.estimates, *after.estimates],
        given_up={**before.given_up, **after.given_up},
        num_void=before.num_void + after.num_void,
    )


class _Switched:
    """What came of one task, and of the program meanwhile. `crashed`: the arm's index that ended it; None if none did.

    Args:
        runner: of a live run of the command with the baseline's settings.
    """

    def __init__(
        self,
        runner: TaskRunner,
        run: RunSpec,
        arms: Sequence[Arm],
        facts: Facts,
        num_blocks: int,
        limit_s: float,
    ) -> None:
        self._arms, self._runner = arms, runner
        self._run, self._facts, self._num_blocks = run, facts, num_blocks
        self._task: SwitchArms | None = None
        try:
            self._answer = runner.do(self._from_now, self._within, what="switched", limit_s=limit_s)
        except CannotRunHere as error:
            self._answer = Answer(reason=error.message)
        assert runner.live is not None
        self._outcome: Outcome = runner.outcome()
        self._record = next(iter(self._outcome.records), None)
        self._samples = runner.live.samples

    def _from_now(self, records: Sequence[Record]) -> SwitchArms:
        return self._planned(earliest(records), _stretch_steps(records))

    def _within(self, record: Record) -> SwitchArms:
        raise CannotRunHere(f"the program ended after {len(record.steps)} steps")

    def _planned(self, at_step: int, stretch_steps: int) -> SwitchArms:
        self._task = SwitchArms(
            at_step=at_step,
            arms=[_planned(arm, self._run.base, self._facts) for arm in self._arms],
            num_blocks=self._num_blocks,
            stretch_steps=stretch_steps,
            seed=self._run.seed or 0,
        )
        return self._task

    @property
    def crashed(self) -> int | None:
        """The arm that was on when the program ended with an error."""
        run = self._outcome.run
        if self._record is None or run.ended_by != "command" or not run.exit_code:
            return None
        arm = (self._record.last("arm_switched") or {}).get("arm")
        return arm if isinstance(arm, int) and 0 <= arm < len(self._arms) else None

    @property
    def found(self) -> Screened:
        keys = [arm.key for arm in self._arms]
        given_up, whole = _said(self._record, keys)
        if self.crashed is not None:
            given_up[keys[self.crashed]] = "the program ended with an error while it was on"
        blocks, reason, num_void = {}, self._reason(), 0
        for key in (key for key in keys if key not in given_up):
            blocks[key] = [block for block in whole[key] if not self._disturbed(block)]
            void = len(whole[key]) - len(blocks[key])
            num_void += void
            # Where another arm ended the program there is one more run for those that it left without.
            if len(blocks[key]) < FEWEST_BLOCKS and self.crashed is None:
                why = f"{void} were disturbed from outside" if void else reason or "the others were not whole"
                given_up[key] = f"only {len(blocks[key])} of its blocks count: {why}"
        return Screened(
            estimates=[estimate(key, its) for key, its in blocks.items() if len(its) >= FEWEST_BLOCKS],
            given_up=given_up,
            reason=reason,
            num_void=num_void,
            stretch_steps=self._task.stretch_steps if self._task is not None else 0,
            folder=str(self._outcome.folder),
        )

    def _disturbed(self, block: Block) -> bool:
        """Judged without knowing the arm, as the window of a run is."""
        return bool(probe.judge(self._samples, block.begin_s, block.end_s).foreign)

    def _reason(self) -> str:
        """Why not all arms had all their blocks; empty if they had."""
        return self._answer.reason


def _planned(arm: Arm, folder: Path, facts: Facts) -> list[PlannedSetting]:
    _, planned = environment.build(arm.settings, {}, run_dir=folder, agent_dir=environment.AGENT, facts=facts)
    return planned


def _stretch_steps(records: Sequence[Record]) -> int:
    """Steps of a stretch that is long enough to time, and of whole epochs where they are short."""
    num_steps = max(FEWEST_STEPS, math.ceil(STRETCH_S / recent_step_s(records[0])))
    epoch = epoch_steps(records)
    if epoch is not None and epoch <= MOST_STRETCHES_AN_EPOCH * num_steps:
        num_steps = math.ceil(num_steps / epoch) * epoch
    return num_steps


def _said(record: Record | None, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, list[Block]]]:
    """Why arms were given up, and the blocks of each; what is damaged in a record says nothing."""
    given_up: dict[str, str] = {}
    blocks: dict[str, list[Block]] = {key: [] for key in keys}
    events = record.events if record is not None else {}
    for event in events.get("arm_given_up", []):
        if isinstance(arm := event.get("arm"), int) and 0 <= arm < len(keys):
            given_up[keys[arm]] = str(event.get("reason", ""))
    for event in events.get("arm_block", []):
        try:
            block = msgspec.convert(event, Block)
        except msgspec.ValidationError:
            continue
        if 0 <= block.arm < len(keys) and _is_whole(block):
            blocks[keys[block.arm]].append(block)
    return given_up, blocks


def _is_whole(block: Block) -> bool:
    stretches = [*block.baseline, *block.candidate]
    return bool(block.baseline and block.candidate) and all(s.seconds > 0 and s.num_steps > 0 for s in stretches)
