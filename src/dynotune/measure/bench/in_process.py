"""Compare within one live run: switch the candidate on and off in blocks.

A block of stretches is used like a pair of runs. Baseline and candidate have stretches of steps in a random
order, and the same group-sequential test judges the blocks. No block needs a start, and both variants run in
the same process.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from dynotune import knobs
from dynotune.measure.bench import equal_arms
from dynotune.measure.bench.journal import Journal
from dynotune.measure.comparison.stats import SequentialResult, judge_comparison
from dynotune.measure.live import switching
from dynotune.measure.live.baseline_shift import why_not_proof
from dynotune.measure.live.blocks import counts_samples
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.switching import SwitchedArms
from dynotune.measure.live.turns import Live, Turns, TurnsPlan
from dynotune.schema.arm import Arm
from dynotune.schema.arm import arm as arm_of
from dynotune.schema.comparison import PRECISION, ArmName, ArmSummary, Comparison, Pair, Unit
from dynotune.schema.events import Block
from dynotune.schema.reasons import Reason
from dynotune.schema.run import LIMIT_S
from dynotune.schema.setting import Setting
from dynotune.text import words

STRETCH_S = 0.5  # longer than a stretch that only ranks candidates, because a verdict depends on it
FEWEST_BLOCKS = 2


def why_not(request: CompareRequest) -> str:
    """Return why candidate and baseline cannot be compared within one run; empty if the comparison is
    possible."""
    run = request.run
    if run.objective != "throughput":
        return f"the objective is {run.objective}, and one run has one value of it"
    if run.caches == "cold":
        return "--caches cold is about starts"
    if run.run_to_end:
        return "--run-to-end is about whole runs"
    taken_away = {one.knob for one in run.settings} - {one.knob for one in request.candidate}
    if taken_away:
        return f"the candidate is without {', '.join(sorted(taken_away))}, which the run begins with"
    reasons = ((setting, knobs.why_not_switched(setting)) for setting in _switched(request))
    return "; ".join(f"{setting}: {reason}" for setting, reason in reasons if reason)


def _switched(request: CompareRequest) -> list[Setting]:
    return [setting for setting in request.candidate if setting not in request.run.settings]


def compare_within(
    request: CompareRequest, journal: Journal[Comparison], live: Live, watcher: Watcher
) -> tuple[Comparison, str]:
    """Compare candidate and baseline within one live run, until the blocks have a verdict or the time is up.

    `journal`: of the comparison; it gets each block. `live`: live run of the baseline.

    Returns:
        The comparison with its verdict and blocks, and the reason if no verdict was possible within one run.

    Raises CannotRunHere, UsageError: the command or the machine failed, whatever the candidate.
    """
    arm, most = arm_of(_switched(request)), request.max_pairs
    plan = TurnsPlan(num_blocks=most, fewest_blocks=1, stretch_s=STRETCH_S, again=True)
    turns = live.turns([arm], request.budget_s or request.run.timeout_s or LIMIT_S, plan)
    num, began_s = 0, time.monotonic()
    for blocks, judgement in until_verdict(turns, arm, lambda blocks: journal.document, precision=PRECISION):
        pairs = pairs_of(blocks)
        if len(pairs) > num:
            num = _told(pairs, num, unit_of(blocks), most, watcher)
            journal.update(pairs=pairs, unit=unit_of(blocks))
        known = words.so_far(judgement.speedup, judgement.ci)
        took_s = time.monotonic() - began_s
        left_s = took_s / len(pairs) * (most - len(pairs)) if pairs else None
        text = f"block {len(pairs) + 1} of at most {most}" + (f"; {known}" if known else "")
        watcher.running(text, left_s=left_s)
    found = turns.found()
    if found.codes.get(arm.key) is Reason.HAS_ALREADY:
        reason = equal_arms.reason(list(arm.settings))
        return msgspec.structs.replace(journal.document, verdict="same", reason=reason, step=found.step), ""
    blocks_so_far = found.blocks.get(arm.key, [])
    pairs = pairs_of(blocks_so_far)
    if len(pairs) > num:
        _told(pairs, num, unit_of(blocks_so_far), most, watcher)
        journal.update(pairs=pairs, unit=unit_of(blocks_so_far))
    comparison = journal.document
    judgement = judge_comparison(comparison, pairs, precision=PRECISION, ended=True)
    too_few = len(pairs) < min(FEWEST_BLOCKS, most)
    if arm.key in found.given_up or (judgement.verdict == "undecided" and too_few):
        num_blocks = f"{len(pairs)} block{' counts' if len(pairs) == 1 else 's count'}"
        few = f"only {num_blocks}: {found.reason or 'the others were not whole'}"
        kept = concluded(comparison, found, arm.key, pairs, judgement) if pairs else comparison
        return kept, found.given_up.get(arm.key) or few
    return concluded(comparison, found, arm.key, pairs, judgement), ""


def until_verdict(
    turns: Turns, arm: Arm, planned: Callable[[list[Block]], Comparison], **how: float
) -> Iterator[tuple[list[Block], SequentialResult]]:
    """Return the arm's blocks so far, and what they say, each time that a block was made, until there is a
    verdict.

    Args:
        planned: returns the comparison that the blocks belong to, with the most of them that there will be.
        how: precision and error, as for `judge_comparison`.
    """
    for made in turns:
        blocks = made[arm.key]
        plan = planned(blocks)
        # The program may have made one more meanwhile, which does not count.
        judgement = judge_comparison(plan, pairs_of(blocks)[: plan.max_pairs], **how)
        yield blocks, judgement
        if blocks and judgement.finished:
            return


def gains_nothing(key: str, blocks: Sequence[Block], margin: float) -> bool:
    """Tell whether the blocks so far leave an arm no gain: more would only show how slow it is.

    One block alone has to show that the arm is slower: a burst over its middle hits one arm.
    """
    ci = switching.estimate(key, blocks).ci if blocks else None
    return ci is not None and ci[1] <= (1 + margin if len(blocks) > 1 else 1 / (1 + margin))


def _told(pairs: Sequence[Pair], num: int, unit: Unit, most: int, watcher: Watcher) -> int:
    """Tell the user of the blocks from number `num` on; return how many there are."""
    for number, pair in enumerate(pairs[num:], num + 1):
        watcher.finished(pair, number=number, max_pairs=most, unit=unit, what="block")
    return len(pairs)


def unit_of(blocks: Sequence[Block]) -> Unit:
    return "sample" if counts_samples(blocks) else "step"


def pairs_of(blocks: Sequence[Block]) -> list[Pair]:
    """Return each block as a pair: seconds per sample or step in the baseline's stretches and in the
    candidate's."""
    by_sample = counts_samples(blocks)
    firsts: dict[str, ArmName] = {"ABBA": "baseline", "BAAB": "candidate"}
    return [
        Pair(
            firsts[block.order],
            *block.unit_s(by_sample=by_sample),
            repeats=block.repeats(by_sample=by_sample),
        )
        for block in blocks
    ]


def concluded(
    comparison: Comparison, found: SwitchedArms, key: str, pairs: list[Pair], judgement: SequentialResult
) -> Comparison:
    """Return the comparison with the answer of the blocks of the arm `key`, and whether these blocks prove
    it."""
    blocks, shift = found.blocks[key], found.shifts.get(key)
    unit, outcome = unit_of(blocks), found.outcome
    start_s = outcome.first_step_s if outcome is not None else None
    sides = [
        statistics.median(getattr(pair, f"{name}_s") for pair in pairs) for name in ("baseline", "candidate")
    ]
    summaries = [
        ArmSummary(value=value, s_per_sample=value, samples_per_s=1 / value)
        if unit == "sample"
        else ArmSummary(value=value, s_per_step=value)
        for value in sides
    ]
    return judgement.conclude(
        comparison,
        pairs=pairs,
        unit=unit,
        step=found.step,
        stretch_steps=found.stretch_steps,
        baseline_shift=shift,
        only_chooses=why_not_proof(shift, found.cupti_stays),
        readback={one.knob: one for block in blocks for one in block.readback},
        baseline=msgspec.structs.replace(summaries[0], time_to_first_step_s=start_s),
        candidate=summaries[1],
    )
