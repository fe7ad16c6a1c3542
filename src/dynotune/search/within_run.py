"""Compare arms within one live run of the user's command, which continues from one comparison to the next.

Losses or outputs of each set of settings that may change rounding are compared with the baseline's, once per set.
"""

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dynotune.launch.process import has_room
from dynotune.measure.checks import guard, guarded, rounding
from dynotune.measure.comparison import in_process, judge_comparison
from dynotune.measure.live import Block, TaskRunner, Watcher, switching
from dynotune.schema.comparison import MIN_PAIRS, Comparison
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Estimate, Guarded
from dynotune.search.bench import Arm, Tested, arm
from dynotune.text import words


class Guards:
    """Results of guards so far; `known`: results of earlier attempts. All arms share the baseline's runs."""

    def __init__(self, run: RunSpec, folder: Path, facts: Facts, known: Sequence[Guarded]) -> None:
        self._run, self._folder, self._facts = run, folder, facts
        self.own: guard.Own | Unknown | None = None
        """Results of the baseline, once this attempt has run it or tried to."""
        self._found: dict[str, Guarded | Unknown] = {one.arm: one for one in known}

    def of(self, one: Arm, limit_s: float) -> Guarded | Unknown | None:
        """Compare the arm's results; None if none of its settings changes rounding. `limit_s`: seconds for each run.

        Raises CannotRunHere: the disk is full.
        """
        chosen = arm(guarded(one.settings))
        if not self.is_known(one):
            self._found[chosen.key] = self._compare(chosen, limit_s)
        return self._known(chosen)

    @property
    def told(self) -> list[Guarded]:
        """Return the known results in the order in which they were found."""
        return [one for one in self._found.values() if isinstance(one, Guarded)]

    def seen(self, one: Arm, event: dict[str, Any]) -> None:
        """Keep a comparison of calls within a running program if its results are right; else separate runs decide.

        A decoder changes the inputs of calls, which are the same for both calls that were compared.
        """
        chosen = arm([setting for setting in guarded(one.settings) if setting.knob != "decode.backend"])
        if self.is_known(chosen):
            return
        found = guard.within(chosen.settings, event)
        if isinstance(found, Guarded) and found.ok:
            self._found[chosen.key] = found

    def is_known(self, one: Arm) -> bool:
        """Return whether the result is known without a run."""
        chosen = arm(guarded(one.settings))
        return not chosen.settings or self._known(chosen) is not None

    def _known(self, chosen: Arm) -> Guarded | Unknown | None:
        """Return the known result of these settings, or of more settings that leave results right: fewer then do."""
        if not chosen.settings or chosen.key in self._found:
            return self._found.get(chosen.key)
        ids = set(map(str, chosen.settings))
        return next((one for one in self.told if one.ok and ids <= one.ids), None)

    def _compare(self, chosen: Arm, limit_s: float) -> Guarded | Unknown:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            runs = guard.Guard(self._run, self._folder, self._facts, limit_s)
            if self.own is None:
                self.own = runs.baseline()
            name = f"guard-{hashlib.sha256(chosen.key.encode()).hexdigest()[:12]}"
            return self.own if isinstance(self.own, Unknown) else runs.compare(chosen.settings, self.own, name)
        except DynotuneError as error:
            if not has_room(self._folder):
                raise
            return Unknown(error.message)


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
