"""Compare candidates that can change at any step with the baseline, within one live run.

Each candidate is switched on and off in blocks of stretches. A candidate needs no start, and differences between
processes affect candidate and baseline alike.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from dynotune import knobs
from dynotune.launch import error_line
from dynotune.launch.caches import contents
from dynotune.launch.process import environment
from dynotune.launch.records import Record
from dynotune.measure.live.baseline_shift import baseline_shift, larger_shift
from dynotune.measure.live.blocks import CONFIDENCE, Block, block_of, counts_samples, mean_of, why_left_behind
from dynotune.measure.live.outcome import Outcome
from dynotune.measure.live.placement import earliest, past_epoch_begin, recent_step_s, recent_wait_share
from dynotune.measure.live.request import Watcher
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.measure.live.window_plan import epoch_steps
from dynotune.schema.arm import Arm
from dynotune.schema.comparison import BaselineShift
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Estimate
from dynotune.schema.task import SwitchArms, TimeWindow

NUM_BLOCKS = 8
# A process that the kernel preempts is away for some milliseconds, which a short stretch contains or not.
STRETCH_S = 0.15
FEWEST_STEPS = 4
PLAIN_STRETCHES = 2  # length of the plain window, if the live run has none yet
MOST_STRETCHES_AN_EPOCH = 4  # if epochs take at most this many stretches, a stretch contains whole epochs
# A candidate that ends the program with an error also ends the others' turns; they begin again without it.
MOST_CRASHES = 2
FEWEST_BLOCKS = 3
LEAST_S = 5.0  # a start and a block of a candidate together take longer than this
CRASHED = "the program ended with an error while it was on"
HAS_ALREADY = "the program has it already"
"""The agent's reason for giving up a candidate that would change nothing."""
_BY_ARM = ("blocks", "given_up", "blamed", "unsuited", "results", "shifts")


