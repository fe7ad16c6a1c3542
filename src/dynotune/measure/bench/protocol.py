"""Run a comparison from start to end: pilots, pairs in random order, verdict, and storage on disk."""

import math
import time
from pathlib import Path

import msgspec

from dynotune import probe
from dynotune.launch import new_run_folder
from dynotune.launch.process import fresh_folder, origin, variants
from dynotune.measure.bench import in_process, windows
from dynotune.measure.bench.journal import Journal
from dynotune.measure.comparison import launched, objective, summary
from dynotune.measure.comparison.schedule import orders
from dynotune.measure.comparison.stats import SequentialResult, judge, judge_comparison
from dynotune.measure.live import (
    cautions,
    compilation,
    lane_order,
    lane_speed,
    lanes,
    readiness,
    switching,
    time_limit,
)
from dynotune.measure.live.arm_run import refuse_impossible, run_settings
from dynotune.measure.live.machine import check, facts_of, refuse_another_machine
from dynotune.measure.live.outcome import Outcome, refuse_rejected
from dynotune.measure.live.request import CompareRequest, Watcher
from dynotune.measure.live.reservation import machine_lock
from dynotune.measure.live.task_runner import TaskRunner
from dynotune.measure.live.window_length import MIN_WINDOW_S
from dynotune.measure.live.window_plan import WindowPlan, plan_window
from dynotune.schema import document, resumption
from dynotune.schema.comparison import MIN_PAIRS, PRECISION, ArmName, Comparison, FailedArm, Pair, Voided
from dynotune.schema.errors import CommandFailed, DynotuneError, RecordError, UsageError
from dynotune.schema.run import RunSpec
from dynotune.text import words

FILE = "comparison.json"
STATING_PAIRS = 4
"""Most fresh pairs that state a speed-up which blocks have shown."""
NUM_STATING_RUNS = 2 + 2 * MIN_PAIRS
"""Runs that state a speed-up: two pilots, and the fewest pairs."""
ARMS: tuple[ArmName, ArmName] = ("baseline", "candidate")


