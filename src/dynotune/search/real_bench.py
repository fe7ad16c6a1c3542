"""Run arms of the user's own command: a fresh process per trial, in the sandbox, with a planned window."""

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from dynotune import probe
from dynotune.launch.process import fresh_folder
from dynotune.launch.records import Record
from dynotune.measure.bench import Journal, windows
from dynotune.measure.checks import guard
from dynotune.measure.comparison import objective, summary
from dynotune.measure.live import (
    COLD_KEPT,
    FirstStep,
    Live,
    Outcome,
    Steadiness,
    TaskRunner,
    TurnsPlan,
    Watcher,
    WindowPlan,
    cautions,
    lane_order,
    lane_speed,
    lanes,
    limit_s,
    readiness,
    refuse_impossible,
    run_settings,
    window_plan,
)
from dynotune.probe.facts import num_oom_kills
from dynotune.schema.arm import BASELINE, Arm, ids_of
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CannotRunHere, DynotuneError, StatisticsError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import LIMIT_S, RunSpec
from dynotune.schema.setting import Setting, batches_ahead, over
from dynotune.schema.study import BlockResult, Estimate, Guarded, HostBlock, Phase, Study, Trial
from dynotune.search import failures
from dynotune.search.bench import FIRST_LAUNCH, Hosts, Tested
from dynotune.search.beside import NICE, Beside
from dynotune.search.earlier import DIAGNOSIS, pilots_on_disk
from dynotune.search.fit import counts
from dynotune.search.guards import Guards
from dynotune.search.running import in_place
from dynotune.search.within_run import WithinRun

# A run that the deadline cuts short is lost, so a run that is nearly done may finish.
GRACE_RUNS = 0.5
STEPS_OF_A_BLOCK = 40
"""Steps of a block, including steps that do not count; a guess until a block has been run."""
RUNS_WORTH_LANES = 5
"""Runs that make lanes worth it: a pilot and two pairs in each of two lanes take as long and give four
pairs."""
NUM_CHECKING_RUNS = 3
"""Runs in a row that a first check of results takes about as long as."""
SLOWED_BY_CHECKS = 3.0
"""Factor on a step whose results are recorded, or that is computed in float64."""
NUM_BLOCKS, MOST_ARMS = 2, 8
NUM_PROVING = 8
"""Runs of the confirming pairs: with more, windows get so short that noise costs more than runs gain."""
OUT_OF_TIME = "the time ran out before it was done"


