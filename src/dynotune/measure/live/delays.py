"""Ask a running program which part of its steps is critical: delay each part by a known time and time the
steps.

Delays are switched on and off in blocks, as settings are. A block says by how many seconds a step becomes
longer; all blocks of the run have the same noise, so their scatter is pooled, and so is that of the two
stretches that a block has with a delay, and of the two without.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from dynotune.launch.records import Record
from dynotune.measure.live.blocks import CONFIDENCE, pooled, within
from dynotune.measure.live.placement import earliest, recent_step_s, recent_wait_share
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.schema.comparison import Spread
from dynotune.schema.delays import Answered, DelayedPart, DelayTest, DelayTests
from dynotune.schema.events import ArmGivenUp, Block, Event, unit_s
from dynotune.schema.facts import Unknown
from dynotune.schema.task import PlannedSetting, SwitchArms
from dynotune.text import reasons

SHARES = (0.25, 0.5)
"""Delays, as shares of a step. A tenth of a step vanishes in the noise of most machines."""
LEAST_DELAY_S = 5e-5
STRETCH_S, FEWEST_STEPS = 0.12, 3
FEWEST_BLOCKS, MOST_BLOCKS = 2, 6
PRECISE = 0.3
"""Half the width of a slope's interval from which more blocks are not needed."""
BUDGET_S, LONGEST_S, LIMIT_S = 10.0, 15.0, 25.0
"""Seconds that tests take at most if steps are fast, if they take up to a tenth of a second, and in any
case."""
STRETCHES = 4  # in a block, each after a step that does not count
STEPS_OF_THE_LOADERS = 40
"""Further steps of a block of the loader: at each switch the batches that are ready must be used up."""
WAITS = 0.05
"""Share of a step, as in the agent: from there on, batches come in bursts."""
TOO_SLOW = "a step takes too long for it"


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """A part to delay. `site`: what else the agent has to know of it, such as the function's file and
    line."""

    part: DelayedPart
    place: str = ""
    site: dict[str, str] = {}

    def planned(self, delay_s: float) -> list[PlannedSetting]:
        action = "host" if self.part == "rank" else self.part
        site: dict[str, str | list[str] | dict[str, list[str]]] = {"action": f"delay-{action}", **self.site}
        return [PlannedSetting(knob=f"delay.{self.part}", value=delay_s, site=site)]


class DelayArm(NamedTuple):
    """A delay by so many seconds a step, which needs at least `fewest` blocks."""

    delay: Delay
    delay_s: float
    fewest: int = FEWEST_BLOCKS


def delay_tests(
    runner: TaskRunner,
    delays: Sequence[Delay],
    *,
    num_workers: int = 1,
    budget_s: float = BUDGET_S,
    limit_s: float = LIMIT_S,
) -> DelayTests | Unknown:
    """Test the parts in one task of the live run, which goes on afterwards.

    Args:
        runner: runner of a live run whose steps are steady.
        delays: what to delay, the most telling first: the last ones are left out if steps are slow.
        num_workers: workers of the loader that the program may wait for.
        budget_s: seconds after which the tests end, as soon as each delay has its fewest blocks.
        limit_s: seconds after which they end in any case; a delay with fewer blocks says nothing.
    """
    began_s = time.monotonic()
    asked: list[DelayArm] = []
    since: dict[type[Event], int] = {}

    def soon(records: Sequence[Record]) -> SwitchArms:
        step_s = runner.step_s or recent_step_s(records[0])
        waits = recent_wait_share(records[0])
        steps = stretch_steps(step_s, num_workers if waits > WAITS else 1)
        asked[:] = affordable(delays, step_s, budget_s, steps)
        since.update({kind: len(events) for kind, events in records[0].events.items()})
        return SwitchArms(
            at_step=earliest(records),
            arms=[arm.delay.planned(arm.delay_s) for arm in asked],
            num_blocks=MOST_BLOCKS,
            stretch_steps=steps,
            step_s=step_s,
            waits=waits,
        )

    def enough(records: Sequence[Record]) -> bool:
        if not records:
            return False
        blocks = _blocks(records[0], since, len(asked))
        given_up, late = _given_up(records[0], since), time.monotonic() - began_s > budget_s
        have_fewest = all(len(blocks[at]) >= arm.fewest for at, arm in enumerate(asked) if at not in given_up)
        return bool(asked) and have_fewest and (late or _is_precise(blocks, asked))

    order = runner.order(soon, limit_s=limit_s)
    if order is None or runner.live is None:
        return Unknown("the program had ended")
    runner.live.until(lambda records: order(records) or enough(records))
    reason = runner.live.answer(order).reason if order.is_over else ""
    record = next(iter(runner.outcome().records), None)
    if record is None:
        return Unknown(reason or "the program made no steps")
    blocks, given_up = _blocks(record, since, len(asked)), _given_up(record, since)
    tests, untested = [], {}
    for delay in delays:
        answers = _answers([at for at, arm in enumerate(asked) if arm.delay is delay], blocks, asked)
        if answers:
            tests.append(_test(delay, answers))
        else:
            said = [given_up[at] for at, arm in enumerate(asked) if arm.delay is delay and at in given_up]
            name = " ".join(filter(None, [delay.part, delay.place]))
            was_asked = any(arm.delay is delay for arm in asked)
            untested[name] = next(iter(said), (reason or "no time was left") if was_asked else TOO_SLOW)
    baselines = [unit_s(block.baseline, by_sample=False) for each in blocks.values() for block in each]
    if not baselines:
        return Unknown("; ".join(dict.fromkeys(untested.values())) or reason)
    return DelayTests(
        step_s=statistics.median(baselines), tests=tests, untested=untested, wall_s=time.monotonic() - began_s
    )


