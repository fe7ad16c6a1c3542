"""Compare arms within one live run of the user's command, which continues from one comparison to the next."""

import statistics
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dynotune.measure.bench import in_process
from dynotune.measure.checks import guarded, rounding
from dynotune.measure.comparison import judge_comparison
from dynotune.measure.live import LEAST_S, Live, Turns, TurnsPlan, switching
from dynotune.schema.arm import Arm
from dynotune.schema.comparison import MIN_PAIRS, Comparison
from dynotune.schema.events import Block
from dynotune.schema.study import Estimate
from dynotune.search.bench import Tested
from dynotune.search.guards import Guards
from dynotune.text import words

TIMED_BLOCKS = 2
"""Blocks after which the time that a block takes is known."""
TELLING = 1.0
"""Width of the interval, relative to the gain, up to which blocks go on after their verdict: what launches
add to the interval then seldom takes the verdict away, where the time holds no fresh pairs."""
NO_GAIN = "Its blocks leave no gain, so no more were made."
NUM_RESULTS = 3
"""Calls of an arm within a live run whose results are compared."""


class _Afforded:
    """The plan of a test, with as many blocks as the time affords, so that its looks are those that will be
    made.

    With many looks planned, the first ones decide little: an answer of four blocks of twelve has an interval
    far wider than one of four blocks of four. The second block shows how long a block takes: the first may
    include compilation.
    """

    def __init__(self, plan: Comparison, until_s: float) -> None:
        self.plan, self._until_s = plan, until_s
        self._is_fixed = False

    def __call__(self, blocks: list[Block]) -> Comparison:
        if len(blocks) >= TIMED_BLOCKS and not self._is_fixed:
            self._is_fixed = True
            last_s = max(blocks[-1].end_s - blocks[-1].begin_s, 1e-6)
            more = max(1.0, (self._until_s - time.monotonic()) // last_s)
            self.plan = replace(self.plan, max_pairs=int(min(self.plan.max_pairs, len(blocks) + more)))
        return self.plan


class WithinRun:
    """The live run of a study, which compares arms that can change at any step.

    Args:
        live: of the command as it is.
        guards: receive the program's results with each arm.
        left_s: function that returns the seconds that the study has left.
    """

    def __init__(
        self,
        live: Live,
        guards: Guards,
        left_s: Callable[[], float],
    ) -> None:
        self._live, self._guards, self._left_s = live, guards, left_s
        self.block_s: float | None = None
        """Seconds of an arm's block, once a block has been run."""

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        if not arms or self._live.run.objective != "throughput":
            return []
        turns = self._turns(arms, limit_s, TurnsPlan(give_up_slow=True))
        for _ in turns:
            pass
        found = turns.found()
        reasons = list(dict.fromkeys([*found.given_up.values(), found.reason]))
        if not found.estimates and any(reasons):
            why = "; ".join(filter(None, reasons)).rstrip(".")
            self._live.watcher.say(
                f"Nothing could be compared within one run: {why}. Each setting is compared in runs of "
                "its own."
            )
        return found.estimates

    def test(self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float) -> Tested:
        if self._live.run.objective != "throughput":
            return Tested(
                reason=f"the objective is {self._live.run.objective}, and one run has one value of it"
            )
        began_s = time.monotonic()
        how = TurnsPlan(
            num_blocks=plan.max_pairs,
            fewest_blocks=1,
            stretch_s=in_process.STRETCH_S,
            first_s=first_s,
            again=True,
            num_results=NUM_RESULTS if guarded(arm.settings) else 0,
            rounding=rounding(arm.settings),
            give_up_slow=True,
        )
        turns = self._turns([arm], limit_s, how)
        self._live.watcher.running(f"{arm.key} within one process, block 1", left_s=self._left_s())
        afforded = _Afforded(plan, began_s + limit_s)
        is_hopeless = False
        for blocks, judgement in in_process.until_verdict(
            turns, arm, afforded, error=error, precision=TELLING
        ):
            known = words.so_far(judgement.speedup, judgement.ci)
            text = f"{arm.key} within one process, block {len(blocks) + 1}{f'; {known}' if known else ''}"
            self._live.watcher.running(text, left_s=self._left_s())
            if is_hopeless := in_process.gains_nothing(arm.key, blocks, plan.margin):
                break
        found = turns.found()
        is_late = not found.blocks.setdefault(arm.key, []) and time.monotonic() - began_s > first_s
        if is_late and not found.blamed.get(arm.key) and not found.unsuited.get(arm.key):
            found.given_up[arm.key] = f"none of its blocks was finished in {first_s:.0f} s"
            if self._live.goes_on and not self._live.makes_steps():
                # The program compiles, and the next arm would have to wait for that.
                self._live.end()
        return self._tested(arm, afforded.plan, found, error, is_hopeless)

    def _tested(
        self, arm: Arm, plan: Comparison, found: switching.SwitchedArms, error: float, is_hopeless: bool
    ) -> Tested:
        for event in found.results.get(arm.key, []):
            self._guards.seen(arm, event)
        if blocks := found.blocks[arm.key]:
            # The first block may include compilation.
            self.block_s = statistics.median(block.end_s - block.begin_s for block in blocks)
        if arm.key in found.given_up or (len(blocks) < MIN_PAIRS and not is_hopeless):
            return Tested(
                reason=found.given_up.get(arm.key) or found.reason or "too few blocks were whole",
                blamed=tuple(found.blamed.get(arm.key, ())),
                unsuited=tuple(found.unsuited.get(arm.key, ())),
            )
        pairs = in_process.pairs_of(blocks)[: plan.max_pairs]
        judgement = judge_comparison(plan, pairs, error=error, precision=TELLING, ended=True)
        if is_hopeless and judgement.verdict == "undecided":
            ci = switching.estimate(arm.key, blocks).ci
            judgement = replace(judgement, ci=ci, reason=NO_GAIN, num_pairs_to_settle=None)
        return Tested(comparison=in_process.concluded(plan, found, arm.key, pairs, judgement))

    def _turns(self, arms: Sequence[Arm], limit_s: float, how: TurnsPlan) -> Turns:
        self._live.limit_s = max(LEAST_S, self._left_s())
        return self._live.turns(arms, limit_s, how)
