"""Arms compared within one live run of the user's command, which goes on from one comparison to the next."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from dynotune.measure.comparison import SequentialResult, in_process, judge
from dynotune.measure.live import TaskRunner, Watcher, switching
from dynotune.schema.comparison import MIN_PAIRS, Comparison
from dynotune.schema.facts import Facts
from dynotune.schema.run import Objective, RunSpec
from dynotune.schema.study import Estimate
from dynotune.search.bench import Arm, Tested
from dynotune.search.guarding import Guards
from dynotune.text import words

NUM_RESULTS = 3
"""Calls of an arm within a live run whose results are compared."""


class WithinRun:
    """The live run of a study, and what it tells of arms that can change at any step.

    Args:
        folder: of the live run.
        guards: told what the program's results were with an arm.
        cache_folder: of the baseline.
        left_s: seconds that the study has left.
        runner: of a live run of the command as it is, that may go on.
    """

    def __init__(
        self,
        request: RunSpec,
        folder: Path,
        facts: Facts,
        watcher: Watcher,
        guards: Guards,
        *,
        objective: Objective,
        cache_folder: Path,
        left_s: Callable[[], float],
        runner: TaskRunner | None = None,
    ) -> None:
        self._request, self._folder, self._facts, self._watcher = request, folder, facts, watcher
        self._guards, self._objective, self._cache_folder, self._left_s = guards, objective, cache_folder, left_s
        self._runner = runner
        self._own_runner: TaskRunner | None = None
        self.block_s: float | None = None
        """What a block of an arm took, once one has been seen; seconds."""

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        """As `Bench.switch`."""
        if not arms or self._objective != "throughput":
            return []
        found = self._switched(arms, limit_s)
        reasons = list(dict.fromkeys([*found.given_up.values(), found.reason]))
        if not found.estimates and any(reasons):
            why = "; ".join(filter(None, reasons)).rstrip(".")
            self._watcher.say(f"Within one process nothing could be compared: {why}. Fresh runs tell.")
        return found.estimates

    def test(self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf) -> Tested:
        """As `Bench.test`."""
        if self._objective != "throughput":
            return Tested(reason=f"the objective is {self._objective}, and one run has one value of it")
        until = _Decided(plan, error, first_s)

        def enough(blocks: Mapping[str, list[switching.Block]]) -> bool:
            so_far = until.with_earlier(blocks.get(arm.key, []))
            if until.is_late(so_far):
                return True
            judgement = until.judged(so_far, ended=False)
            known = words.so_far(judgement.speedup, judgement.ci, self._left_s())
            self._watcher.running(f"{arm.key} within one process, block {len(so_far) + 1}; {known}")
            return judgement.finished

        until_s, found = time.monotonic() + limit_s, switching.SwitchedArms()
        # A program that ends before enough blocks came goes through its steps again.
        while (rest_s := until_s - time.monotonic()) > switching.LEAST_S:
            now = self._switched([arm], rest_s, plan, enough)
            until.earlier += now.blocks.get(arm.key, [])
            found = msgspec.structs.replace(now, blocks={arm.key: list(until.earlier)})
            if not now.blocks.get(arm.key) or not now.ran_out or enough({}):
                break
        return self._tested(arm, found, until)

    def _tested(self, arm: Arm, found: switching.SwitchedArms, until: _Decided) -> Tested:
        event = found.results.get(arm.key)
        guarded = self._guards.seen(arm, event) if event else None
        blocks = until.with_earlier([])
        if until.is_late(blocks) and not found.blamed.get(arm.key) and not found.unsuited.get(arm.key):
            found.given_up[arm.key] = f"no block of it was whole in {until.first_s:.0f} s"
            if self._runner is not None and self._runner.goes_on and not self._runner.makes_steps():
                # It compiles, and the next arm would wait until that is done.
                self.end()
        if blocks:
            # The first one may compile.
            self.block_s = statistics.median(block.end_s - block.begin_s for block in blocks)
        if arm.key in found.given_up or len(blocks) < MIN_PAIRS:
            return Tested(
                reason=found.given_up.get(arm.key) or found.reason or "too few blocks were whole",
                blamed=tuple(found.blamed.get(arm.key, ())),
                unsuited=tuple(found.unsuited.get(arm.key, ())),
                ended_program=found.ended_program,
                guarded=guarded,
            )
        judgement = until.judged(blocks, ended=True)
        comparison = in_process.concluded(until.plan, found, blocks, in_process.pairs_of(blocks), judgement)
        return Tested(comparison=comparison, guarded=guarded)

    def _switched(
        self,
        arms: Sequence[Arm],
        limit_s: float,
        plan: Comparison | None = None,
        enough: Callable[[Mapping[str, list[switching.Block]]], bool] | None = None,
    ) -> switching.SwitchedArms:
        """Of a test of one arm, `plan` and when it is decided; without them arms are compared in turns."""
        in_turns = plan is None
        return switching.switch_arms(
            self._request,
            arms,
            limit_s,
            folder=self._folder,
            cache_folder=self._cache_folder,
            facts=self._facts,
            watcher=self._watcher,
            num_blocks=switching.NUM_BLOCKS if plan is None else plan.max_pairs,
            fewest_blocks=switching.FEWEST_BLOCKS if in_turns else 1,
            stretch_s=switching.STRETCH_S if in_turns else in_process.STRETCH_S,
            num_results=0 if in_turns else NUM_RESULTS,
            runner=self._live_run(),
            give_up_slow=True,
            goes_on=True,
            enough=enough,
        )

    def end(self) -> None:
        """End the live run, if one goes on."""
        if self._runner is not None and self._runner.goes_on:
            self._runner.end()
        if self._own_runner is not None:
            self._own_runner.__exit__(None, None, None)
            self._own_runner = None

    def _live_run(self) -> TaskRunner:
        """The live run of the baseline that goes on, or a new one."""
        if self._runner is None or not self._runner.goes_on:
            self.end()
            self._runner = self._own_runner = TaskRunner(
                msgspec.structs.replace(self._request, base=self._folder, run_to_end=False),
                self._watcher,
                facts=self._facts,
                label="the run that switches arms",
                limit_s=max(switching.LEAST_S, self._left_s()),
                cache_folder=self._cache_folder,
            )
            self._runner.start()
        return self._runner


class _Decided:
    """When a test of an arm is decided: by its blocks, or because none came in time.

    Args:
        first_s: seconds that the first block may take.
    """

    def __init__(self, plan: Comparison, error: float, first_s: float) -> None:
        self.plan, self._error, self.first_s = plan, error, first_s
        self._began_s = time.monotonic()
        self.earlier: list[switching.Block] = []
        """Blocks of runs that ended before it was decided."""

    def with_earlier(self, blocks: Sequence[switching.Block]) -> list[switching.Block]:
        return [*self.earlier, *blocks][: self.plan.max_pairs]

    def judged(self, blocks: Sequence[switching.Block], *, ended: bool) -> SequentialResult:
        return judge(
            in_process.pairs_of(blocks),
            margin=self.plan.margin,
            max_pairs=self.plan.max_pairs,
            precision=math.inf if self.plan.precision is None else self.plan.precision,
            error=self._error,
            ended=ended,
        )

    def is_late(self, blocks: Sequence[switching.Block]) -> bool:
        return not blocks and time.monotonic() - self._began_s > self.first_s
