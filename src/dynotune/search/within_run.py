"""Compare arms within one live run of the user's command, which continues from one comparison to the next."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dynotune.measure.bench import in_process
from dynotune.measure.checks import rounding
from dynotune.measure.comparison import judge_comparison
from dynotune.measure.live import Block, TaskRunner, Watcher, switching
from dynotune.schema.arm import Arm
from dynotune.schema.comparison import MIN_PAIRS, Comparison
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Estimate
from dynotune.search.bench import Tested
from dynotune.search.guards import Guards
from dynotune.text import words

NUM_RESULTS = 3
"""Calls of an arm within a live run whose results are compared."""


class WithinRun:
    """The live run of a study, which compares arms that can change at any step.

    Args:
        folder: of the live run; `cache_folder`: of the baseline.
        guards: receive the program's results with each arm.
        left_s: function that returns the seconds that the study has left.
        runner: of a live run of the command as it is, which may go on.
    """

    def __init__(
        self,
        request: RunSpec,
        folder: Path,
        facts: Facts,
        watcher: Watcher,
        guards: Guards,
        *,
        cache_folder: Path,
        left_s: Callable[[], float],
        runner: TaskRunner | None = None,
    ) -> None:
        self._request, self._folder, self._facts, self._watcher = request, folder, facts, watcher
        self._guards, self._cache_folder, self._left_s, self._runner = guards, cache_folder, left_s, runner
        self._leave = ExitStack()
        self.block_s: float | None = None
        """Seconds of an arm's block, once a block has been run."""

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        if not arms or self._request.objective != "throughput":
            return []
        found = self._switched(arms, limit_s)
        reasons = list(dict.fromkeys([*found.given_up.values(), found.reason]))
        if not found.estimates and any(reasons):
            why = "; ".join(filter(None, reasons)).rstrip(".")
            self._watcher.say(f"Nothing could be compared within one process: {why}. Fresh runs compare.")
        return found.estimates

    def test(self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float) -> Tested:
        if self._request.objective != "throughput":
            return Tested(reason=f"the objective is {self._request.objective}, and one run has one value of it")
        began_s = time.monotonic()

        def enough(now: Mapping[str, list[Block]]) -> bool:
            blocks = now.get(arm.key, [])
            if not blocks and time.monotonic() - began_s > first_s:
                return True
            judgement = judge_comparison(plan, in_process.pairs_of(blocks), error=error)
            known = words.so_far(judgement.speedup, judgement.ci, self._left_s())
            self._watcher.running(f"{arm.key} within one process, block {len(blocks) + 1}; {known}")
            return judgement.finished

        found = self._switched(
            [arm],
            limit_s,
            num_blocks=plan.max_pairs,
            fewest_blocks=1,
            stretch_s=in_process.STRETCH_S,
            num_results=NUM_RESULTS,
            rounding=rounding(arm.settings),
            enough=enough,
        )
        is_late = not found.blocks.setdefault(arm.key, []) and time.monotonic() - began_s > first_s
        if is_late and not found.blamed.get(arm.key) and not found.unsuited.get(arm.key):
            found.given_up[arm.key] = f"no block of it was whole in {first_s:.0f} s"
            if self._runner is not None and self._runner.goes_on and not self._runner.makes_steps():
                # The program compiles, and the next arm would have to wait for that.
                self.end()
        return self._tested(arm, plan, found, error)

    def _tested(self, arm: Arm, plan: Comparison, found: switching.SwitchedArms, error: float) -> Tested:
        if event := found.results.get(arm.key):
            self._guards.seen(arm, event)
        if blocks := found.blocks[arm.key]:
            # The first block may include compilation.
            self.block_s = statistics.median(block.end_s - block.begin_s for block in blocks)
        if arm.key in found.given_up or len(blocks) < MIN_PAIRS:
            return Tested(
                reason=found.given_up.get(arm.key) or found.reason or "too few blocks were whole",
                blamed=tuple(found.blamed.get(arm.key, ())),
                unsuited=tuple(found.unsuited.get(arm.key, ())),
            )
        pairs = in_process.pairs_of(blocks)
        judgement = judge_comparison(plan, pairs, error=error, ended=True)
        return Tested(comparison=in_process.concluded(plan, found, arm.key, pairs, judgement))

    def _switched(self, arms: Sequence[Arm], limit_s: float, **how: Any) -> switching.SwitchedArms:
        """Switch arms as `switching.switch_arms`, in the continuing live run of the baseline, or else in a new one."""
        if self._runner is None or not self._runner.goes_on:
            self.end()
            left_s, caches = max(switching.LEAST_S, self._left_s()), self._cache_folder
            made = switching.runner_of(self._request, self._folder, self._watcher, self._facts, left_s, caches)
            self._runner = self._leave.enter_context(made)
        return switching.switch_arms(
            self._request,
            arms,
            limit_s,
            folder=self._folder,
            cache_folder=self._cache_folder,
            facts=self._facts,
            watcher=self._watcher,
            runner=self._runner,
            give_up_slow=True,
            **how,
        )

    def end(self) -> None:
        if self._runner is not None and self._runner.live is not None:
            self._runner.end()
        self._leave.close()
