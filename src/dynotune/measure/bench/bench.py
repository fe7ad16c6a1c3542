"""The bench of a comparison: fresh processes of its arms, their pilots, the window of their runs, and their
time."""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from dynotune.launch.process import fresh_folder
from dynotune.measure.bench import equal_arms, windows
from dynotune.measure.bench.journal import Journal
from dynotune.measure.comparison import objective, summary
from dynotune.measure.comparison.stats import SequentialResult
from dynotune.measure.live import cautions, compilation, lane_order, lane_speed, lanes, readiness, time_limit
from dynotune.measure.live.arm_run import run_settings
from dynotune.measure.live.outcome import Outcome, refuse_rejected
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.turns import Live
from dynotune.measure.live.window_plan import WindowPlan, plan_window
from dynotune.schema.comparison import ArmName, Comparison, FailedArm, Pair, Voided
from dynotune.schema.errors import CommandFailed, DynotuneError, RecordError, UsageError
from dynotune.text import words

ARMS: tuple[ArmName, ArmName] = ("baseline", "candidate")


class Bench:
    """Runs the arms of one comparison in its folder. All data that outlive an attempt are in the journal.

    The caller has reserved the machine.

    Args:
        live: live run of the baseline that several comparisons share; None makes one when it is asked for.
    """

    def __init__(
        self,
        request: CompareRequest,
        folder: Path,
        journal: Journal[Comparison],
        watcher: Watcher,
        live: Live | None = None,
    ) -> None:
        self.request, self.folder, self.journal, self.watcher = request, folder, journal, watcher
        self.side = lane_order.SideBySide()
        self._began_s, self._shared = time.monotonic(), live
        self._outcomes: list[Outcome] = []
        self._first_steps: dict[ArmName, readiness.FirstStep] = {}
        self._notes = lanes.Notes(watcher)
        self._lanes = lanes.wanted(request.run, self._notes)
        self._window: WindowPlan | None = None
        self._so_far = ""
        voided = self._comparison.voided
        made = [*self._comparison.pairs, *(one.values for one in voided if one.values is not None)]
        num = len(self._comparison.pairs) + len(voided)
        self._numbers = lane_order.numbers(num, (pair.baseline_run for pair in made))

    @property
    def _comparison(self) -> Comparison:
        return self.journal.document

    def left_s(self) -> float | None:
        """Return the seconds that are left for the comparison; None without a limit."""
        if self.request.budget_s is None:
            return None
        return self.request.budget_s - (time.monotonic() - self._began_s)

    def live(self) -> AbstractContextManager[Live]:
        """Return the live run of the baseline; one that is not shared ends with its `with` block."""
        if self._shared is not None:
            return nullcontext(self._shared)
        return Live(self.request.run, self.folder, self._comparison.facts, self.watcher)

    def end_live(self) -> None:
        """End a shared live run, so that fresh processes have the machine."""
        if self._shared is not None:
            self._shared.end()

    # Pilots and the window

    def window(self) -> WindowPlan:
        """Plan the window of all runs by a pilot of each arm; a pilot runs at most once in an attempt.

        Raises:
            UsageError: the time left is too short for pairs.
            EqualArms: the program has the settings of the other arm already.
            ArmFailed: the command failed in an arm.
            CannotRunHere: nothing can be timed.
        """
        if self._window is None:
            self._window = self._pilots()
        return self._window

    def _pilots(self) -> WindowPlan:
        said = cautions.say_where(self.request.run, self.folder / "pilot", self.watcher)
        outcomes = [self._pilot(arm, f"pilot-{arm}") for arm in ARMS]
        run, limit = self.request.run, time_limit.limit_s(self.request.run, None)

        def launch(lane: lanes.Lane) -> Outcome:
            return self._launch("baseline", f"pilot-lane-{lane.number}", limit, None, lane)

        self._lanes = lane_speed.alike(run, self._lanes, outcomes[0], self.side, launch, self._notes)
        self.journal.update(lane_notes=self._notes.said)
        if self._comparison.run_s is not None:
            # When a comparison resumes, its recorded plan stays in force, whatever the new pilot runs show.
            # Otherwise the pairs would be tested more often than planned.
            return plan_window(self.request.run, outcomes)
        window, most = self._plan(outcomes)
        max_pairs = min(most, self._comparison.max_pairs)
        if most < self._comparison.max_pairs:
            self.watcher.say(f"The budget is enough for {most} of {self._comparison.max_pairs} pairs.")
        wary = cautions.window_cautions(self.request.run, window)
        wary += cautions.unit_cautions(self.request, summary.unit(outcomes))
        wary += objective.cautions(self.request.run.objective, window.num_steps)
        wary += cautions.sandbox_warnings(outcomes[0])
        for caution in wary:
            if caution not in said:
                self.watcher.warn(caution)
        self.journal.update(
            run=msgspec.structs.replace(
                self._comparison.run,
                warmup_steps=window.warmup_steps or None,
                window_steps=window.num_steps or None,
            ),
            run_s=window.run_s,
            max_pairs=max_pairs,
            unit=summary.unit(outcomes),
            step=summary.step(outcomes[0]),
            warnings=[*self._comparison.warnings, *wary],
        )
        self.watcher.say(summary.cost(self._comparison, window, len(self._lanes)))
        return window

    def _pilot(self, arm: ArmName, name: str) -> Outcome:
        self.watcher.running(f"a first run of the {arm}, until its steps are steady", left_s=self.left_s())
        outcome = self._launch(arm, name, time_limit.limit_s(self.request.run, None), window=None)
        self._first_steps[arm] = readiness.FirstStep(outcome)
        equal_arms.refuse_had(self.request, arm, outcome)
        return outcome

    def _plan(self, outcomes: list[Outcome]) -> tuple[WindowPlan, int]:
        """Plan the window and the number of pairs. If only the pilots' cold caches prevent a plan, repeat the
        pilots.

        Raises CannotRunHere, UsageError: as for `plan`.
        """
        try:
            return windows.for_pairs(self.request, outcomes, self.left_s(), num_lanes=len(self._lanes))
        except UsageError:
            baseline, candidate = outcomes
            at_best = [
                compilation.found_warm(baseline, candidate, is_first=True),
                compilation.found_warm(candidate, baseline, is_first=False),
            ]
            if not self._would_do_warm(outcomes, at_best):
                raise
        self.watcher.say("The budget may be enough with warm caches: the first runs are made once more.")
        warm = [
            outcome if found is None else self._pilot(arm, f"pilot-{arm}-warm")
            for arm, outcome, found in zip(ARMS, outcomes, at_best, strict=True)
        ]
        return windows.for_pairs(self.request, warm, self.left_s(), cold_kept=1.0, num_lanes=len(self._lanes))

    def _would_do_warm(self, outcomes: list[Outcome], at_best: list[Outcome | None]) -> bool:
        """Tell whether the budget may be enough with warm caches, counting the pilots' second runs."""
        left_s = self.left_s()
        if left_s is None or self.request.run.caches == "cold" or at_best == [None, None]:
            return False
        once_more_s = sum(
            (outcome.run.wall_s or 0.0)
            - compilation.compiled_s(outcome)
            - (found.launched_s - outcome.launched_s)
            for outcome, found in zip(outcomes, at_best, strict=True)
            if found is not None
        )
        warm = [found or outcome for outcome, found in zip(outcomes, at_best, strict=True)]
        try:
            windows.for_pairs(
                self.request, warm, left_s - once_more_s, cold_kept=0.0, num_lanes=len(self._lanes)
            )
        except UsageError:
            return False
        return True

    def _launch(
        self,
        arm: ArmName,
        name: str,
        limit: float,
        window: WindowPlan | None,
        lane: lanes.Lane = lanes.WHOLE,
    ) -> Outcome:
        folder = fresh_folder(self.folder / name)
        try:
            outcome = run_settings(
                lane.of(self.request.run),
                self.request.arm(arm),
                label=f"a run of the {arm}",
                cache_folder=lane.cache_folder(self.folder / "caches" / arm, self.request.run),
                folder=folder,
                purpose="pilot" if window is None else "measured",
                facts=self._comparison.facts,
                limit_s=limit,
                warmup_steps=(window.warmup_steps or None) if window else None,
                window_steps=(window.num_steps or None) if window else None,
                whole_epochs=window.whole_epochs if window else 0,
                enough=self._first_steps[arm]
                if window
                else readiness.UntilStep(readiness.Steadiness(self.request.run), self.watcher.say),
                go_on=self.side.go_on,
                other_arm=[] if window else equal_arms.missing(self.request, arm),
            )
        except CommandFailed as error:
            raise ArmFailed(
                FailedArm(arm, error.command_exit_code, list(error.last_lines), str(folder))
            ) from error
        refuse_rejected(outcome, f"in the {arm}")
        with self.journal.lock:
            self._outcomes.append(outcome.without_steps)
            found = self._comparison
            # If both set a knob, the candidate's value is reported.
            others = {setting.knob for setting in found.candidate_settings} if arm == "baseline" else ()
            readback = summary.merged_readback(found.readback, outcome, others)
            self.journal.update(readback=readback, set_by=summary.changes_by_program(found, outcome))
        return outcome

    # Pairs

    def all_lanes(self) -> list[lanes.Lane]:
        self.window()
        return self._lanes

    def most_turns(self) -> float:
        left_s = self.left_s()
        return math.inf if left_s is None else left_s // (2 * self.window().run_s)

    def see(self, judgement: SequentialResult) -> None:
        self._so_far = words.so_far(judgement.speedup, judgement.ci)

    def tell(self, pair: Pair | Voided) -> None:
        done = self._comparison
        if isinstance(pair, Voided):
            self.watcher.voided(pair)
        else:
            self.watcher.finished(
                pair,
                number=len(done.pairs),
                max_pairs=done.max_pairs,
                unit=done.unit,
                objective=done.run.objective,
            )

    def turn(self, order: ArmName, lane: lanes.Lane) -> Pair | Voided:
        """Run both arms, `order` first, in fresh processes of the lane.

        Raises ArmFailed, CannotRunHere: as `window`.
        """
        number, window = next(self._numbers), self.window()
        limit = time_limit.limit_s(self.request.run, window.run_s)
        values: dict[ArmName, float] = {}
        runs: dict[ArmName, Outcome] = {}
        for arm in ARMS if order == ARMS[0] else ARMS[::-1]:
            with self.journal.lock:
                self.watcher.running_arm(
                    arm,
                    pair=number,
                    max_pairs=self._comparison.max_pairs,
                    so_far=self._so_far,
                    left_s=self._pairs_left_s(number, len(values)),
                )
            runs[arm] = self._launch(arm, f"{number:03d}-{arm}", limit, window, lane)
            values[arm] = objective.value(runs[arm], self.request.run.objective, self._comparison.unit)
        ids = runs["baseline"].run.id, runs["candidate"].run.id
        pair = Pair(order, values["baseline"], values["candidate"], *ids, lane.number)
        reasons = objective.void_reasons(self.request.run.objective, runs)
        return Voided(number, "; ".join(reasons), pair) if reasons else pair

    def _pairs_left_s(self, number: int, num_done: int) -> float:
        """Return the seconds that pairs from `number` on take at most; `num_done` of their runs are made."""
        num_runs = 2 * max(1, self._comparison.max_pairs - number + 1) - num_done
        # Each lane runs its own pairs, at the same time as the other lanes.
        pairs_s = num_runs * self.window().run_s / max(1, len(self._lanes))
        left_s = self.left_s()
        return pairs_s if left_s is None else min(pairs_s, left_s)

    def summarise(self, **answer: object) -> None:
        """Add to the comparison what its runs showed beside their values, and the fields of `answer`."""
        runs: dict[ArmName, list[summary.MeasuredRun]] = {arm: [] for arm in ARMS}
        warnings = [*self._comparison.warnings, *cautions.warnings(self._outcomes)]
        warnings += objective.notes(self.request.run.objective, self._outcomes)
        pairs = self._comparison.pairs
        values = [pair.baseline_s for pair in pairs], [pair.candidate_s for pair in pairs]
        for pair in pairs:
            for arm, run in zip(ARMS, (pair.baseline_run, pair.candidate_run), strict=True):
                # Read runs from disk, because some may come from an earlier attempt.
                try:
                    runs[arm].append(summary.read_run(self.folder.parent / run))
                except RecordError as error:
                    warnings.append(f"left out of what is shown beside the answer: {error.message}")
        self.journal.update(
            **answer,
            baseline=summary.arm_summary(runs["baseline"], self._comparison.unit, values[0]),
            candidate=summary.arm_summary(runs["candidate"], self._comparison.unit, values[1]),
            warnings=warnings,
        )


class ArmFailed(DynotuneError):
    """Failure of the command in the baseline or the candidate, which is the answer of the comparison."""

    def __init__(self, arm: FailedArm) -> None:
        last = f": {arm.last_lines[-1]}" if arm.last_lines else ""
        super().__init__(f"the {arm.arm} failed {words.ending(arm.exit_code)}, see {arm.run}{last}")
        self.arm = arm
