"""What a live run says of candidates that were switched on and off in it, in blocks of stretches.

A candidate needs no start there, and differences between processes affect candidate and baseline alike.
`turns` has the candidates take turns.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from dynotune import knobs
from dynotune.launch import error_line
from dynotune.launch.records import Record
from dynotune.measure.live.baseline_shift import baseline_shift
from dynotune.measure.live.blocks import CONFIDENCE, counts_samples, spread_of, why_left_behind
from dynotune.measure.live.outcome import Outcome
from dynotune.schema.arm import Arm
from dynotune.schema.comparison import BaselineShift
from dynotune.schema.events import ArmGivenUp, ArmResults, ArmSwitched, Block, Event, TraceRecorded
from dynotune.schema.reasons import Reason
from dynotune.schema.study import Estimate
from dynotune.text import reasons

CRASHED = "the program ended with an error while it was on"
E = TypeVar("E", ArmGivenUp, ArmResults, Block)


class SwitchedArms(msgspec.Struct, frozen=True, kw_only=True):
    """Results of candidates that were switched on and off in one run.

    Args:
        blocks: blocks of each candidate, by its key.
        given_up: keys of candidates without an estimate, with the reason.
        codes: codes of the agent's reasons among these.
        blamed: for a candidate in which a call failed, the knobs without which it succeeded.
        unsuited: for a candidate that was given up, the knobs that cannot be switched in this program.
        results: for each candidate, results of calls and updates without and with the candidate.
        shifts: for each candidate with blocks, how the baseline changed since the plain window, if that is
            known.
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
    codes: dict[str, Reason] = {}
    blamed: dict[str, list[str]] = {}
    unsuited: dict[str, list[str]] = {}
    results: dict[str, list[ArmResults]] = {}
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


def estimate(key: str, blocks: Sequence[Block]) -> Estimate:
    """Return the estimate from a candidate's blocks; each block gives the log of baseline time over candidate
    time.

    The time is per sample if every stretch has its samples, else per step. The interval is Student's t of the
    blocks and their stretches.

    Raises statistics.StatisticsError: there is no block, or one whose arms have one stretch each.
    """
    from scipy.special import stdtr, stdtrit

    by_sample = counts_samples(blocks)
    values = [math.log(a_s / b_s) for a_s, b_s in (block.unit_s(by_sample=by_sample) for block in blocks)]
    mean = statistics.fmean(values)
    noise = spread_of(values, [value for block in blocks for value in block.repeats(by_sample=by_sample)])
    if not noise.df:
        raise statistics.StatisticsError("one block of two stretches shows no noise")
    error = math.sqrt(noise.variance / len(values))
    reach = float(stdtrit(noise.df, (1 + CONFIDENCE) / 2)) * error
    p = float(stdtr(noise.df, -mean / error)) if error else float(mean <= 0)
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


def why_not(arm: Arm) -> str:
    if not arm.settings:
        return "it is the baseline"
    reasons = ((setting, knobs.why_not_switched(setting)) for setting in arm.settings)
    return "; ".join(f"{setting}: {reason}" for setting, reason in reasons if reason)


def concluded(
    outcome: Outcome,
    found: SwitchedArms,
    keys: Sequence[str],
    fewest_blocks: int,
    *,
    reason: str,
    ran_out: bool,
    stretch_steps: int,
    num_switched_before: int | None,
) -> SwitchedArms:
    """Return the blocks of a task that count, and why arms without such blocks were given up.

    Args:
        outcome: of the live run so far.
        found: what the agent said of the task's arms, whose keys are `keys`.
        reason: why the task ended early; empty if it did not.
        num_switched_before: number of switches before the task; None if there was no task.
    """
    record = next(iter(outcome.records), Record(outcome.folder, 0, 0.0))
    blocks = dict[str, list[Block]]()
    switched = [] if num_switched_before is None else record.all(ArmSwitched)[num_switched_before:]
    recorded = [event for rank in outcome.records for event in rank.all(TraceRecorded)]
    failed = outcome.run.ended_by == "command" and outcome.run.exit_code and switched
    crashed = _key(switched[-1].arm, keys) if failed else None  # the candidate that was on at the error
    if crashed is not None:
        found.given_up[crashed] = ": ".join(filter(None, [CRASHED, error_line(outcome.folder)]))
    for key in (key for key in keys if key not in found.given_up):
        whole = found.blocks.get(key, [])
        if left_behind := why_left_behind(whole):
            found.given_up[key] = left_behind
        elif len(whole) >= fewest_blocks:
            blocks[key] = whole
        elif crashed is None:
            # If another candidate ended the program, one more run serves those that it left without blocks.
            found.given_up[key] = (
                f"only {len(whole)} of its blocks count: {reason or 'the others were not whole'}"
            )
    return msgspec.structs.replace(
        found,
        blocks=blocks,
        shifts={key: shift for key in blocks if (shift := baseline_shift(record, blocks[key])) is not None},
        cupti_stays=next((event.cupti_stays for event in recorded if event.cupti_stays), ""),
        reason=reason,
        ran_out=ran_out or outcome.run.ended_by == "timeout",
        stretch_steps=stretch_steps,
        folder=str(outcome.folder),
        step=record.step or "",
        outcome=outcome.without_steps,
    )


def said(
    record: Record | None, keys: Sequence[str], before: Mapping[type[Event], int], since_s: float
) -> SwitchedArms:
    """Return the agent's reports so far on a task's candidates.

    `before`: how many events of each kind the record had before this task. `since_s`: when the task was
        ordered. Blocks that began earlier are left out: an earlier task may end a block after that time.
    """

    def new(kind: type[E]) -> Iterator[tuple[str, E]]:
        for event in [] if record is None else record.all(kind)[before.get(kind, 0) :]:
            begin_s = None if isinstance(event, ArmGivenUp) else event.begin_s
            if (key := _key(event.arm, keys)) is not None and (begin_s or since_s) >= since_s:
                yield key, event

    found = SwitchedArms(blocks={key: [] for key in keys})
    for key, results in new(ArmResults):
        found.results.setdefault(key, []).append(results)
    for key, given_up in new(ArmGivenUp):
        found.codes[key] = given_up.code
        found.given_up[key] = reasons.sentence(given_up.code, given_up.reason)
        found.blamed[key], found.unsuited[key] = given_up.blamed, given_up.unsuited
    for key, block in new(Block):
        if block.is_whole:
            found.blocks[key].append(block)
    return found


def _key(arm: int | None, keys: Sequence[str]) -> str | None:
    """Return the key of the candidate with this index in the task; None if there is no such candidate."""
    return keys[arm] if arm is not None and 0 <= arm < len(keys) else None
