"""Run a study from beginning to end: diagnosis, candidates, search, recipe, all stored on disk."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dynotune import fleet, probe
from dynotune.diagnose import LiveDiagnosis, conclude, gather
from dynotune.launch import new_run_folder
from dynotune.launch.process import origin
from dynotune.measure.bench import Interrupted, preflight
from dynotune.measure.comparison import MeasuredRun, objective, pays_off, read_run
from dynotune.measure.live import (
    SYNCHRONISED,
    TaskRunner,
    Watcher,
    facts_of,
    lanes,
    machine_lock,
    refuse_another_machine,
    shared_facts,
)
from dynotune.recipes import checking, recipe_of
from dynotune.report.page import html
from dynotune.report.study import long_time, spent_s
from dynotune.schema import document, errors, resumption
from dynotune.schema import recipe as recipe_file
from dynotune.schema.arm import BASELINE, arm
from dynotune.schema.attribution import Attribution
from dynotune.schema.comparison import MARGIN
from dynotune.schema.diagnosis import Diagnosis, UpperBound
from dynotune.schema.errors import CannotRunHere, DynotuneError, RecordError, StatisticsError, UsageError
from dynotune.schema.facts import NOT_ASKED, Unknown
from dynotune.schema.knob import WITHOUT_ROUNDING
from dynotune.schema.run import LIMIT_S, RunSpec
from dynotune.schema.setting import Setting, over
from dynotune.schema.study import BaseRecipe, BreakEven, Study
from dynotune.search import asked, sharing
from dynotune.search.bench import FIRST_LAUNCH, Hosts
from dynotune.search.candidates import Machine, offered, refusal, refuse_unfit
from dynotune.search.earlier import DIAGNOSIS, plain_pilot
from dynotune.search.outcomes import FAILURES
from dynotune.search.real_bench import RealBench
from dynotune.search.study import search
from dynotune.search.study_journal import EndedBy, StudyJournal
from dynotune.search.words import nothing_to_try, to_try
from dynotune.text import words as formats

if TYPE_CHECKING:
    from dynotune.fleet import Store

FILE, RECIPE, REPORT = "study.json", "recipe.toml", "report.html"
DIAGNOSIS_SHARE = 1 / 3
"""Share of the budget that the diagnosis may take, apart from a start that takes longer by itself."""
MOST_OF_DIAGNOSIS = 0.1
"""Share of the budget: after a longer diagnosis, the loader is not isolated."""
LEAST_WAIT = 0.05
"""Share of a step: if the wait for the loader is shorter, ceilings bound nothing important."""
BUDGET_S = 180.0
"""Budget of a study in seconds, unless the user gives another."""
UNKNOWN_RUN_S = 60.0
"""Seconds of a run as long as nothing is known of the command."""


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a study.

    Args:
        run: how the command is run, and the objective; with the settings of `base_recipe`.
        allow, exact, extra, exclude, values: the options on the command line.
    """

    run: RunSpec
    margin: float = MARGIN
    allow: list[str] = []
    exact: bool = False
    extra: list[str] = []
    exclude: list[str] = []
    values: list[str] = []
    base_recipe: BaseRecipe | None = None