class RealBench:
    """Bench that runs arms of one study in its folder. Its journal gets what must outlive an attempt.

    Args:
        journal: the study.
        request: how the command is run, including the settings that all runs have in common.
        elapsed_s: seconds of earlier attempts and of this one so far.
        guess_s: seconds of a run, until one has been measured.
        runner: runner of a live run of the unchanged command, which may continue; it ends before any other
            run.
        wanted: lanes, as `lanes.wanted` found them.
        hosts: further hosts that run blocks; this host then has no lanes.
    """

    def __init__(
        self,
        request: RunSpec,
        folder: Path,
        journal: Journal[Study],
        watcher: Watcher,
        *,
        elapsed_s: float = 0.0,
        guess_s: float = 60.0,
        runner: TaskRunner | None = None,
        wanted: Sequence[lanes.Lane] = (),
        hosts: Hosts | None = None,
    ) -> None:
        self._request, self.journal, study = request, journal, journal.document
        self._folder, self._watcher = folder, watcher
        self._facts, self._budget_s, self._guess_s = study.facts, study.budget_s, guess_s
        self._began_s = time.monotonic() - elapsed_s
        self.side, self._wanted, self._lanes = lane_order.SideBySide(), wanted, list[lanes.Lane]()
        self._notes = lanes.Notes(watcher, study.lane_notes)
        self._numbers = lane_order.numbers(
            len(study.trials), (trial.run for trial in study.trials if "/" not in trial.run)
        )
        self._hosts = hosts
        # If the lane's host is lost, its block runs here, beside the first lane's.
        self._turn = threading.Lock() if hosts is not None else contextlib.nullcontext()
        self._num_runs = num_runs(study)
        self._guards = Guards(
            self._request,
            folder / "guard",
            study.facts,
            study.guarded,
            self._cache_folder(BASELINE) if self._shares_caches else None,
        )
        self._live = Live(
            request,
            folder / "switched",
            study.facts,
            watcher,
            cache_folder=self._cache_folder(BASELINE),
            runner=runner,
        )
        self._beside = Beside(self._launch_beside, probe.host.usable_cpus(), watcher)
        self._within = WithinRun(self._live, self._guards, self.left_s)
        self._pilots: dict[str, Outcome] = {}
        self._planned_s: dict[str, float] = {}
        self._outcomes: list[Outcome] = []
        self._first_steps: dict[str, FirstStep] = {}
        for trial in study.trials:
            if self._is_planned and trial.arm and trial.phase == "pilot" and trial.ended == "measured":
                self._planned_s[trial.arm] = self._once_warm_s(
                    trial.arm, trial.wall_s, study.run_s or trial.wall_s
                )
        if not self._is_planned or study.run.objective == "time-to-first-step":
            for key, outcome in pilots_on_disk(folder, study.trials).items():
                self._keep_pilot(key, outcome)

    @property
    def _study(self) -> Study:
        return self.journal.document

    # Interface for the search

    def all_lanes(self) -> list[lanes.Lane]:
        """Return the available hosts, or lanes with a pilot in each. Raises UsageError: as `alike`."""
        if self._hosts is not None:
            cpus = frozenset(probe.host.usable_cpus())
            found = [lanes.Lane(at, "", cpus, host) for at, host in enumerate(["", *self._hosts.names()], 1)]
            self._lanes = found if len(found) > 1 else [lanes.WHOLE]
        elif not self._lanes:
            pilots = [trial for trial in self._study.trials if trial.arm == BASELINE.key]
            alone = pilots_on_disk(self._folder, pilots).get(BASELINE.key) if self._wanted else None
            self._lanes = [lanes.WHOLE]
            left_s, run_s = self.left_s(), self.run_s(BASELINE)
            if self._wanted and (alone is None or left_s <= RUNS_WORTH_LANES * run_s):
                why = (
                    f"{left_s:.0f} s are left, and lanes need more than {RUNS_WORTH_LANES} runs of "
                    f"{run_s:.0f} s"
                )
                why = "the command as it is has no run to compare lanes with" if alone is None else why
                self._notes.say(f"Runs go one after another: {why}.")
            elif alone is not None:
                self._end_live()
                launch, run = self._lane_pilot, self._request
                self._lanes = lane_speed.alike(run, self._wanted, alone, self.side, launch, self._notes)
            if self._notes.said != self._study.lane_notes:
                self.journal.update(lane_notes=self._notes.said)
        return self._lanes

    def _lane_pilot(self, lane: lanes.Lane) -> Outcome:
        folder = fresh_folder(self._folder / f"lane-{lane.number}")
        return self._launch(BASELINE, "pilot", folder, limit_s(self._request, None), lane)

    def run(self, arm: Arm, phase: Phase, block: int, lane: lanes.Lane = lanes.WHOLE) -> Trial:
        """Run as `StudyBench.run` does. Raises DynotuneError: the unchanged command failed, or the
        machine."""
        with self.journal.lock:
            self._end_live()
            if phase != "pilot":
                self.plan()
            name = f"{next(self._numbers):04d}-{phase}"
        with self._turn:
            begun = Trial(
                arm=arm.key, phase=phase, block=block, ended="measured", began_s=self.elapsed_s(), run=name
            )
            return self._ended(self._run(arm, replace(begun, lane=lane.number), lane))

    def elsewhere(self, block: HostBlock, lane: lanes.Lane) -> BlockResult | None:
        found = self._hosts.run(lane.host, block, self.side.go_on) if self._hosts is not None else None
        if found is not None:
            with self.journal.lock:
                warnings, readback = (
                    [*self._study.warnings, *found.warnings],
                    found.readback | self._study.readback,
                )
                self.journal.update(readback=readback, warnings=list(dict.fromkeys(warnings)))
        return found

    def _end_live(self) -> None:
        self._beside.end()
        self._live.end()

    def check(self, arm: Arm) -> Trial | None:
        self._end_live()
        begun = Trial(arm=arm.key, phase="pilot", block=0, ended="unchecked", began_s=self.elapsed_s())
        if not self._guards.is_known(arm):
            self._watcher.running(f"losses or outputs: {arm.key}")
        found = self._guards.of(arm, min(LIMIT_S, self._time_left_s(arm)))
        self._keep_checked()
        if found is None or (isinstance(found, Guarded) and found.ok):
            return None
        next(self._numbers)  # the check is one of the trials
        if isinstance(found, Unknown):
            return self._ended(replace(begun, detail=found.reason))
        detail = found.reason or f"{found.what} differ by {found.difference:.2g} of their size"
        return self._ended(replace(begun, ended="wrong-results", detail=detail))

    def _keep_checked(self) -> None:
        if (told := self._guards.told) != self._study.guarded:
            self.journal.update(guarded=told)

    def _ended(self, trial: Trial) -> Trial:
        trial = replace(trial, wall_s=self.elapsed_s() - trial.began_s)
        self.journal.add(trial)
        return trial

    def check_s(self, arm: Arm) -> float:
        if self._guards.is_known(arm) or isinstance(self._guards.own, Unknown):
            return 0.0
        # The baseline runs first; then in float64, rounded, and with the settings, side by side if memory
        # allows.
        return (NUM_CHECKING_RUNS if self._guards.own is None else 1) * self._checking_run_s(arm)

    def _checking_run_s(self, arm: Arm) -> float:
        """Return the approximate seconds of a run whose results are checked, which ends after a few steps."""
        diagnosis = self._study.diagnosis
        timing = Unknown("") if isinstance(diagnosis, Unknown) else diagnosis.steps
        if isinstance(timing, Unknown) or timing.time_to_first_step_s is None:
            return self.run_s(arm)
        start_s = timing.time_to_first_step_s / self._of_first_launch
        return min(self.run_s(arm), start_s + SLOWED_BY_CHECKS * guard.NUM_VALUES * timing.step_s)

    def compile_beside(self, arm: Arm) -> None:
        alone = self._live.outcome()
        # Which files a run changes is known at its end, so that two runs at once need a view of the folder
        # each.
        if alone is not None and alone.run.sandbox == "overlay" and lanes.room(self._request, alone) > 1:
            self._beside.begin(arm)

    def wait_for_compiled(self, limit_s: float) -> None:
        self._beside.wait(limit_s)

    def _launch_beside(
        self, arm: Arm, lane: lanes.Lane, enough: Callable[[list[Record]], bool], go_on: Callable[[], object]
    ) -> Outcome:
        return run_settings(
            replace(lane.of(self._request), nice=max(NICE, self._request.nice)),
            self._settings(arm),
            label=f"the second start with {arm.key}",
            cache_folder=self._cache_folder(arm),
            folder=fresh_folder(self._folder / "beside"),
            purpose="pilot",
            facts=self._facts,
            limit_s=max(1.0, self.left_s()),
            enough=enough,
            go_on=go_on,
        )

    def switch(self, arms: Sequence[Arm], limit_s: float) -> list[Estimate]:
        return self._within.switch(arms, limit_s)

    def test(
        self, arm: Arm, plan: Comparison, error: float, limit_s: float, first_s: float = math.inf
    ) -> Tested:
        tested = self._within.test(arm, plan, error, limit_s, first_s)
        self._keep_checked()
        return tested

    def run_s(self, arm: Arm) -> float:
        for one in (arm, BASELINE):
            if took_s := [
                trial.wall_s for trial in self._study.trials if trial.arm == one.key and counts(trial)
            ]:
                return statistics.median(took_s)
            if one.key in self._planned_s:
                return self._planned_s[one.key]
        if BASELINE.key in self._pilots:
            # Plan for the shortest window that the remaining time requires, so as not to give up arms too
            # early.
            window = self._window()
            if arm == BASELINE or arm.key not in self._pilots:
                return window.run_s
            return self._own_s(arm.key, self._pilots[arm.key], window.run_s, window)
        return self._study.run_s or self._guess_s

    def least_run_s(self) -> float:
        is_known = any(trial.arm == BASELINE.key for trial in self._study.trials)
        # Without a run, the guess is that a first launch may take still longer than the diagnosis's own.
        return self.run_s(BASELINE) / self._of_first_launch / (1.0 if is_known else FIRST_LAUNCH)

    @property
    def _of_first_launch(self) -> float:
        """Return how many times as long as the next launch the known ones may have taken: 1 after a second
        launch."""
        later = (trial for trial in self._study.trials if Path(trial.run).parts[:1] != (DIAGNOSIS,))
        return 1.0 if any(trial.ended == "measured" for trial in later) else FIRST_LAUNCH

    def block_s(self) -> float:
        if self._within.block_s is not None:
            return self._within.block_s
        steps = self._study.diagnosis.steps if not isinstance(self._study.diagnosis, Unknown) else Unknown("")
        step_s = 0.0 if isinstance(steps, Unknown) else steps.median_step_s
        return STEPS_OF_A_BLOCK * step_s + 4 * TurnsPlan().stretch_s

    def left_s(self) -> float:
        return self._budget_s - self.elapsed_s()

    def close(self) -> None:
        self._beside.end()
        if self._wanted and not self._lanes:
            self._notes.say("No runs went side by side: the search ended before any run that could.")
            self.journal.update(lane_notes=self._notes.said)
        self._live.__exit__()

    # Values for the study

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def cautions(self) -> list[str]:
        return cautions.warnings(self._outcomes) + objective.notes(self._study.run.objective, self._outcomes)

    # One run

    def _run(self, arm: Arm, trial: Trial, lane: lanes.Lane) -> Trial:
        phase, folder = trial.phase, self._folder / trial.run
        fresh_folder(folder)
        try:
            refuse_impossible(self._request, self._settings(arm), self._facts)
        except DynotuneError as error:
            if arm == BASELINE:
                raise
            return replace(trial, ended="rejected", detail=error.message)
        known_s = max(self.run_s(arm), self._study.run_s or 0.0)
        own_limit_s, left_s = (
            limit_s(self._request, None if phase == "pilot" else known_s),
            self._time_left_s(arm),
        )
        kills = num_oom_kills()
        try:
            outcome = self._launch(arm, phase, folder, min(own_limit_s, left_s), lane)
            value = (
                None
                if phase == "pilot"
                else objective.value(outcome, self._study.run.objective, self._study.per)
            )
        except (DynotuneError, StatisticsError) as error:
            if not (folder / "run.json").exists():
                raise
            ended, detail = failures.answer(error, folder, kills, self._facts, self._request.env)
            if ended == "timeout" and left_s < own_limit_s:
                return replace(trial, ended="timeout", detail=OUT_OF_TIME, void=OUT_OF_TIME)
            if arm == BASELINE:
                raise
            return replace(trial, ended=ended, detail=detail)
        reasons = (
            objective.void_reasons(self._study.run.objective, {"candidate": outcome})
            if phase != "pilot"
            else []
        )
        void = "; ".join(reasons)
        if outcome.rejected:
            return replace(trial, ended="rejected", detail=failures.rejection(outcome))
        if phase == "pilot" and (refused := self._pilot(arm, outcome)):
            return replace(trial, ended="failed", detail=refused)
        self._note(outcome)
        if void:
            what = arm.key or "the command as it is"
            self._watcher.say(f"{in_place(phase, trial.block)}: {what} does not count: {void}")
        return replace(trial, value=value, void=void, time_to_first_step_s=outcome.first_step_s)

    def _launch(self, arm: Arm, phase: Phase, folder: Path, limit: float, lane: lanes.Lane) -> Outcome:
        is_pilot = phase == "pilot"
        steadiness, first_step = Steadiness(self._request), self._first_steps.get(BASELINE.key)
        return run_settings(
            lane.of(self._request),
            self._settings(arm),
            label=f"a run with {arm.key}" if arm.settings else "a run of the command as it is",
            cache_folder=self._cache_folder(arm, lane),
            folder=folder,
            purpose="pilot" if is_pilot else "measured",
            facts=self._facts,
            limit_s=limit,
            warmup_steps=None if is_pilot else self._study.run.warmup_steps,
            window_steps=None if is_pilot else self._study.run.window_steps or None,
            whole_epochs=self._study.whole_epochs,
            enough=steadiness if is_pilot else self._first_steps.get(arm.key, first_step or steadiness),
            go_on=self.side.go_on,
        )

    def _pilot(self, arm: Arm, outcome: Outcome) -> str:
        """Store the pilot for the window; return why the arm cannot be measured, or "". CannotRunHere if no
        arm can."""
        try:
            if not self._is_planned:
                window_plan.plan_window(self._request, [self._pilots.get(BASELINE.key, outcome), outcome])
            else:
                self._planned_s[arm.key] = self._own_s(arm.key, outcome, self.run_s(BASELINE))
        except CannotRunHere as error:
            if arm == BASELINE:
                raise
            return error.message
        self._keep_pilot(arm.key, outcome)
        found = readiness.steady_steps(outcome.records[0])
        if self._is_planned and (found is None or found > (self._study.run.warmup_steps or 0)):
            what = arm.key or "The command as it is"
            self._warn(
                f"{what} is not steady when the window begins: what it costs to start counts against it."
            )
        return ""

    def _keep_pilot(self, key: str, outcome: Outcome) -> None:
        if self._study.run.objective == "time-to-first-step":
            self._first_steps[key] = FirstStep(outcome)
        if not self._is_planned:
            self._pilots[key] = outcome

    # The window

    @property
    def _is_planned(self) -> bool:
        return self._study.run_s is not None

    def plan(self) -> None:
        """Fix the window of all runs, from the pilots so far; a window that is fixed does not change."""
        if self._is_planned:
            return
        planned, baseline = self._window(), self._pilots[BASELINE.key]
        wary = cautions.window_cautions(self._request, planned)
        wary += objective.cautions(self._study.run.objective, planned.num_steps)
        wary += cautions.sandbox_warnings(baseline)
        for text in wary:
            self._watcher.warn(text)
        self.journal.update(
            run=replace(
                self._study.run,
                warmup_steps=planned.warmup_steps or None,
                window_steps=planned.num_steps or None,
            ),
            run_s=planned.run_s,
            whole_epochs=planned.whole_epochs,
            unit=objective.unit_of(self._study.run.objective, summary.unit([*self._pilots.values()])),
            step=summary.step(baseline),
            warnings=list(dict.fromkeys([*self._study.warnings, *wary])),
        )
        run_s = self._own_s(BASELINE.key, baseline)
        self._planned_s = {key: self._own_s(key, outcome, run_s) for key, outcome in self._pilots.items()}
        self._pilots.clear()
        self._watcher.say(
            f"Each run: {planned.warmup_steps} warm-up steps, then {planned.num_steps} timed steps; "
            f"about {run_s:.0f} s."
            if planned.num_steps
            else f"Each run ends with its first steps; about {run_s:.0f} s."
        )

    def _window(self) -> WindowPlan:
        """Plan the timed window of all runs from the pilots so far and the remaining time.

        Lanes shorten the search, not its windows: the runs of a block still follow one another.
        """
        others = [outcome for key, outcome in self._pilots.items() if key != BASELINE.key]
        return windows.for_search(
            self._request,
            self._pilots[BASELINE.key],
            others,
            self.left_s(),
            num_runs=self._num_runs,
            num_ahead=batches_ahead(one.setting for one in self._study.candidates),
        )

    def _own_s(
        self, key: str, outcome: Outcome, usual_s: float = math.inf, window: WindowPlan | None = None
    ) -> float:
        """Return the seconds of a run of an arm, by the arm's pilot; `window`: for a window that is not fixed
        yet."""
        run, own = self._study.run, self._request
        warmup_steps, num_steps = (
            (window or run).warmup_steps,
            window.num_steps if window else run.window_steps,
        )
        request = replace(
            own, warmup_steps=warmup_steps or own.warmup_steps, window_steps=num_steps or own.window_steps
        )
        return self._once_warm_s(key, window_plan.plan_window(request, [outcome]).run_s, usual_s)

    def _once_warm_s(self, key: str, own_s: float, usual_s: float) -> float:
        """Return the seconds of a run of an arm; for an arm that compiles, of a run with warm caches."""
        warms = any(one.needs_warm_cache and one.id in ids_of(key) for one in self._study.candidates)
        if not warms or self._request.caches == "cold" or own_s <= usual_s:
            return own_s
        return usual_s + COLD_KEPT * (own_s - usual_s)

    # Time

    def _time_left_s(self, arm: Arm) -> float:
        return max(1.0, self.left_s() + GRACE_RUNS * self.run_s(arm))

    # Progress messages

    def _note(self, outcome: Outcome) -> None:
        with self.journal.lock:
            readback = summary.merged_readback(self._study.readback, outcome)
            if readback != self._study.readback:
                self.journal.update(readback=readback)
            self._outcomes.append(outcome.without_steps)

    def _warn(self, text: str) -> None:
        self._watcher.warn(text)
        if text not in self._study.warnings:
            self.journal.update(warnings=[*self._study.warnings, text])

    def _cache_folder(self, arm: Arm, lane: lanes.Lane = lanes.WHOLE) -> Path:
        """Return the cache folder, shared by arms and lanes unless starts are measured: code is keyed by
        content."""
        shared = "shared" if self._shares_caches else arm.short_name
        return lane.cache_folder(self._folder / "caches" / shared, self._request)

    @property
    def _shares_caches(self) -> bool:
        return self._study.run.objective != "time-to-first-step" and self._request.caches != "cold"

    def _settings(self, arm: Arm) -> list[Setting]:
        return over(self._study.run.settings, arm.settings)


def num_runs(study: Study) -> int:
    """Return how many runs a study wants: blocks that leave each setting out, and pairs that confirm."""
    num_settings = sum(one.id not in study.outcomes for one in study.candidates)
    return NUM_BLOCKS * (min(num_settings, MOST_ARMS) + 2) + NUM_PROVING
