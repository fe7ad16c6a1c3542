"""A study from its diagnosis to its recipe, with runs and searches that are made up."""

from __future__ import annotations

import html
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from dynotune.measure.bench.protocol import Interrupted
from dynotune.report.study.header import spent_s
from dynotune.schema import document
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis, Finding
from dynotune.schema.errors import CannotRunHere, DynotuneError, RecordError, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Observation
from dynotune.schema.recipe import SCHEMA, Header, Recipe
from dynotune.schema.recipe import read as read_recipe
from dynotune.schema.setting import Setting
from dynotune.schema.study import Attempt, BaseRecipe, CandidateOutcome, Study, Trial
from dynotune.search import tune as studies
from dynotune.search.tune import TuneRequest

from ..fakes import Watcher, of_run

FACTS = {
    "host.cpu": "a processor",
    "host.num_cores": 8,
    "gpu.count": 0,
    "torch.cuda": None,
    "torch.version": "2.13.0",
}
FOUR = Setting("loader.num_workers", 4)


@pytest.fixture
def world(monkeypatch):
    """What a study asks of others. `search`: what the search makes of a study, by a function of both."""
    world = SimpleNamespace(diagnosed=[], findings=[finding(FOUR)], search=lambda study, save: study)

    def gather(run, watcher):
        world.diagnosed.append(run.settings)
        return Observation(command=run.command), run.base / "observation.json"

    class LiveDiagnosis:
        """Diagnoses as `gather` does, which tests may replace."""

        runner = None

        def __init__(self, run, watcher, *, share_s, counts_start):
            self.run, self.watcher = run, watcher

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def observe(self):
            return studies.gather(self.run, self.watcher)

        def end(self):
            pass

    def conclude(observation, **beside):
        return Diagnosis(
            command=["train"], verdict="It waits.", bottleneck="input", shares=Unknown("-"), unknown=[],
            findings=world.findings, steps=Unknown("-"),
        )  # fmt: skip

    def searched(bench, watcher):
        return bench.journal.keep(world.search(bench.journal.document, bench.journal.keep))

    monkeypatch.setattr(studies, "gather", gather)
    monkeypatch.setattr(studies, "LiveDiagnosis", LiveDiagnosis)
    monkeypatch.setattr(studies, "conclude", conclude)
    monkeypatch.setattr(studies, "facts_of", lambda run: dict(FACTS))
    monkeypatch.setattr(studies, "search", searched)
    return world


def finding(*settings):
    return Finding(id="loader-bound", severity="high", claim="", share=0.5, candidates=list(settings))


def request_in(tmp_path, **words):
    return of_run(TuneRequest, cwd=tmp_path, base=tmp_path / "runs", seed=0, lock=False, **words)


def begin(tmp_path, budget_s=600.0, **words):
    return studies.tune(request_in(tmp_path, **words), budget_s, Watcher())


def go_on(tmp_path, budget_s=None):
    (folder,) = (tmp_path / "runs").iterdir()
    return studies.resume(folder, request_in(tmp_path).run, budget_s, Watcher())


def on_disk(tmp_path):
    (folder,) = (tmp_path / "runs").iterdir()
    return document.read(folder / studies.FILE, Study)


TRIAL = Trial(arm="", phase="pilot", block=0, ended="measured", began_s=30.0, wall_s=5.0)


def proves(study, save):
    confirmed = Comparison(
        id=study.id, run=study.run, candidate_settings=[FOUR], verdict="faster", speedup=1.5, ci=(1.4, 1.6),
        num_pairs=4,
    )  # fmt: skip
    return replace(study, recipe=[FOUR], confirmed=confirmed, verdict="Proved.", finished=True)


def test_a_study_ends_with_a_recipe_a_report_and_a_diagnosis_with_it(world, tmp_path):
    world.search = proves
    folder, study = begin(tmp_path)
    assert study.finished and study == on_disk(tmp_path)
    assert read_recipe(folder / studies.RECIPE).settings == {"loader.num_workers": 4}
    page = html.unescape((folder / studies.REPORT).read_text())
    assert (folder / studies.RECIPE).read_text().strip() in page
    assert world.diagnosed == [[], [FOUR]]
    assert isinstance(study.diagnosis_with_recipe, Diagnosis)
    assert [sitting.ended_by for sitting in study.attempts] == ["done"]