def tune(
    request: TuneRequest,
    budget_s: float,
    watcher: Watcher,
    *,
    store: Store | None = None,
    name: str = "",
    ray: str = "",
) -> tuple[Path, Study]:
    """Study the command. All results are on disk after every run.

    Args:
        store: a database in which workers share the study, under `name`; without one, the command gives the
            name.
        ray: address of the Ray cluster whose other nodes also run blocks and pairs.

    Returns:
        The study's folder, and the study.

    Raises:
        UsageError: the request does not exist or does not fit together; nothing has run.
        CommandFailed, CannotRunHere: the command as it is fails, or the machine.
        Interrupted: `resume` goes on.
    """
    words, given = _asked(request), request.run
    if request.exact:
        asked.refuse_rounding(words)
    run = replace(given, settings=[*given.settings, *asked.first_values(words, given.settings)])
    facts = facts_of(run)
    wary = preflight(run, {"baseline": run.settings}, facts, asked=words.settings)
    if request.base_recipe is not None:
        first, file = request.base_recipe.recipe, Path(request.base_recipe.file).name
        for text in (*map(str, checking.differences(first, facts, run.command)), *checking.unproved(first)):
            watcher.warn(formats.plain(f"{file}: {text}."))
    wary += refuse_unfit(words, Machine(facts=facts, env=run.env, refused=refusal(run, facts)))
    for caution in wary:
        watcher.warn(caution)
    if (store is not None) + bool(ray) + (run.lanes != 1) > 1:
        raise UsageError("--lanes, --ray and --storage do not go together.", hint="Choose one of them.")
    if store is not None or ray:
        facts = shared_facts(run)
    folder = new_run_folder(run.base)
    study = Study(
        id=folder.name,
        name=name,
        run=run.recorded,
        budget_s=budget_s,
        allow=sorted(words.allowed - set(WITHOUT_ROUNDING)),
        extra=request.extra,
        exclude=request.exclude,
        values=request.values,
        margin=request.margin,
        facts={**facts, **probe.environment.facts(run.env)},
        base_recipe=request.base_recipe,
    )
    origin.mark(folder, study)
    document.write(folder / FILE, study)
    watcher.begun(folder)
    if ray:
        hosts = fleet.RayHosts(ray, sharing.NodeWorker, run, words.settings, study, watcher.say)
        with contextlib.closing(hosts):
            return folder, _sit(run, folder, study, watcher, hosts)
    if store is None:
        return folder, _sit(run, folder, study, watcher)
    worker = sharing.Worker(run, words.settings, folder, watcher)
    held = replace(run, lock=False)
    found = sharing.take_part(store, study, worker, lambda known: _sit(held, folder, known, watcher, store))
    document.write(folder / FILE, found)
    if not (folder / REPORT).exists():
        with errors.from_elsewhere(f"The database's record of {found.name}"):
            write_results(folder, found, watcher)
    return folder, found


def resume(folder: Path, now: RunSpec, budget_s: float | None, watcher: Watcher) -> Study:
    """Continue the study in `folder`; a finished study only if it may prove more in a larger budget.

    Args:
        now: its `env`, `base` and `lock` are used, and its command and settings if the folder lacks them or
            comes from elsewhere; all else is as before.
        budget_s: seconds for all attempts together; replaces the earlier budget.

    Raises:
        RecordError: `folder` has no study, or an unreadable one.
        UsageError: a secret is missing, since records contain none; or the folder is from elsewhere.
        CannotRunHere: the study was begun on another machine, or the command's folder is gone.
        Interrupted: as `tune`.
    """
    study = document.read(folder / FILE, Study)
    if study.wants_time and budget_s is not None and budget_s > study.budget_s:
        study = reopened(study)
    if study.finished:
        if not (folder / REPORT).exists():
            write_results(folder, study, watcher)
        return study
    watcher.begun(folder)
    origin.refuse_foreign(folder, study, now)
    study = resumption.completed(study, now, *(one.setting for one in study.candidates))
    run = study.run.resumed(now)
    objective.refuse_impossible(run)
    refuse_another_machine(
        "study", study.facts, (shared_facts if "code.sha256" in study.facts else facts_of)(run)
    )
    return _sit(run, folder, replace(study, budget_s=budget_s or study.budget_s), watcher)


def reopened(study: Study) -> Study:
    """Return a finished study as before its decisions, which the search makes again; all measurements
    stay."""
    stays = {id_: outcome for id_, outcome in study.outcomes.items() if outcome.kind in FAILURES}
    return replace(
        study,
        trials=[trial for trial in study.trials if trial.ended != "unchecked"],
        outcomes=stays,
        stage="know",
        selected=None,
        recipe=None,
        confirmed=None,
        parts=None,
        break_even=None,
        diagnosis_with_recipe=Unknown("not yet made"),
        verdict="",
        finished=False,
        wants_time=False,
        settles_in_s=None,
    )


def _asked(by: TuneRequest | Study) -> asked.Asked:
    return asked.parse(allow=by.allow, exact=by.exact, extra=by.extra, exclude=by.exclude, values=by.values)


