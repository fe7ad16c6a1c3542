"""Ask a running program which part of its steps is critical: delay each part by a known time and time the steps.

Delays are switched on and off in blocks, as settings are. A block says by how many seconds a step becomes longer; all
blocks of the run have the same noise, so their scatter is pooled.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence

import msgspec

from dynotune.launch.records import Record
from dynotune.measure.live.blocks import CONFIDENCE
from dynotune.measure.live.placement import earliest, recent_step_s, recent_wait_share
from dynotune.measure.live.task_runner import TaskRunner
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
BUDGET_S, LIMIT_S = 10.0, 25.0
STEPS_OF_A_DELAY, STEPS_OF_THE_LOADERS = 2 * FEWEST_BLOCKS * (2 * FEWEST_STEPS + 2), 56 * FEWEST_BLOCKS
"""Steps that the fewest blocks of a delay take. The loader's batches that are ready must be used up at each switch."""
TOO_SLOW = "a step takes too long for it"


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """A part to delay. `site`: what else the agent has to know of it, such as the function's file and line."""

    part: DelayedPart
    place: str = ""
    site: dict[str, str] = {}

    def planned(self, delay_s: float) -> list[PlannedSetting]:
        action = "host" if self.part == "rank" else self.part
        site: dict[str, str | list[str] | dict[str, list[str]]] = {"action": f"delay-{action}", **self.site}
        return [PlannedSetting(knob=f"delay.{self.part}", value=delay_s, site=site)]


def delay_tests(
    runner: TaskRunner, delays: Sequence[Delay], *, budget_s: float = BUDGET_S, limit_s: float = LIMIT_S
) -> DelayTests | Unknown:
    """Test the parts in one task of the live run, which goes on afterwards.

    Args:
        runner: runner of a live run whose steps are steady.
        budget_s: seconds after which the tests end, as soon as each delay has `FEWEST_BLOCKS` blocks.
        limit_s: seconds after which they end in any case; a delay with fewer blocks says nothing.
    """
    began_s = time.monotonic()
    asked: list[tuple[Delay, float]] = []  # the arms of the task, with the seconds of each delay
    since: dict[type[Event], int] = {}

    def soon(records: Sequence[Record]) -> SwitchArms:
        step_s = runner.step_s or recent_step_s(records[0])
        asked[:] = affordable(delays, step_s, budget_s)
        since.update({kind: len(events) for kind, events in records[0].events.items()})
        return SwitchArms(
            at_step=earliest(records),
            arms=[delay.planned(delay_s) for delay, delay_s in asked],
            num_blocks=MOST_BLOCKS,
            stretch_steps=max(FEWEST_STEPS, math.ceil(STRETCH_S / step_s)),
            step_s=step_s,
            waits=recent_wait_share(records[0]),
        )

    def enough(records: Sequence[Record]) -> bool:
        if not records:
            return False
        blocks = _blocks(records[0], since, len(asked))
        given_up, late = _given_up(records[0], since), time.monotonic() - began_s > budget_s
        fewest = min((len(blocks[at]) for at in blocks if at not in given_up), default=0)
        return fewest >= FEWEST_BLOCKS and (late or _is_precise(blocks, asked))

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
        answers = _answers([at for at, (each, _) in enumerate(asked) if each is delay], blocks, asked)
        if answers:
            tests.append(_test(delay, answers))
        else:
            said = [given_up[at] for at, (each, _) in enumerate(asked) if each is delay and at in given_up]
            name = " ".join(filter(None, [delay.part, delay.place]))
            was_asked = any(each is delay for each, _ in asked)
            untested[name] = next(iter(said), (reason or "no time was left") if was_asked else TOO_SLOW)
    baselines = [unit_s(block.baseline, by_sample=False) for each in blocks.values() for block in each]
    if not baselines:
        return Unknown("; ".join(dict.fromkeys(untested.values())) or reason)
    return DelayTests(
        step_s=statistics.median(baselines), tests=tests, untested=untested, wall_s=time.monotonic() - began_s
    )


def affordable(delays: Sequence[Delay], step_s: float, budget_s: float) -> list[tuple[Delay, float]]:
    """Return the delays to make, with their seconds: of both sizes, or of slow steps the small one, and no loader."""

    def steps_of(delay: Delay) -> int:
        return STEPS_OF_THE_LOADERS if delay.part == "loader" else STEPS_OF_A_DELAY

    cost_s = step_s * sum(map(steps_of, delays))
    chosen = list(delays)
    if cost_s > LIMIT_S:
        chosen = [delay for delay in delays if delay.part != "loader"] or list(delays)
    shares = SHARES if len(SHARES) * cost_s <= budget_s else SHARES[:1]
    return [(delay, max(LEAST_DELAY_S, share * step_s)) for share in shares for delay in chosen]


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


def _noise(blocks: Mapping[int, Sequence[Block]]) -> tuple[float, int]:
    """Return the standard deviation (s) of a block's answer, pooled over the arms, and its degrees of freedom."""
    squares, df = 0.0, 0
    for each in blocks.values():
        values = _longer(each)
        if len(values) > 1:
            squares += math.fsum((value - statistics.fmean(values)) ** 2 for value in values)
            df += len(values) - 1
    return (math.sqrt(squares / df) if df else math.inf), df


def _half_s(blocks: Mapping[int, Sequence[Block]], num: int) -> float:
    """Return half the width (s) of the interval of an arm's mean answer from `num` blocks."""
    from scipy.special import stdtrit

    noise_s, df = _noise(blocks)
    return math.inf if not df else float(stdtrit(df, (1 + CONFIDENCE) / 2)) * noise_s / math.sqrt(num)


def _is_precise(blocks: Mapping[int, Sequence[Block]], asked: Sequence[tuple[Delay, float]]) -> bool:
    smallest = [at for at, (delay, delay_s) in enumerate(asked) if blocks[at] and delay_s == min(s for _, s in asked)]
    return all(_half_s(blocks, len(blocks[at])) <= PRECISE * asked[at][1] for at in smallest)


def _answers(
    arms: Sequence[int], blocks: Mapping[int, Sequence[Block]], asked: Sequence[tuple[Delay, float]]
) -> list[Answered]:
    found = []
    for at in arms:
        if len(blocks[at]) < FEWEST_BLOCKS:
            continue
        longer_s, half_s = statistics.fmean(_longer(blocks[at])), _half_s(blocks, len(blocks[at]))
        read = [float(one.found) for block in blocks[at] for one in block.readback if isinstance(one.found, str)]
        delay_s = statistics.fmean(read) if read else asked[at][1]
        ci = (longer_s - half_s, longer_s + half_s)
        found.append(Answered(delay_s=delay_s, longer_s=longer_s, ci=ci, num_blocks=len(blocks[at])))
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