class SwitchedArms(msgspec.Struct, frozen=True, kw_only=True):
    """Results of candidates that were switched on and off in one run.

    Args:
        blocks: blocks of each candidate, by its key.
        given_up: keys of candidates without an estimate, with the reason.
        blamed: for a candidate in which a call failed, the knobs without which it succeeded.
        unsuited: for a candidate that was given up, the knobs that cannot be switched in this program.
        results: for each candidate, results of calls without and with the candidate; events of the agent.
        shifts: for each candidate with blocks, how the baseline changed since the plain window, if that is known.
        cupti_stays: why CUPTI is still attached after a recording in this run; empty if it is not.
        reason: why the run ended before all candidates had all their blocks; empty if no block is missing.
        ran_out: whether the run ended, without an error, before all candidates had all their blocks.
        stretch_steps: fewest steps in a stretch; 0 if no stretch began.
        wall_s: duration of all runs, starts included.
        folder: folder of the last run.
        step: description of a step.
    """

    blocks: dict[str, list[Block]] = {}
    given_up: dict[str, str] = {}
    blamed: dict[str, list[str]] = {}
    unsuited: dict[str, list[str]] = {}
    results: dict[str, dict[str, Any]] = {}
    shifts: dict[str, BaselineShift] = {}
    cupti_stays: str = ""
    reason: str = ""
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
    rounding: float = 0.0,
    give_up_slow: bool = False,
    runner: TaskRunner | None = None,
    enough: Callable[[Mapping[str, list[Block]]], bool] | None = None,
) -> SwitchedArms:
    """Compare each candidate with the request's baseline, in turns within one run of the command.

    This function does not lock the machine; the caller must have reserved it.

    Args:
        left_s: seconds for all blocks; when these are over, the results so far are returned.
        folder: folder in which run folders are made.
        facts: facts of machine and target.
        cache_folder: folder of compilers' caches; by default that of the request's environment.
        fewest_blocks: a candidate with fewer blocks is given up.
        stretch_s: shortest duration (s) of a stretch.
        num_results: number of calls of each candidate whose results are compared.
        rounding: share by which the candidates may round a number.
        give_up_slow: stop blocks of a candidate whose steps take far longer.
        runner: runner of the baseline; its live run is started if none goes on, and goes on afterwards. Without a
            runner, a run is started and ended here.
        enough: function that gets the blocks so far, by the candidates' keys, and tells whether they are enough.

    Raises CannotRunHere: no folder can be made, or the command cannot start, whatever the candidate.
    """
    began_s = time.monotonic()
    given_up = {arm.key: reason for arm in arms if (reason := _why_not(arm))}
    found = SwitchedArms(given_up=given_up)
    waiting = [arm for arm in arms if arm.key not in given_up]
    if not waiting:
        return msgspec.structs.replace(found, reason="no candidate can change at any step")
    caches = contents.environment(cache_folder) if cache_folder is not None else {}

    def planned(records: Sequence[Record]) -> SwitchArms:
        # Recent steps may have been made with an earlier candidate, which stays on until the next task begins.
        step_s = used.step_s or recent_step_s(records[0])
        return SwitchArms(
            at_step=earliest(records),
            arms=[environment.build(arm.settings, {}, run_dir=request.base, facts=facts)[1] for arm in waiting],
            num_blocks=num_blocks - num_earlier,
            stretch_steps=_stretch_steps(records, stretch_s, step_s, waiting),
            seed=request.seed or 0,
            step_s=step_s,
            waits=1.0 if _most_workers(waiting) else recent_wait_share(records[0]),
            num_results=num_results,
            rounding=rounding,
            give_up_slow=give_up_slow,
            caches=caches,
        )

    def with_earlier(now: Mapping[str, list[Block]]) -> dict[str, list[Block]]:
        return {key: [*found.blocks.get(key, ()), *blocks] for key, blocks in now.items()}

    def is_enough(now: Mapping[str, list[Block]]) -> bool:
        return enough is not None and enough(with_earlier(now))

    given, num_crashes = runner, 0
    with ExitStack() as leave:
        while waiting and num_crashes <= MOST_CRASHES:
            starts, rest_s = given is None or not given.goes_on, left_s - (time.monotonic() - began_s)
            if rest_s < (LEAST_S if starts else 4 * stretch_s):
                found = msgspec.structs.replace(found, reason=found.reason or f"the {left_s:.0f} s given are too few")
                break
            watcher.running(f"{len(waiting)} arms in turns, within one run")
            own_s = min(rest_s, request.timeout_s or rest_s)
            used = given or leave.enter_context(runner_of(request, folder, watcher, facts, own_s, cache_folder))
            given = None
            if starts:
                used.start()
            _time_plainly(used, waiting, stretch_s, rest_s)
            keys = [arm.key for arm in waiting]
            num_earlier = max(len(found.blocks.get(key, ())) for key in keys)
            after = _in_turns(used, keys, planned, rest_s, fewest_blocks - num_earlier, enough and is_enough)
            if used is not runner:
                used.end()
            both: dict[str, Any] = {name: {**getattr(found, name), **getattr(after, name)} for name in _BY_ARM}
            for key in found.shifts.keys() & after.shifts.keys():
                both["shifts"][key] = larger_shift(found.shifts[key], after.shifts[key])
            both["cupti_stays"] = found.cupti_stays or after.cupti_stays
            both["blocks"] = found.blocks | with_earlier(after.blocks)
            # A program that ends before enough blocks are complete goes through its steps again.
            made = max(map(len, after.blocks.values()), default=0)
            has_time = left_s - (time.monotonic() - began_s) >= LEAST_S
            again = enough is not None and after.ran_out and has_time and (not starts or made > 1)
            again = again and not is_enough(after.blocks)
            if again:
                both["given_up"] = found.given_up
                watcher.say(f"The command is run again for more blocks: {after.reason}.")
                # The next run begins with both orders, so the number of blocks before it must be even.
                both["blocks"] = {key: blocks[: len(blocks) // 2 * 2] for key, blocks in both["blocks"].items()}
            found = msgspec.structs.replace(after, **both)
            if not again:
                waiting = [arm for arm in waiting if arm.key not in found.blocks and arm.key not in found.given_up]
                num_crashes += 1
    unknown = {arm.key: found.reason for arm in waiting if arm.key not in found.blocks}
    return msgspec.structs.replace(found, given_up={**found.given_up, **unknown}, wall_s=time.monotonic() - began_s)


def runner_of(
    request: RunSpec, folder: Path, watcher: Watcher, facts: Facts, limit_s: float, cache_folder: Path | None = None
) -> TaskRunner:
    """Return a runner of the request's baseline for `switch_arms`; run folders are made in `folder`."""
    run, label = msgspec.structs.replace(request, base=folder, run_to_end=False), "the run that switches arms"
    return TaskRunner(run, watcher, facts=facts, label=label, limit_s=limit_s, cache_folder=cache_folder)


def estimate(key: str, blocks: Sequence[Block]) -> Estimate:
    """Return the estimate from a candidate's blocks; each block gives the log of baseline time over candidate time.

    The time is per sample if every stretch has its samples, else per step. The interval is Student's t over the blocks.

    Raises statistics.StatisticsError: there are fewer than two blocks.
    """
    from scipy.special import stdtr

    by_sample = counts_samples(blocks)
    values = [math.log(a_s / b_s) for a_s, b_s in (block.unit_s(by_sample=by_sample) for block in blocks)]
    mean, spread, reach = mean_of(values)
    p = float(stdtr(len(values) - 1, -mean / spread)) if spread else float(mean <= 0)
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


def _why_not(arm: Arm) -> str:
    if not arm.settings:
        return "it is the baseline"
    reasons = ((setting, knobs.why_not_switched(setting)) for setting in arm.settings)
    return "; ".join(f"{setting}: {reason}" for setting, reason in reasons if reason)


def _time_plainly(runner: TaskRunner, arms: Sequence[Arm], stretch_s: float, limit_s: float) -> None:
    """Time a window of the command as it is, unless the live run has timed one; without one, no baseline is checked."""
    if runner.live is not None and any("window" in record.events for record in runner.live.records()):
        return

    def plain(records: Sequence[Record]) -> TimeWindow:
        step_s = runner.step_s or recent_step_s(records[0])
        num_steps = PLAIN_STRETCHES * _stretch_steps(records, stretch_s, step_s, arms)
        return TimeWindow(at_step=past_epoch_begin(records[0], earliest(records), num_steps), num_steps=num_steps)

    def within(record: Record) -> TimeWindow:
        raise CannotRunHere(f"the program ended after {len(record.steps)} steps")

    with suppress(CannotRunHere):
        runner.do(plain, within, what="timed", limit_s=limit_s)


def _in_turns(
    runner: TaskRunner,
    keys: Sequence[str],
    plan: Callable[[Sequence[Record]], SwitchArms],
    limit_s: float,
    fewest_blocks: int,
    enough: Callable[[Mapping[str, list[Block]]], bool] | None,
) -> SwitchedArms:
    """Return the results of one task, which `plan` makes, and the state of the program meanwhile.

    `runner`: runner of a live run with the baseline's settings. `keys`: keys of the task's candidates.
    """
    tasks: list[SwitchArms] = []
    before: dict[str, int] = {}  # events of earlier tasks
    since_s, ran_out = 0.0, False

    def soon(records: Sequence[Record]) -> SwitchArms:
        nonlocal since_s
        since_s = time.monotonic()
        before.update({name: len(events) for name, events in records[0].events.items()})
        tasks.append(plan(records))
        return tasks[-1]

    def within(record: Record) -> SwitchArms:
        nonlocal ran_out
        ran_out = True
        raise CannotRunHere(f"the program ended after {len(record.steps)} steps")

    def have_enough(records: Sequence[Record]) -> bool:
        return bool(records) and enough is not None and enough(_said(records[0], keys, before, since_s).blocks)

    try:
        reason = runner.do(soon, within, what="switched", limit_s=limit_s, enough=have_enough).reason
    except CannotRunHere as error:
        reason = error.message
    outcome = runner.outcome()
    record = next(iter(outcome.records), Record(outcome.folder, 0, 0.0))
    found, blocks = _said(record, keys, before, since_s), {}
    switched = record.events.get("arm_switched", [])[before.get("arm_switched", 0) :] if tasks else []
    recorded = [event for rank in outcome.records for event in rank.events.get("trace", [])]
    failed = outcome.run.ended_by == "command" and outcome.run.exit_code and switched
    crashed = _key(switched[-1], keys) if failed else None  # the candidate that was on at the error
    if crashed is not None:
        found.given_up[crashed] = ": ".join(filter(None, [CRASHED, error_line(outcome.folder)]))
    for key in (key for key in keys if key not in found.given_up):
        whole = found.blocks[key]
        if left_behind := why_left_behind(whole):
            found.given_up[key] = left_behind
        elif len(whole) >= fewest_blocks:
            blocks[key] = whole
        elif crashed is None:
            # If another candidate ended the program, one more run serves those that it left without blocks.
            found.given_up[key] = f"only {len(whole)} of its blocks count: {reason or 'the others were not whole'}"
    return msgspec.structs.replace(
        found,
        blocks=blocks,
        shifts={key: shift for key in blocks if (shift := baseline_shift(record, blocks[key])) is not None},
        cupti_stays=str(next(filter(None, (event.get("cupti_stays") for event in recorded)), "")),
        reason=reason,
        ran_out=ran_out or not tasks or outcome.run.ended_by == "timeout",
        stretch_steps=tasks[-1].stretch_steps if tasks else 0,
        folder=str(outcome.folder),
        step=(record.last("cycle") or {}).get("step", ""),
        outcome=outcome.without_steps,
    )


def _said(record: Record, keys: Sequence[str], before: Mapping[str, int], since_s: float) -> SwitchedArms:
    """Return the agent's reports so far on a task's candidates; damaged events of a record are ignored.

    `before`: numbers of events of earlier tasks. `since_s`: time of the order; such a task may end a block after it.
    """

    def events(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for event in record.events.get(name, [])[before.get(name, 0) :]:
            if (key := _key(event, keys)) is not None and (event.get("begin_s") or since_s) >= since_s:
                yield key, event

    found = SwitchedArms(blocks={key: [] for key in keys}, results=dict(events("arm_results")))
    for key, event in events("arm_given_up"):
        found.given_up[key] = str(event.get("reason", ""))
        found.blamed[key] = [str(knob) for knob in event.get("blamed") or ()]
        found.unsuited[key] = [str(knob) for knob in event.get("unsuited") or ()]
    for key, event in events("arm_block"):
        if (block := block_of(event)) is not None:
            found.blocks[key].append(block)
    return found


def _key(event: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    """Return the key of the candidate that an event belongs to."""
    at = event.get("arm")
    return keys[at] if isinstance(at, int) and 0 <= at < len(keys) else None


def _stretch_steps(records: Sequence[Record], stretch_s: float, step_s: float, arms: Sequence[Arm]) -> int:
    """Return the number of steps of a stretch that is long enough to time, with whole epochs if epochs are short.

    All ranks take equally many steps, so there a stretch has a batch of each worker of any candidate.
    """
    num_steps = max(FEWEST_STEPS, math.ceil(stretch_s / step_s), _most_workers(arms) if len(records) > 1 else 0)
    epoch = epoch_steps(records)
    if epoch is not None and epoch <= MOST_STRETCHES_AN_EPOCH * num_steps:
        num_steps = math.ceil(num_steps / epoch) * epoch
    return num_steps


def _most_workers(arms: Sequence[Arm]) -> int:
    """Return the largest number of workers that an arm asks for, since batches come in bursts of so many."""
    asked = (one.value for arm in arms for one in arm.settings if one.knob == "loader.num_workers")
    return max([0, *(int(str(value)) for value in asked)])