class Interrupted(KeyboardInterrupt):
    """Interruption of a comparison by the user: child processes have ended, and finished results are in `folder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder


def compare(request: CompareRequest, watcher: Watcher, *, runner: TaskRunner | None = None) -> Comparison:
    """Compare the baseline and the candidate of `request`. Write every finished pair to disk before the next begins.

    `runner`: runner of the baseline for several comparisons; its live run is ended before fresh processes start.

    Raises:
        UsageError, CannotRunHere: a setting, a pilot or a run was impossible; no file of the user's is changed.
        Interrupted: the user interrupted the comparison; `resume` continues.
    """
    judge([], margin=request.margin, max_pairs=request.max_pairs)  # raises UsageError for a number out of range
    run = request.run
    variants.refuse_missing(request.candidate, run.settings)
    facts = facts_of(run, request.candidate)
    check([*request.candidate, *run.settings], facts, watcher)
    for arm in ARMS:
        refuse_impossible(run, request.arm(arm), facts)
    objective.refuse_impossible(run)
    lanes.refuse_impossible(run, [*request.candidate, *run.settings])
    reason = in_process.why_not(request)
    if request.in_process == "only" and reason:
        raise UsageError(
            f"Baseline and candidate cannot be compared within one run: {reason}.",
            hint="Leave --in-process out: fresh processes compare them.",
        )
    folder = new_run_folder(run.base)
    wary = [*cautions.cache_cautions(request), *cautions.launch_cautions(request, facts)]
    for caution in wary:
        watcher.warn(caution)
    comparison = Comparison(
        id=folder.name,
        run=run.recorded,
        candidate_settings=request.candidate,
        margin=request.margin,
        max_pairs=request.max_pairs,
        precision=request.precision,
        within=request.in_process != "never" and not reason,
        warnings=wary,
        facts={**facts, **probe.environment.facts(run.env)},
    )
    origin.mark(folder, comparison)
    document.write(folder / FILE, comparison)
    return _sit(request, folder, watcher, runner)


def resume(folder: Path, now: RunSpec, watcher: Watcher, *, budget_s: float | None = None) -> Comparison:
    """Continue the comparison in `folder` after its last finished pair; a finished comparison is only read.

    Args:
        now: request whose `env`, `base` and `lock` replace the recorded fields. Command and settings of `now` are used
            if the folder lacks its own or comes from elsewhere. All else stays as recorded.
        budget_s: seconds for the rest of the comparison.

    Raises:
        RecordError: `folder` has no readable comparison.
        UsageError: a secret is missing (records never contain secrets), or the folder comes from elsewhere.
        CannotRunHere: the comparison was begun on another machine, or the command's folder does not exist.
        Interrupted: as for `compare`.
    """
    comparison = document.read(folder / FILE, Comparison)
    if _is_over(comparison):
        return comparison
    origin.refuse_foreign(folder, comparison, now)
    comparison = resumption.completed(comparison, now, *comparison.candidate_settings)
    request = CompareRequest(
        run=comparison.run.resumed(now),
        candidate=comparison.candidate_settings,
        max_pairs=comparison.max_pairs,
        margin=comparison.margin,
        budget_s=budget_s,
        precision=comparison.precision,
        in_process="auto" if comparison.within else "never",
    )
    objective.refuse_impossible(request.run)
    refuse_another_machine("comparison", comparison.facts, facts_of(request.run))
    return _sit(request, folder, watcher)


def so_far(folder: Path) -> SequentialResult:
    """Report what the pairs or blocks of an interrupted comparison show so far.

    Raises RecordError: `folder` contains no comparison.
    """
    return judge_comparison(document.read(folder / FILE, Comparison))


def _is_over(comparison: Comparison) -> bool:
    return comparison.verdict is not None or comparison.failed is not None


def _sit(request: CompareRequest, folder: Path, watcher: Watcher, runner: TaskRunner | None = None) -> Comparison:
    try:
        with machine_lock(request.run, watcher):
            # Read it only after waiting for the lock: another dynotune may have continued it meanwhile.
            journal = Journal(document.read(folder / FILE, Comparison), folder / FILE)
            return _Session(request, folder, journal, watcher, runner).run()
    except KeyboardInterrupt as stopped:
        raise Interrupted(folder) from stopped


class _Session:
    """One attempt at a comparison. All data that outlive the attempt are in the journal's document."""

    def __init__(
        self,
        request: CompareRequest,
        folder: Path,
        journal: Journal[Comparison],
        watcher: Watcher,
        runner: TaskRunner | None,
    ) -> None:
        self._request, self._folder, self._journal = request, folder, journal
        self._watcher, self._runner = watcher, runner
        self._began_s = time.monotonic()
        self._outcomes: list[Outcome] = []
        self._first_steps: dict[ArmName, readiness.FirstStep] = {}
        self._lanes, self._side, self._notes = list[lanes.Lane](), lane_order.SideBySide(), lanes.Notes(watcher)
        voided = self._comparison.voided
        made = [*self._comparison.pairs, *(one.values for one in voided if one.values is not None)]
        num = len(self._comparison.pairs) + len(voided)
        self._numbers = lane_order.numbers(num, (pair.baseline_run for pair in made))

    @property
    def _comparison(self) -> Comparison:
        return self._journal.document

    def run(self) -> Comparison:
        if _is_over(self._comparison):
            return self._comparison
        try:
            self._lanes = lanes.wanted(self._request.run, self._notes)
            if self._comparison.within and self._within():
                return self._comparison
            if self._runner is not None and self._runner.live is not None:
                self._runner.end()
            self._pairs(self._pilots())
        except UsageError as error:
            # The time is too short for fresh pairs; blocks may have an answer already.
            if self._comparison.blocks is None:
                raise
            self._journal.update(verdict="undecided", reason=error.message, speedup=None, ci=None)
            self._journal.keep(launched.stated(self._comparison))
        except _ArmFailed as failed:
            self._summarise(failed=failed.arm, num_pairs=len(self._comparison.pairs))
        except DynotuneError as error:
            if self._comparison.pairs:
                error.hint += f" The finished pairs are kept; dynotune compare --resume {self._folder} goes on."
            raise
        return self._comparison

    def _within(self) -> bool:
        """Compare within one live run; return whether that is the answer. Blocks of an interrupted run are repeated."""
        self._journal.update(pairs=[])
        switched = " ".join(map(str, self._request.candidate))
        self._watcher.say(f"{switched} can be switched while the command runs: one run compares it, in blocks.")
        found, reason = in_process.compare_within(
            self._request, self._journal, self._folder, self._watcher, self._runner
        )
        if not reason and self._are_pairs_due(found):
            self._state_by_pairs(found)
            return False
        if not reason:
            self._journal.keep(launched.proved(found))
            return True
        left_s = self._left_s()
        if self._request.in_process == "only" or (left_s is not None and left_s < switching.LEAST_S):
            self._journal.keep(found)
            reason += ". --in-process never, a larger --budget or a quieter machine may decide."
            self._journal.update(verdict="undecided", reason=f"Within one run they could not be compared: {reason}")
            return True
        self._watcher.say(f"One run could not compare baseline and candidate: {reason}. Fresh processes compare them.")
        self._journal.update(pairs=[], within=False)
        return False

    def _are_pairs_due(self, found: Comparison) -> bool:
        """Tell whether fresh pairs state the speed-up that the blocks found; two pairs and two pilots have to fit."""
        left_s = self._left_s()
        states_speedup = found.verdict in ("faster", "slower") or found.only_chooses
        if self._request.in_process == "only" or not states_speedup:
            return False
        start_s = found.baseline.time_to_first_step_s or 0.0
        return left_s is None or left_s >= NUM_STATING_RUNS * (start_s + MIN_WINDOW_S)

    def _state_by_pairs(self, found: Comparison) -> None:
        seen = words.so_far(found.speedup, found.ci)
        self._watcher.say(f"Within one process: {seen}. Fresh pairs state what a launch gains.")
        self._journal.keep(
            msgspec.structs.replace(
                found,
                verdict=None,
                pairs=[],
                within=False,
                blocks=launched.blocks_answer(found),
                seen=launched.spread(),
                max_pairs=min(found.max_pairs, STATING_PAIRS),
            )
        )

    # Pilots

    def _pilots(self) -> WindowPlan:
        said = cautions.say_where(self._request.run, self._folder / "pilot", self._watcher)
        outcomes = [self._pilot(arm, f"pilot-{arm}") for arm in ARMS]
        run, limit = self._request.run, time_limit.limit_s(self._request.run, None)

        def launch(lane: lanes.Lane) -> Outcome:
            return self._launch("baseline", f"pilot-lane-{lane.number}", limit, None, lane)

        self._lanes = lane_speed.alike(run, self._lanes, outcomes[0], self._side, launch, self._notes)
        self._journal.update(lane_notes=self._notes.said)
        if self._comparison.run_s is not None:
            # On resuming, the recorded plan stays in force, whatever these pilots show. Resuming adds no look.
            return plan_window(self._request.run, outcomes)
        window, most = self._plan(outcomes)
        max_pairs = min(most, self._comparison.max_pairs)
        if most < self._comparison.max_pairs:
            self._watcher.say(f"The budget is enough for {most} of {self._comparison.max_pairs} pairs.")
        wary = cautions.window_cautions(self._request.run, window)
        wary += cautions.unit_cautions(self._request, summary.unit(outcomes))
        wary += objective.cautions(self._request.run.objective, window.num_steps)
        wary += cautions.sandbox_warnings(outcomes[0])
        for caution in wary:
            if caution not in said:
                self._watcher.warn(caution)
        self._journal.update(
            run=msgspec.structs.replace(
                self._comparison.run, warmup_steps=window.warmup_steps or None, window_steps=window.num_steps or None
            ),
            run_s=window.run_s,
            max_pairs=max_pairs,
            unit=summary.unit(outcomes),
            step=summary.step(outcomes[0]),
            warnings=[*self._comparison.warnings, *wary],
        )
        self._watcher.say(summary.cost(self._comparison, window, len(self._lanes)))
        return window

    def _pilot(self, arm: ArmName, name: str) -> Outcome:
        self._watcher.running(f"pilot: {arm}")
        outcome = self._launch(arm, name, time_limit.limit_s(self._request.run, None), window=None)
        self._first_steps[arm] = readiness.FirstStep(outcome)
        return outcome

    def _plan(self, outcomes: list[Outcome]) -> tuple[WindowPlan, int]:
        """Plan the window and the number of pairs. If only the pilots' cold caches prevent a plan, repeat the pilots.

        Raises CannotRunHere, UsageError: as for `plan`.
        """
        try:
            return windows.for_pairs(self._request, outcomes, self._left_s(), num_lanes=len(self._lanes))
        except UsageError:
            baseline, candidate = outcomes
            at_best = [
                compilation.found_warm(baseline, candidate, is_first=True),
                compilation.found_warm(candidate, baseline, is_first=False),
            ]
            if not self._would_do_warm(outcomes, at_best):
                raise
        self._watcher.say("The budget may be enough for runs with warm caches: the pilots run once more.")
        warm = [
            outcome if found is None else self._pilot(arm, f"pilot-{arm}-warm")
            for arm, outcome, found in zip(ARMS, outcomes, at_best, strict=True)
        ]
        return windows.for_pairs(self._request, warm, self._left_s(), cold_kept=1.0, num_lanes=len(self._lanes))

    def _would_do_warm(self, outcomes: list[Outcome], at_best: list[Outcome | None]) -> bool:
        """Tell whether the budget may be enough with warm caches, counting the pilots' second runs."""
        left_s = self._left_s()
        if left_s is None or self._request.run.caches == "cold" or at_best == [None, None]:
            return False
        once_more_s = sum(
            (outcome.run.wall_s or 0.0) - compilation.compiled_s(outcome) - (found.launched_s - outcome.launched_s)
            for outcome, found in zip(outcomes, at_best, strict=True)
            if found is not None
        )
        warm = [found or outcome for outcome, found in zip(outcomes, at_best, strict=True)]
        try:
            windows.for_pairs(self._request, warm, left_s - once_more_s, cold_kept=0.0, num_lanes=len(self._lanes))
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
        folder = fresh_folder(self._folder / name)
        try:
            outcome = run_settings(
                lane.of(self._request.run),
                self._request.arm(arm),
                label=f"a run of the {arm}",
                cache_folder=lane.cache_folder(self._folder / "caches" / arm, self._request.run),
                folder=folder,
                purpose="pilot" if window is None else "measured",
                facts=self._comparison.facts,
                limit_s=limit,
                warmup_steps=(window.warmup_steps or None) if window else None,
                window_steps=(window.num_steps or None) if window else None,
                whole_epochs=window.whole_epochs if window else 0,
                enough=self._first_steps[arm]
                if window
                else readiness.UntilStep(readiness.Steadiness(self._request.run), self._watcher.say),
                go_on=self._side.go_on,
            )
        except CommandFailed as error:
            raise _ArmFailed(FailedArm(arm, error.command_exit_code, list(error.last_lines), str(folder))) from error
        refuse_rejected(outcome, f"in the {arm}")
        with self._journal.lock:
            self._outcomes.append(outcome.without_steps)
            found = self._comparison
            # If both set a knob, the candidate's value is reported.
            others = {setting.knob for setting in found.candidate_settings} if arm == "baseline" else ()
            readback = summary.merged_readback(found.readback, outcome, others)
            self._journal.update(readback=readback, set_by=summary.changes_by_program(found, outcome))
        return outcome

    # Pairs

    def _pairs(self, window: WindowPlan) -> None:
        order = orders(self._comparison.max_pairs, self._comparison.run.seed or 0)
        told = ""
        in_order = lane_order.InOrder(
            self._side, self._lanes, lambda lane, pair: self._pair(lane, next(self._numbers), order[pair], window, told)
        )
        with self._side:
            while not (judgement := self._judge()).finished:
                left_s = self._left_s()
                told = words.so_far(judgement.speedup, judgement.ci, left_s)
                most = math.inf if left_s is None else left_s // (2 * window.run_s)
                pair = in_order.take(len(self._comparison.pairs), len(order), most)
                if pair is None:
                    judgement = self._judge(ended=True)
                    break
                self._take(pair)
        self._journal.keep(launched.stated(judgement.conclude(self._comparison)))
        if not self._comparison.within:
            self._summarise()

    def _pair(self, lane: lanes.Lane, number: int, first: ArmName, window: WindowPlan, so_far: str) -> Pair | Voided:
        limit = time_limit.limit_s(self._request.run, window.run_s)
        values: dict[ArmName, float] = {}
        runs: dict[ArmName, Outcome] = {}
        for arm in ARMS if first == ARMS[0] else ARMS[::-1]:
            with self._journal.lock:
                self._watcher.running_arm(arm, pair=number, max_pairs=self._comparison.max_pairs, so_far=so_far)
            runs[arm] = self._launch(arm, f"{number:03d}-{arm}", limit, window, lane)
            values[arm] = objective.value(runs[arm], self._request.run.objective, self._comparison.unit)
        ids = runs["baseline"].run.id, runs["candidate"].run.id
        pair = Pair(first, values["baseline"], values["candidate"], *ids, lane.number)
        reasons = objective.void_reasons(self._request.run.objective, runs)
        return Voided(number, "; ".join(reasons), pair) if reasons else pair

    def _take(self, pair: Pair | Voided) -> None:
        done = self._journal.add(pair)
        if isinstance(pair, Voided):
            self._watcher.voided(pair)
        else:
            self._watcher.finished(
                pair, number=len(done.pairs), max_pairs=done.max_pairs, unit=done.unit, objective=done.run.objective
            )

    def _judge(self, *, ended: bool = False) -> SequentialResult:
        # Pairs take long, so without a budget they end with the verdict unless the user asked for more.
        precision = math.inf if self._request.budget_s is None else PRECISION
        return judge_comparison(self._comparison, precision=precision, ended=ended)

    def _summarise(self, **answer: object) -> None:
        runs: dict[ArmName, list[summary.MeasuredRun]] = {arm: [] for arm in ARMS}
        warnings = [*self._comparison.warnings, *cautions.warnings(self._outcomes)]
        warnings += objective.notes(self._request.run.objective, self._outcomes)
        pairs = self._comparison.pairs
        values = [pair.baseline_s for pair in pairs], [pair.candidate_s for pair in pairs]
        for pair in pairs:
            for arm, run in zip(ARMS, (pair.baseline_run, pair.candidate_run), strict=True):
                # Read runs from disk, because some may come from an earlier attempt.
                try:
                    runs[arm].append(summary.read_run(self._folder.parent / run))
                except RecordError as error:
                    warnings.append(f"left out of what is shown beside the answer: {error.message}")
        self._journal.update(
            **answer,
            baseline=summary.arm_summary(runs["baseline"], self._comparison.unit, values[0]),
            candidate=summary.arm_summary(runs["candidate"], self._comparison.unit, values[1]),
            warnings=warnings,
        )

    # Time and disk

    def _left_s(self) -> float | None:
        if self._request.budget_s is None:
            return None
        return self._request.budget_s - (time.monotonic() - self._began_s)


class _ArmFailed(DynotuneError):
    """Failure of the command in the baseline or the candidate, which is the answer of the comparison."""

    def __init__(self, arm: FailedArm) -> None:
        last = f": {arm.last_lines[-1]}" if arm.last_lines else ""
        super().__init__(f"the {arm.arm} failed {words.ending(arm.exit_code)}, see {arm.run}{last}")
        self.arm = arm