def _sit(run: RunSpec, folder: Path, study: Study, watcher: Watcher, hosts: Hosts | None = None) -> Study:
    attempt = _Attempt(run, folder, study, watcher, hosts)
    try:
        attempt.work()
    except KeyboardInterrupt as stopped:
        attempt.end("user")
        raise Interrupted(folder) from stopped
    except DynotuneError as error:
        attempt.end("error")
        if attempt.study.trials:
            error.hint += f" All measurements are kept; dynotune tune --resume {folder} goes on."
        raise
    return attempt.study


class _Attempt:
    def __init__(
        self, run: RunSpec, folder: Path, study: Study, watcher: Watcher, hosts: Hosts | None
    ) -> None:
        self._run, self._folder, self._watcher, self._hosts = run, folder, watcher, hosts
        self._journal = StudyJournal(study, folder / FILE, hosts)
        self._earlier_s, self._began_s = spent_s(study), time.monotonic()
        self._diagnosis_s = 0.0
        self._lanes: list[lanes.Lane] = []

    @property
    def study(self) -> Study:
        return self._journal.document

    def work(self) -> None:
        """Work from the study's current state to its end."""
        waits_from_s = time.monotonic()
        with machine_lock(self._run, self._watcher):
            # The time spent waiting for other programs is not the study's.
            waited_s = time.monotonic() - waits_from_s
            self._began_s += waited_s
            self._journal.waited(waited_s)
            notes = lanes.Notes(self._watcher)
            self._lanes = lanes.wanted(self._run, notes)
            if notes.said != self.study.lane_notes:
                self._journal.update(lane_notes=notes.said)
            if isinstance(self.study.diagnosis, Unknown):
                run, share_s = (
                    self._diagnosed_run(self.study.run.settings),
                    DIAGNOSIS_SHARE * self.study.budget_s,
                )
                with LiveDiagnosis(run, self._watcher, share_s=share_s, counts_start=True) as live:
                    self._diagnose(live)
                    self._search(live.runner)
                    live.end()
            else:
                self._search(None)
            self._journal.update(break_even=_paid_off(self._folder, self.study))
            self._diagnose_again()
        self.end("done")
        write_results(self._folder, self.study, self._watcher)

    def end(self, by: EndedBy) -> None:
        self._journal.end(by)

    # Diagnosis

    def _diagnose(self, live: LiveDiagnosis) -> None:
        budget_s = self.study.budget_s
        self._watcher.say(f"Budget: {long_time(budget_s)}. First: diagnosing the bottleneck.")
        self._watcher.running("the command, as it is", left_s=budget_s - self._elapsed_s())
        began_s = time.monotonic()
        try:
            observation, file = live.observe()
        except CannotRunHere as error:
            if time.monotonic() - began_s >= budget_s:
                error.hint = (
                    f"A --budget of {long_time(budget_s)} is too short for the diagnosis alone: give it more."
                )
            raise
        bounds: list[UpperBound] | Unknown = NOT_ASKED
        is_cheap = time.monotonic() - began_s <= MOST_OF_DIAGNOSIS * budget_s
        found = observation.attribution
        if is_cheap and isinstance(found, Attribution) and found.shares.input >= LEAST_WAIT:
            bounds = live.isolate_loader()
        diagnosis = conclude(observation, upper_bounds=bounds)
        self._diagnosis_s = time.monotonic() - began_s
        self._watcher.say(diagnosis.verdict)
        tried, left_out = offered(self._run, self.study, _asked(self.study), observation, diagnosis)
        pilot = None
        if self.study.run.objective not in SYNCHRONISED:
            # The steps of the plain run were not followed by waits for the device.
            pilot = plain_pilot(
                self._folder, file.parent, observation.processes, self._began_s - self._earlier_s
            )
        trials = [] if pilot is None else [pilot]
        self._journal.update(diagnosis=diagnosis, candidates=tried, not_offered=left_out, trials=trials)

    def _diagnosed_run(self, settings: list[Setting]) -> RunSpec:
        return replace(
            self._run,
            base=self._folder / DIAGNOSIS,
            settings=settings,
            window_steps=None,
            lock=False,  # the study has already locked the machine
            timeout_s=min(self._run.timeout_s or LIMIT_S, self.study.budget_s),
        )

    def _diagnose_again(self) -> None:
        """Diagnose with the recipe's settings, if the time allows: the bottleneck may be another one now."""
        if not self.study.recipe:
            return
        found: Diagnosis | Unknown = Unknown("the budget was too small for a diagnosis with the recipe")
        rest_s, even = self.study.budget_s - self._elapsed_s(), self.study.break_even
        later_s = 0.0 if even is None else max(0.0, even.start_s - even.baseline_start_s)
        if (self._diagnosis_s or 4 * _guess_s(self.study)) + later_s <= rest_s:
            try:
                run = self._diagnosed_run(over(self.study.run.settings, self.study.recipe))
                # The command may start later with the recipe than the pairs showed, which are warm.
                run = replace(run, timeout_s=min(run.timeout_s or rest_s, rest_s))
                found = conclude(gather(run, self._watcher)[0])
            except DynotuneError as error:
                found = Unknown(error.message)
        self._journal.update(diagnosis_with_recipe=found)

    # Search

    def _search(self, runner: TaskRunner | None) -> None:
        """Search; `runner` is of the live run that the diagnosis used."""
        if not self.study.candidates:
            self._journal.update(verdict=nothing_to_try(self.study), finished=True)
            return
        self._watcher.say(to_try(self.study))
        bench = RealBench(
            self._run,
            self._folder,
            self._journal,
            self._watcher,
            elapsed_s=self._elapsed_s(),
            guess_s=_guess_s(self.study),
            runner=runner,
            wanted=self._lanes,
            hosts=self._hosts,
        )
        with contextlib.closing(bench):
            found = search(bench, self._watcher)
        warnings = [*found.warnings, *bench.cautions(), *void_caution(found)]
        self._journal.update(warnings=list(dict.fromkeys(warnings)))

    def _elapsed_s(self) -> float:
        return self._earlier_s + time.monotonic() - self._began_s