def test_the_diagnosis_says_what_is_tried(world, tmp_path):
    _, study = begin(tmp_path, extra=["env.A=1"], exclude=["env.B"])
    tried = {candidate.id for candidate in study.candidates}
    assert tried == {"env.A=1", "loader.num_workers=2", "loader.num_workers=4", "loader.num_workers=8"}
    assert (study.extra, study.exclude, study.budget_s) == (["env.A=1"], ["env.B"], 600.0)


def test_a_value_that_is_left_out_stays_so_where_the_study_goes_on(world, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(studies, "gather", stop)
        with pytest.raises(Interrupted):
            begin(tmp_path, exclude=["loader.num_workers=4"])
    study = go_on(tmp_path)
    assert study.exclude == ["loader.num_workers=4"]
    assert {candidate.id for candidate in study.candidates} == {
        "loader.num_workers=2",
        "loader.num_workers=8",
    }
    assert [(row.setting, row.reason) for row in study.not_offered] == [(FOUR, "left out by --exclude")]


def test_tune_ends_and_says_what_would_widen_it_when_nothing_is_to_be_tried(world, tmp_path):
    world.findings = [finding(Setting("matmul.fp32_precision", "high"))]
    world.search = lambda study, save: pytest.fail("there is nothing to search")
    folder, study = begin(tmp_path, exact=True)
    assert (
        study.finished and study.verdict == "Nothing to try: --exact leaves out matmul.fp32_precision=high."
    )
    assert not (folder / studies.RECIPE).exists()
    world.findings = []
    (tmp_path / "again").mkdir()
    assert "--try" in begin(tmp_path / "again")[1].verdict


@pytest.mark.parametrize(
    ("objective", "stands"), [("throughput", True), ("memory", True), ("latency-p99", False)]
)
def test_the_plain_run_stands_for_the_pilot_but_where_each_step_waits_for_the_device(
    world, tmp_path, monkeypatch, objective, stands
):
    monkeypatch.setattr(studies, "plain_pilot", lambda folder, plain, processes, since_s: TRIAL)
    asked = request_in(tmp_path)
    asked = replace(asked, run=replace(asked.run, objective=objective))
    _, study = studies.tune(asked, 600.0, Watcher())
    assert study.trials == ([TRIAL] if stands else [])


@pytest.mark.parametrize("stopped_in", ["diagnosis", "search"])
def test_an_interrupted_study_goes_on_where_it_stood(world, tmp_path, monkeypatch, stopped_in):
    def stop(*_):
        raise KeyboardInterrupt

    def stopped(study, save):
        save(replace(study, trials=[TRIAL]))
        stop()

    with monkeypatch.context() as patch:
        if stopped_in == "diagnosis":
            patch.setattr(studies, "gather", stop)
        world.search = stopped
        with pytest.raises(Interrupted):
            begin(tmp_path)
    kept = on_disk(tmp_path)
    assert [sitting.ended_by for sitting in kept.attempts] == ["user"]
    assert kept.trials == ([TRIAL] if stopped_in == "search" else [])

    world.search = proves
    study = go_on(tmp_path)
    assert study.finished and study.trials == kept.trials
    assert [sitting.ended_by for sitting in study.attempts] == ["user", "done"]
    # With the recipe it was not known what a diagnosis takes, unless it was made in this sitting.
    assert world.diagnosed[0] == []


def test_each_save_of_the_search_is_on_disk(world, tmp_path):
    seen = []

    def search(study, save):
        for number in (1, 2):
            study = replace(study, trials=[TRIAL] * number)
            save(study)
            seen.append(len(on_disk(tmp_path).trials))
        return study

    world.search = search
    begin(tmp_path)
    assert seen == [1, 2]


def test_an_error_keeps_what_was_measured_and_says_how_to_go_on(world, tmp_path):
    def search(study, save):
        save(replace(study, trials=[TRIAL]))
        raise CannotRunHere("The disk is full.", hint="Free some space.")

    world.search = search
    with pytest.raises(CannotRunHere) as raised:
        begin(tmp_path)
    assert raised.value.hint.startswith("Free some space. All measurements are kept; dynotune tune --resume ")
    assert on_disk(tmp_path).attempts[0].ended_by == "error"


def test_a_finished_study_is_only_read(world, tmp_path):
    world.search = proves
    _, study = begin(tmp_path)
    world.search = lambda study, save: pytest.fail("it is over")
    assert go_on(tmp_path, budget_s=9000.0) == study


def test_a_finished_study_goes_on_when_a_larger_budget_may_prove_more(world, tmp_path):
    failed = CandidateOutcome("failed", "The command failed with it.")
    outcomes = {str(FOUR): CandidateOutcome("unproved", "Late."), "env.A=1": failed}
    ended = {"outcomes": outcomes, "finished": True, "wants_time": True, "verdict": "Nothing is proved."}
    world.search = lambda study, save: replace(study, trials=[TRIAL], **ended)
    _, study = begin(tmp_path)
    world.search = lambda study, save: pytest.fail("the budget is the same")
    assert go_on(tmp_path, budget_s=study.budget_s) == study
    again = []
    world.search = lambda study, save: again.append(study) or proves(study, save)
    assert go_on(tmp_path, budget_s=9000.0).recipe == [FOUR]
    (reopened,) = again
    assert reopened.trials == [TRIAL] and reopened.outcomes == {"env.A=1": failed}
    assert not reopened.finished and reopened.stage == "know"


@pytest.mark.parametrize(("exact", "allow"), [(True, []), (False, ["numerics"])])
def test_a_study_goes_on_with_the_effects_that_it_was_begun_with(world, tmp_path, monkeypatch, exact, allow):
    def stop(*_):
        raise KeyboardInterrupt

    rounding = Setting("host.num_threads", 2)
    world.findings = [finding(FOUR, rounding)]
    with monkeypatch.context() as patch:
        patch.setattr(studies, "gather", stop)
        with pytest.raises(Interrupted):
            begin(tmp_path, exact=exact)
    assert on_disk(tmp_path).allow == allow and on_disk(tmp_path).exact == exact
    study = go_on(tmp_path)
    assert (rounding in [candidate.setting for candidate in study.candidates]) != exact


@pytest.mark.parametrize("words", [{"extra": ["cudnn.benchmark"]}, {"values": ["compile.mode=default"]}])
def test_a_setting_that_rounds_is_refused_when_it_is_asked_for_beside_exact(world, tmp_path, words):
    with pytest.raises(UsageError, match="--exact forbids"):
        begin(tmp_path, exact=True, **words)
    with pytest.raises(UsageError, match="contradict"):
        begin(tmp_path, exact=True, allow=["numerics"])


def test_one_that_was_stopped_before_its_results_were_written_gets_them(world, tmp_path):
    world.search = proves
    folder, _ = begin(tmp_path)
    for name in (studies.RECIPE, studies.REPORT):
        (folder / name).unlink()
    go_on(tmp_path)
    assert (folder / studies.RECIPE).exists() and (folder / studies.REPORT).exists()


def test_another_budget_holds_for_all_sittings_together(world, tmp_path):
    def stop(study, save):
        raise KeyboardInterrupt

    world.search = stop
    with pytest.raises(Interrupted):
        begin(tmp_path)
    world.search = lambda study, save: study
    assert go_on(tmp_path, budget_s=1200.0).budget_s == 1200.0


def test_a_study_does_not_go_on_on_another_machine(world, tmp_path, monkeypatch):
    def stop(study, save):
        raise KeyboardInterrupt

    world.search = stop
    with pytest.raises(Interrupted):
        begin(tmp_path)
    monkeypatch.setattr(studies, "facts_of", lambda run: FACTS | {"host.num_cores": 64})
    with pytest.raises(CannotRunHere, match=r"study was begun elsewhere: host\.num_cores"):
        go_on(tmp_path)


def test_tune_refuses_settings_that_cannot_be_tried_before_a_folder_is_made(world, tmp_path):
    for words, error in (
        ({"extra": ["loader.pin_memory=true"]}, CannotRunHere),
        ({"extra": ["alloc.max_split_size_mb"]}, CannotRunHere),
        ({"extra": ["loader.num_workerz=1"]}, UsageError),
        ({"allow": ["all"]}, UsageError),
    ):
        with pytest.raises((error, UsageError)):
            begin(tmp_path, **words)
    assert not (tmp_path / "runs").exists()
    assert world.diagnosed == []


def test_tune_refuses_to_resume_a_folder_without_a_study(world, tmp_path):
    (tmp_path / "runs" / "x").mkdir(parents=True)
    with pytest.raises(RecordError):
        go_on(tmp_path)
    (tmp_path / "runs" / "x" / studies.FILE).write_text('{"schema": "dynotune.comparison/2"}')
    with pytest.raises(RecordError, match=r"not a dynotune\.study/2"):
        go_on(tmp_path)


def test_the_time_of_sittings_counts_and_the_pauses_do_not():
    usual = {"id": "s", "budget_s": 1.0}
    sittings = [
        Attempt("2026-01-01T10:00:00+00:00", "2026-01-01T10:01:00+00:00", "user"),
        Attempt("2026-01-02T10:00:00+00:00", "2026-01-02T10:00:30+00:00", ""),
        Attempt("2026-01-03T10:00:00+00:00"),
    ]
    assert spent_s(of_run(Study, **usual, attempts=sittings)) == 90.0
    assert (
        spent_s(of_run(Study, **usual, attempts=sittings[:1], trials=[replace(TRIAL, began_s=100.0)]))
        == 105.0
    )


def test_a_report_that_cannot_be_written_is_a_warning_and_the_recipe_stays(world, tmp_path):
    world.search = proves
    folder, study = begin(tmp_path)
    (folder / studies.REPORT).unlink()
    (folder / studies.REPORT).mkdir()
    watcher = Watcher()
    studies.write_results(folder, study, watcher)
    assert "could not be written" in watcher.warned[0]
    assert (folder / studies.RECIPE).exists()


def test_runs_that_do_not_count_are_counted_over_all_sittings():
    trials = [replace(TRIAL, void=void) for void in ("", "swap", "", "another process")]
    study = of_run(Study, id="s", budget_s=1.0, trials=trials)
    assert studies.void_caution(study) == ["2 of 4 runs did not count, the last one as another process."]
    assert studies.void_caution(replace(study, trials=trials[:1])) == []


def test_a_budget_that_the_diagnosis_alone_uses_up_is_what_the_error_names(world, tmp_path, monkeypatch):
    def slow(request, watcher):
        raise CannotRunHere("The plain run took longer than 0 s.", hint="Give more with --timeout.")

    monkeypatch.setattr(studies, "gather", slow)
    with pytest.raises(CannotRunHere) as caught:
        begin(tmp_path, budget_s=0.0)
    assert "--budget of 0 s is too short" in caught.value.hint
    with pytest.raises(CannotRunHere) as caught:
        begin(tmp_path, budget_s=600.0)
    assert caught.value.hint == "Give more with --timeout."


# On top of a recipe


TWO, BF16 = Setting("loader.num_workers", 2), Setting("precision.autocast", "bf16")
HIGH = Setting("matmul.fp32_precision", "high")


def test_tune_refuses_settings_to_begin_from_when_they_cannot_be_applied(world, tmp_path):
    on_a_gpu = BaseRecipe("r.toml", Recipe(Header(schema=SCHEMA)))
    with pytest.raises(DynotuneError, match="without CUDA"):
        begin(tmp_path, base_recipe=on_a_gpu, settings=[Setting("alloc.expandable_segments", True)])
    assert not (tmp_path / "runs").exists()


def test_a_recipe_of_another_machine_is_begun_from_with_a_word(world, tmp_path):
    recipe = Recipe(Header(schema=SCHEMA), facts={"num_cores": 64})
    watcher = Watcher()
    request = request_in(tmp_path, base_recipe=BaseRecipe("/a/r.toml", recipe), settings=[FOUR])
    studies.tune(request, 600.0, watcher)
    assert any("r.toml: " in text and "64" in text for text in watcher.warned)
