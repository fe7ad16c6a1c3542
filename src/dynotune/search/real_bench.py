"""The bench on which the user's own command runs: a fresh process a trial, in the sandbox, with a planned window."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dynotune.launch.process import fresh_folder
from dynotune.measure.comparison import objective, summary
from dynotune.measure.live import (
    COLD_KEPT,
    FirstStep,
    Outcome,
    Steadiness,
    TaskRunner,
    Watcher,
    WindowPlan,
    cautions,
    limit_s,
    pilot,
    refuse_impossible,
    run_settings,
    switching,
)
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere, DynotuneError, StatisticsError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import Ended, Estimate, Phase, Study, Trial
from dynotune.search import failures
from dynotune.search.bench import BASELINE, Arm, Tested
from dynotune.search.earlier import pilots_on_disk
from dynotune.search.fit import counts
from dynotune.search.guarding import Guards
from dynotune.search.study_window import num_ahead, num_runs, study_window
from dynotune.search.within_run import WithinRun

# A run that is cut short by the deadline is lost: one that is nearly done is let go on.
GRACE_RUNS = 0.5
GUARD_LIMIT_S = 900.0
STEPS_OF_A_BLOCK = 40
"""Those that are not counted included; a guess, until one has been seen."""
OUT_OF_TIME = "the time was up before it was done"


class RealBench:
    """Runs arms of one study in its folder. What outlives an attempt is in the study; `add_to` puts it there.

    Args:
        request: how the command is run, with the settings that all runs have.
        elapsed_s: of earlier attempts and of this one so far.
        guess_s: what a run takes, as long as none has told.
        runner: of a live run of the command as it is, that may go on; it ends before anything else runs.
    """

    def __init__(
        self,
        request: RunSpec,
        folder: Path,
        study: Study,
        watcher: Watcher,
        *,
        elapsed_s: float = 0.0,
        guess_s: float = 60.0,
        runner: TaskRunner | None = None,
    ) -> None:
        self._request = request
        self._folder, self._watcher = folder, watcher
        self._facts, self._budget_s, self._guess_s = study.facts, study.budget_s, guess_s
        self._began_s = time.monotonic() - elapsed_s
        self._num_trials, self._num_alive = len(study.trials), _num_alive(study)
        self._study, self._trials = study, list(study.trials)
        self._guards = Guards(self._request, folder / "guard", study.facts, study.guarded)
        self._within = WithinRun(
            self._request,
            folder / "switched",
            study.facts,
            watcher,
            self._guards,
            objective=study.run.objective,
            cache_folder=self._cache_folder(BASELINE),
            left_s=self.left_s,
            runner=runner,
        )
        self._pilots: dict[str, Outcome] = {}
        self._planned_s: dict[str, float] = {}
        self._outcomes: list[Outcome] = []
        self._first_steps: dict[str, FirstStep] = {}
        for trial in study.trials:
            if self._is_planned and trial.arm and trial.phase == "pilot" and trial.ended == "measured":
                self._planned_s[trial.arm] = self._once_warm_s(trial.arm, trial.wall_s, study.run_s or trial.wall_s)
        if not self._is_planned or study.run.objective == "time-to-first-step":
            self._keep_pilots(pilots_on_disk(folder, study.trials))

    # What the search asks

    def run(self, arm: Arm, phase: Phase, block: int) -> Trial:
        """As `Bench.run`.

        Raises:
            DynotuneError: the command as it is fails, or the machine.
        """
        self._within.end()
        if phase != "pilot":
            self._plan()
        began_s = self.elapsed_s()
        name = f"{self._num_trials + 1:04d}-{phase}"
        self._watcher.running(self._in_words(arm, phase, block))
        trial = self._run(arm, phase, block, self._folder / name)
        self._num_trials += 1
        trial = msgspec.structs.replace(trial, began_s=began_s, wall_s=self.elapsed_s() - began_s, run=name)
        self._trials.append(trial)
        return trial

    def check(self, arm: Arm) -> Trial | None:
        """As `Bench.check`."""
        self._within.end()
        began_s = self.elapsed_s()
        wrong = self._guarded(arm)
        if wrong is None:
            return None
        self._num_trials += 1
        took_s = self.elapsed_s() - began_s
        return Trial(
            arm=arm.key, phase="pilot", block=0, ended="wrong-results", detail=wrong, began_s=began_s, wall_s=took_s
        )

    def check_s(self, arm: Arm) -> float:
        """As `Bench.check_s`."""
        if self._guards.is_known(arm):
            return 0.0
        return self.run_s(arm) + (0.0 if self._guards.has_baseline else self.run_s(BASELINE))

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        """As `Bench.switch`."""
        return self._within.switch(arms, limit_s)

    def test(self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf) -> Tested:
        """As `Bench.test`."""
        tested = self._within.test(arm, plan, error, limit_s, first_s)
        if tested.guarded is not None:
            self._study = msgspec.structs.replace(self._study, guarded=[*self._study.guarded, tested.guarded])
        return tested

    def run_s(self, arm: Arm) -> float:
        """As `Bench.run_s`."""
        for one in (arm, BASELINE):
            if (took_s := self._measured_s(one)) is not None:
                return took_s
            if one.key in self._planned_s:
                return self._planned_s[one.key]
        if BASELINE.key in self._pilots:
            # As short as the time left asks for: a plan must not give up what a shorter window affords.
            window = self._window()
            if arm == BASELINE or arm.key not in self._pilots:
                return window.run_s
            own = self._alone(self._pilots[arm.key], window.warmup_steps, window.num_steps)
            return self._once_warm_s(arm.key, own.run_s, window.run_s)
        return self._study.run_s or self._guess_s

    def block_s(self) -> float:
        """As `Bench.block_s`."""
        if self._within.block_s is not None:
            return self._within.block_s
        steps = self._study.diagnosis.steps if not isinstance(self._study.diagnosis, Unknown) else Unknown("")
        return STEPS_OF_A_BLOCK * (0.0 if isinstance(steps, Unknown) else steps.median_step_s) + 4 * switching.STRETCH_S

    def left_s(self) -> float:
        """As `Bench.left_s`."""
        return self._budget_s - self.elapsed_s()

    def close(self) -> None:
        """End the live run, if one goes on."""
        self._within.end()

    def _measured_s(self, arm: Arm) -> float | None:
        """Median of the arm's measured runs."""
        took_s = [trial.wall_s for trial in self._trials if trial.arm == arm.key and counts(trial)]
        return statistics.median(took_s) if took_s else None

    # What the study is told

    def elapsed_s(self) -> float:
        """Of all attempts together."""
        return time.monotonic() - self._began_s

    def add_to(self, study: Study) -> Study:
        """As `Bench.add_to`."""
        # What is planned is planned by what one process said, in this attempt as in one that goes on.
        mine = self._study = msgspec.structs.replace(self._study, estimates=study.estimates)
        self._num_alive = _num_alive(study)
        return msgspec.structs.replace(
            study,
            run=mine.run,
            run_s=mine.run_s,
            unit=mine.unit,
            step=mine.step,
            readback=mine.readback,
            guarded=mine.guarded,
            warnings=list(dict.fromkeys([*study.warnings, *mine.warnings])),
        )

    def cautions(self) -> list[str]:
        """What this attempt's runs give reason to be wary of."""
        return cautions.warnings(self._outcomes) + objective.notes(self._study.run.objective, self._outcomes)

    # One run

    def _run(self, arm: Arm, phase: Phase, block: int, folder: Path) -> Trial:
        def trial(ended: Ended, detail: str = "", **fields: object) -> Trial:
            made = Trial(arm=arm.key, phase=phase, block=block, ended=ended, detail=detail)
            return msgspec.structs.replace(made, **fields)

        fresh_folder(folder)
        try:
            refuse_impossible(self._request, self._settings(arm), self._facts)
        except DynotuneError as error:
            if arm == BASELINE:
                raise
            return trial("rejected", error.message)
        own_limit_s, left_s = self._limit_s(arm, phase), self._time_left_s(arm)
        then = failures.before(self._request.env, self._facts)
        try:
            outcome = self._launch(arm, phase, folder, min(own_limit_s, left_s))
            value = None if phase == "pilot" else self._value(outcome)
        except (DynotuneError, StatisticsError) as error:
            if not (folder / "run.json").exists():
                raise
            answer = failures.answer(error, folder, then, self._request.env)
            if answer.ended == "timeout" and left_s < own_limit_s:
                return trial("timeout", OUT_OF_TIME, void=OUT_OF_TIME)
            if arm == BASELINE:
                raise
            return trial(answer.ended, answer.detail)
        void = "; ".join(summary.void_reasons({"candidate": outcome})) if phase != "pilot" else ""
        if outcome.rejected:
            return trial("rejected", failures.rejection(outcome))
        if phase == "pilot" and (refused := self._pilot(arm, outcome)):
            return trial(*refused)
        self._note(outcome)
        if void:
            self._watcher.say(f"{_in_place(phase, block)}: {arm.key or 'the command as it is'} does not count: {void}")
        return trial("measured", value=value, void=void, time_to_first_step_s=outcome.first_step_s)

    def _launch(self, arm: Arm, phase: Phase, folder: Path, limit: float) -> Outcome:
        is_pilot = phase == "pilot"
        steadiness, first_step = Steadiness(self._request), self._first_steps.get(BASELINE.key)
        return run_settings(
            self._request,
            self._settings(arm),
            label=f"a run with {arm.key}" if arm.settings else "a run of the command as it is",
            cache_folder=self._cache_folder(arm),
            folder=folder,
            purpose="pilot" if is_pilot else "measured",
            facts=self._facts,
            limit_s=limit,
            warmup_steps=None if is_pilot else self._study.run.warmup_steps,
            window_steps=None if is_pilot else self._study.run.window_steps or None,
            enough=steadiness if is_pilot else self._first_steps.get(arm.key, first_step or steadiness),
        )

    def _value(self, outcome: Outcome) -> float:
        """Of the objective, lower is better.

        Raises:
            StatisticsError: it cannot be known of this run.
        """
        unit: summary.Unit = "step" if self._study.unit.endswith("step") else "sample"
        return objective.value(outcome, self._study.run.objective, unit)

    def _pilot(self, arm: Arm, outcome: Outcome) -> tuple[Ended, str] | None:
        """Keep the pilot for the window; why the arm cannot be measured, where it cannot.

        Raises:
            CannotRunHere: the command as it is makes too few steps.
        """
        try:
            if not self._is_planned:
                pilot.plan_window(self._request, [self._pilots.get(BASELINE.key, outcome), outcome])
            else:
                self._planned_s[arm.key] = self._once_warm_s(arm.key, self._own(outcome).run_s, self.run_s(BASELINE))
        except CannotRunHere as error:
            if arm == BASELINE:
                raise
            return "failed", error.message
        self._keep_pilots({arm.key: outcome})
        found = pilot.steady_steps(outcome.records[0])
        if self._is_planned and (found is None or found > (self._study.run.warmup_steps or 0)):
            self._warn(f"{arm.key} is not steady when the window begins: what it costs to start counts against it.")
        return None

    def _keep_pilots(self, pilots: Mapping[str, Outcome]) -> None:
        for key, outcome in pilots.items():
            if self._study.run.objective == "time-to-first-step":
                self._first_steps[key] = FirstStep(outcome)
            if not self._is_planned:
                self._pilots[key] = outcome

    def _guarded(self, arm: Arm) -> str | None:
        """Compare losses or outputs with the baseline's; why they are wrong, where they are."""
        if self._guards.is_known(arm):
            found = self._guards.of(arm, GUARD_LIMIT_S)
        else:
            self._watcher.running(f"losses or outputs: {arm.key}")
            found = self._guards.of(arm, min(GUARD_LIMIT_S, self._time_left_s(arm)))
            if isinstance(found, Unknown):
                self._warn(f"{arm.key}: whether results stay right is not known: {found.reason}")
            elif found is not None:
                self._study = msgspec.structs.replace(self._study, guarded=[*self._study.guarded, found])
        if found is None or isinstance(found, Unknown) or found.ok:
            return None
        return found.reason or f"{found.what} differ by {found.difference:.2g} of their size"

    # The window

    @property
    def _is_planned(self) -> bool:
        return self._study.run_s is not None

    def _plan(self) -> None:
        """Fix the window of all runs, from the pilots so far; what was fixed holds."""
        if self._is_planned:
            return
        pilots = dict(self._pilots)
        baseline = pilots.pop(BASELINE.key)
        window = self._window()
        wary = cautions.window_cautions(self._request, window)
        wary += objective.cautions(self._study.run.objective, window.num_steps)
        wary += cautions.sandbox_warnings(baseline)
        for text in wary:
            self._watcher.warn(text)
        self._study = msgspec.structs.replace(
            self._study,
            run=msgspec.structs.replace(
                self._study.run,
                warmup_steps=window.warmup_steps or None,
                window_steps=window.num_steps or None,
            ),
            run_s=window.run_s,
            unit=objective.unit_of(self._study.run.objective, summary.unit([baseline, *pilots.values()])),
            step=summary.step(baseline),
            warnings=[*self._study.warnings, *wary],
        )
        run_s = self._planned_s[BASELINE.key] = self._own(baseline).run_s
        for key, outcome in pilots.items():
            self._planned_s[key] = self._once_warm_s(key, self._own(outcome).run_s, run_s)
        self._pilots.clear()
        self._watcher.say(
            f"Each run: {window.warmup_steps} steps of warm-up, then {window.num_steps} timed as a whole; "
            f"about {run_s:.0f} s."
            if window.num_steps
            else f"Each run ends with its first steps; about {run_s:.0f} s."
        )

    def _window(self) -> WindowPlan:
        """Of all runs, by the pilots so far and the time left."""
        others = [outcome for key, outcome in self._pilots.items() if key != BASELINE.key]
        return study_window(
            self._request,
            self._pilots[BASELINE.key],
            others,
            self.left_s(),
            num_runs=num_runs(self._study),
            num_ahead=num_ahead(self._study.candidates),
        )

    def _own(self, outcome: Outcome) -> WindowPlan:
        """The window of one arm; its length as it was fixed."""
        return self._alone(outcome, self._study.run.warmup_steps, self._study.run.window_steps)

    def _alone(self, outcome: Outcome, warmup_steps: int | None, num_steps: int | None) -> WindowPlan:
        request = msgspec.structs.replace(
            self._request,
            warmup_steps=warmup_steps or self._request.warmup_steps,
            window_steps=num_steps or self._request.window_steps,
        )
        return pilot.plan_window(request, [outcome])

    def _once_warm_s(self, key: str, own_s: float, usual_s: float) -> float:
        """What a run takes in an arm, by its pilot; of one that compiles, once its caches are warm."""
        warms = any(one.needs_warm_cache and f" {one.id} " in f" {key} " for one in self._study.candidates)
        if not warms or self._request.caches == "cold" or own_s <= usual_s:
            return own_s
        return usual_s + COLD_KEPT * (own_s - usual_s)

    # Time

    def _limit_s(self, arm: Arm, phase: Phase) -> float:
        known_s = max(self.run_s(arm), self._study.run_s or 0.0)
        return limit_s(self._request, None if phase == "pilot" else known_s)

    def _time_left_s(self, arm: Arm) -> float:
        return max(1.0, self.left_s() + GRACE_RUNS * self.run_s(arm))

    def _in_words(self, arm: Arm, phase: Phase, block: int) -> str:
        minutes, alive = max(0.0, self.left_s()) / 60, self._num_alive
        what = f"{_in_place(phase, block)}: {arm.key or 'the command as it is'}"
        return f"{what} ({alive} setting{'s' * (alive != 1)} alive, {minutes:.0f} min left)"

    # What is told

    def _note(self, outcome: Outcome) -> None:
        merged = dict(self._study.readback)
        for readback in outcome.run.readback:
            before = merged.get(readback.knob)
            # What one run could not verify stays unverified, whatever later ones say.
            if before is None or before.ok is not None:
                merged[readback.knob] = readback
        self._study = msgspec.structs.replace(self._study, readback=merged)
        self._outcomes.append(outcome.without_steps)

    def _warn(self, text: str) -> None:
        self._watcher.warn(text)
        self._study = msgspec.structs.replace(self._study, warnings=[*self._study.warnings, text])

    def _cache_folder(self, arm: Arm) -> Path:
        """Return the folder of the arm's caches. Compiled code is found by its content, so that arms share one folder;
        only where the start itself is measured has each its own.
        """
        shares = self._study.run.objective != "time-to-first-step" and self._request.caches != "cold"
        return self._folder / "caches" / ("shared" if shares else arm.short_name)

    def _settings(self, arm: Arm) -> list[Setting]:
        """On top of what all runs have."""
        return over(self._study.run.settings, arm.settings)


def _num_alive(study: Study) -> int:
    return sum(candidate.id not in study.outcomes for candidate in study.candidates)


def _in_place(phase: Phase, block: int) -> str:
    return phase if phase == "pilot" else f"{phase}, block {block}"