def stretch_steps(step_s: float, num_workers: int) -> int:
    """Return the steps of a stretch: a batch of each worker, or several, if batches come in their bursts."""
    fewest = max(FEWEST_STEPS, math.ceil(STRETCH_S / step_s))
    return math.ceil(fewest / num_workers) * num_workers


def affordable(
    delays: Sequence[Delay], step_s: float, budget_s: float, num_steps: int = FEWEST_STEPS
) -> list[DelayArm]:
    """Return the delays to make: of both sizes, or of slow steps the small one, as many as `LONGEST_S` allows
    a block of.

    `num_steps`: steps of a stretch.
    """

    def cost_s(delay: Delay, num_blocks: int) -> float:
        steps = STRETCHES * (num_steps + 1)
        if delay.part == "loader":
            steps += STEPS_OF_THE_LOADERS
        return steps * num_blocks * step_s * (1 + SHARES[0] / 2)

    small_s = max(LEAST_DELAY_S, SHARES[0] * step_s)
    both_s = len(SHARES) * sum(cost_s(delay, FEWEST_BLOCKS) for delay in delays)
    if both_s <= budget_s:
        # The sizes differ also for a step that is shorter than the least delay.
        return [DelayArm(delay, small_s * share / SHARES[0]) for share in SHARES for delay in delays]
    chosen, left_s = list[DelayArm](), LONGEST_S
    for arm in [DelayArm(delay, small_s, 1) for delay in delays]:
        needed_s = cost_s(arm.delay, arm.fewest)
        if not chosen or needed_s <= left_s:
            chosen.append(arm)
            left_s -= needed_s
    return chosen


def _blocks(record: Record, since: Mapping[type[Event], int], num_arms: int) -> dict[int, list[Block]]:
    found: dict[int, list[Block]] = {at: [] for at in range(num_arms)}
    for block in record.all(Block)[since.get(Block, 0) :]:
        if block.is_whole and block.arm in found:
            found[block.arm].append(block)
    return found


def _given_up(record: Record, since: Mapping[type[Event], int]) -> dict[int, str]:
    events = record.all(ArmGivenUp)[since.get(ArmGivenUp, 0) :]
    return {event.arm: reasons.sentence(event.code, event.reason) for event in events}


def _longer(blocks: Sequence[Block]) -> list[float]:
    """Return, for each block, the seconds by which a step became longer."""
    both = [block.unit_s(by_sample=False) for block in blocks]
    return [with_s - without_s for without_s, with_s in both]


def _noise(blocks: Mapping[int, Sequence[Block]]) -> Spread:
    """Return the variance (s²) of a block's answer, pooled over the arms, and its degrees of freedom."""
    squares, df = 0.0, 0
    for each in blocks.values():
        values = _longer(each)
        if len(values) > 1:
            squares += math.fsum((value - statistics.fmean(values)) ** 2 for value in values)
            df += len(values) - 1
    own = Spread(squares / max(1, df), df)
    return pooled(own, within([value for each in blocks.values() for value in _repeated(each)]))


def _repeated(blocks: Sequence[Block]) -> list[float]:
    """Return, for each two stretches of one kind in a block, the difference (s) of their steps."""
    twos = [two for block in blocks for two in (block.baseline, block.candidate) if len(two) == 2]
    return [unit_s(two[:1], by_sample=False) - unit_s(two[1:], by_sample=False) for two in twos]


def _half_s(blocks: Mapping[int, Sequence[Block]], num: int) -> float:
    """Return half the width (s) of the interval of an arm's mean answer from `num` blocks."""
    from scipy.special import stdtrit

    noise = _noise(blocks)
    if not noise.df:
        return math.inf
    return float(stdtrit(noise.df, (1 + CONFIDENCE) / 2)) * math.sqrt(noise.variance / num)


def _is_precise(blocks: Mapping[int, Sequence[Block]], asked: Sequence[DelayArm]) -> bool:
    least_s = min(arm.delay_s for arm in asked)
    smallest = [at for at, arm in enumerate(asked) if blocks[at] and arm.delay_s == least_s]
    return all(_half_s(blocks, len(blocks[at])) <= PRECISE * least_s for at in smallest)


def _answers(
    arms: Sequence[int], blocks: Mapping[int, Sequence[Block]], asked: Sequence[DelayArm]
) -> list[Answered]:
    found = []
    for at in arms:
        made, delay_s = blocks[at], asked[at].delay_s
        if len(made) < asked[at].fewest:
            continue
        longer_s, half_s = statistics.fmean(_longer(made)), _half_s(blocks, len(made))
        read = [float(one.found) for block in made for one in block.readback if isinstance(one.found, str)]
        delayed_s = statistics.fmean(read) if read else delay_s
        ci = (longer_s - half_s, longer_s + half_s)
        found.append(Answered(delay_s=delayed_s, longer_s=longer_s, ci=ci, num_blocks=len(made)))
    return sorted(found, key=lambda answer: answer.delay_s)


def _test(delay: Delay, answers: Sequence[Answered]) -> DelayTest:
    first, last = answers[0], answers[-1]
    is_hidden = last.ci[0] <= 0
    return DelayTest(
        part=delay.part,
        place=delay.place,
        slope=first.slope,
        ci=(first.ci[0] / first.delay_s, first.ci[1] / first.delay_s),
        slack_s=None if is_hidden else max(0.0, last.delay_s - last.longer_s),
        answers=list(answers),
    )