def void_caution(study: Study) -> list[str]:
    """Warn how many runs of all attempts did not count, and why the last of them did not."""
    voids = [trial.void for trial in study.trials if trial.void]
    return (
        [f"{len(voids)} of {len(study.trials)} runs did not count, the last one as {voids[-1]}."]
        if voids
        else []
    )


def _guess_s(study: Study) -> float:
    """Guess a run's seconds before any is measured: twice the time to the first step, and a window."""
    timing = Unknown("") if isinstance(study.diagnosis, Unknown) else study.diagnosis.steps
    if isinstance(timing, Unknown) or timing.time_to_first_step_s is None:
        return UNKNOWN_RUN_S
    return FIRST_LAUNCH * timing.time_to_first_step_s + timing.window_s


# Results of a finished study


def write_results(folder: Path, study: Study, watcher: Watcher) -> None:
    """Write the recipe, if anything was proved, and the report, beside the study."""
    proved = recipe_of(study) if study.recipe else None
    if proved is not None:
        recipe_file.write(folder / RECIPE, proved)
    try:
        html.write(
            folder / REPORT,
            study,
            recipe=recipe_file.text(proved) if proved is not None else "",
            own_name=True,
        )
    except CannotRunHere as error:
        watcher.warn(f"The report could not be written: {error.message} {error.hint}")


def _paid_off(folder: Path, study: Study) -> BreakEven | None:
    """Return the steps after which the recipe is ahead, by its confirming runs; None if these do not tell."""
    if not study.recipe or study.run.objective != "throughput":
        return None
    runs: dict[str, list[MeasuredRun]] = {arm(study.recipe).key: [], BASELINE.key: []}
    for trial in study.trials:
        if trial.arm in runs and (trial.phase, trial.ended, trial.void) == ("confirm", "measured", ""):
            with contextlib.suppress(RecordError):  # the folder may have been deleted since
                runs[trial.arm].append(read_run(folder / trial.run))
    with contextlib.suppress(StatisticsError):
        return pays_off(*runs.values())
    return None
