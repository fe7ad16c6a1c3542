"""`dynotune tune`: what it is asked, what it refuses, and that nothing of the user's is touched."""

from __future__ import annotations

import sys

import pytest
from msgspec.structs import replace

from dynotune import cli
from dynotune.cli import run_options
from dynotune.cli import tune as tuning
from dynotune.measure.bench.protocol import Interrupted
from dynotune.schema import document
from dynotune.schema import recipe as recipes
from dynotune.schema.comparison import TELLING_PAIRS
from dynotune.schema.errors import UsageError
from dynotune.schema.setting import Setting
from dynotune.schema.study import BaseRecipe, Estimate, Study
from dynotune.search import confirmation
from dynotune.search import tune as studies
from dynotune.search.earlier import pilots_on_disk

from ..fakes import of_run
from .conftest import CALLS, MARKED

PYTHON = sys.executable
COMMAND = ("--", "python", "train.py")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What the study is asked, and no study is made. `study` is what comes of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    folder = tmp_path / "runs" / "s"
    folder.mkdir(parents=True)

    class Asked:
        study = of_run(
            Study, id="s", command=["python", "train.py"], budget_s=900.0, verdict="Nothing helps."
        )
        raises: BaseException | None = None

        def tune(self, request, budget_s, watcher, **shared):
            self.request, self.budget_s, self.shared = request, budget_s, shared
            if self.raises:
                raise self.raises
            return folder, self.study

        def resume(self, folder, run, budget_s, watcher):
            self.folder, self.run, self.budget_s = folder, run, budget_s
            return self.study

    asked = Asked()
    asked.kept = folder
    monkeypatch.setattr(studies, "tune", asked.tune)
    monkeypatch.setattr(studies, "resume", asked.resume)
    monkeypatch.setattr(run_options, "runs_folder", lambda run_dir: run_dir or folder.parent)
    return asked


def dynotune(*words) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.main(["tune", *words])
    return end.value.code


def test_the_options_reach_the_study(asked):
    words = (
        "--budget 2h --allow numerics --try cudnn.benchmark --try env.A=1 --exclude compile.mode "
        "--exclude env.B=2"
    )
    words += (
        " --values loader.num_workers=2,4 --objective latency-p99 --margin 0.02 --warmup 5 --steps 50 "
        "--seed 7"
    )
    words += " --step-function a:b --timeout 90s --caches cold --no-sandbox --no-lock"
    assert dynotune(*words.split(), *COMMAND) == 0
    assert asked.budget_s == 7200.0
    request, run = asked.request, asked.request.run
    assert (request.allow, request.extra, request.exclude, request.values) == (
        ["numerics"], ["cudnn.benchmark", "env.A=1"], ["compile.mode", "env.B=2"], ["loader.num_workers=2,4"],
    )  # fmt: skip
    assert (run.objective, request.margin, run.warmup_steps, run.window_steps) == ("latency-p99", 0.02, 5, 50)
    assert (run.seed, run.step_function, run.timeout_s, run.caches) == (7, "a:b", 90.0, "cold")
    assert (run.sandbox, run.lock, run.command) == (False, False, ["python", "train.py"])


def test_tune_takes_three_minutes_when_no_budget_is_given(asked):
    assert dynotune(*COMMAND) == 0
    assert asked.budget_s == 180.0


@pytest.mark.parametrize("words", [(), ("--exact",)])
def test_exact_reaches_the_study(asked, words):
    assert dynotune(*words, *COMMAND) == 0
    assert asked.request.exact == bool(words)


def test_tune_names_the_line_that_goes_on_when_more_time_may_prove_more(asked, capsys):
    asked.study = replace(asked.study, finished=True, wants_time=True, budget_s=180.0)
    assert dynotune(*COMMAND) == 0
    assert "dynotune tune --resume s --budget 15m" in capsys.readouterr().out


def test_a_base_recipe_is_without_its_settings_that_round_when_exact(asked, tmp_path, capsys):
    (tmp_path / "first.toml").write_text(RECIPE + '"cudnn.benchmark" = true\n"loader.num_workers" = 4\n')
    assert dynotune("--exact", "--recipe", "first.toml", *COMMAND) == 0
    assert asked.request.run.settings == [Setting("loader.num_workers", 4)]
    assert "--exact leaves out cudnn.benchmark=true" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no command"),
        (("--budget", "soon", *COMMAND), "--budget soon"),
        (("--budget", "0m", *COMMAND), "--budget 0m"),
        (("--objective", "speed", *COMMAND), "throughput"),
        (("--caches", "hot", *COMMAND), "--caches hot"),
        (("--margin", "1.5", *COMMAND), "--margin 1.5"),
        (("--set", "env.A=1", *COMMAND), "Add --recipe FILE"),
        (("--", "pythn-of-nobody"), "Command not found: pythn-of-nobody"),
        (("--output", "nowhere/recipe.toml", *COMMAND), "no folder"),
        (("--report", ".", *COMMAND), "it is a folder"),
        (("--json", "nowhere/x.json", *COMMAND), "no folder"),
        (("--resume", "s", *COMMAND), "takes no command"),
        (("--resume", "s", "--allow", "numerics", "--seed", "1"), "no --allow and no --seed"),
        (("--resume", "missing"), "There is no study missing"),
    ],
)
def test_tune_refuses_options_that_make_no_sense_before_anything_runs(asked, capsys, words, said):
    assert dynotune(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not hasattr(asked, "request") and not hasattr(asked, "run")


@pytest.mark.parametrize("named", ["id", "folder"])
def test_a_study_is_resumed_by_its_id_or_its_folder_with_another_budget(asked, named):
    document.write(asked.kept / "study.json", asked.study)
    assert dynotune("--resume", "s" if named == "id" else str(asked.kept), "--budget", "30m") == 0
    assert (asked.folder, asked.budget_s, asked.run.command) == (asked.kept, 1800.0, [])


def test_the_gate_says_no_where_nothing_was_proved(asked):
    assert dynotune("--fail-on", "nothing-proved", *COMMAND) == 1
    asked.study = replace(asked.study, recipe=[Setting("env.A", "1")])
    assert dynotune("--fail-on", "nothing-proved", *COMMAND) == 0


def test_an_interrupted_study_says_what_is_known_and_how_to_go_on(asked, capsys, tmp_path):
    folder = tmp_path / "a folder" / "s"
    folder.mkdir(parents=True)
    document.write(folder / studies.FILE, asked.study)
    asked.raises = Interrupted(folder)
    assert dynotune(*COMMAND) == 130
    said = capsys.readouterr().err
    assert f"dynotune tune --resume '{folder}'" in said and "answer" not in said
    one = Estimate(arm="env.A=1", against="", phase="switch", speedup=1.5, ci=(1.4, 1.6), num_blocks=8)
    document.write(folder / studies.FILE, replace(asked.study, estimates=[one]))
    assert dynotune(*COMMAND) == 130
    assert "Not finished" in capsys.readouterr().err


@pytest.fixture
def proved(asked):
    asked.study = replace(asked.study, recipe=[Setting("env.A", "1")])
    (asked.kept / "recipe.toml").write_text("new")
    (asked.kept / "report.html").write_text("<p>report</p>")
    return asked


def test_the_recipe_goes_into_the_current_folder(proved, tmp_path):
    assert dynotune(*COMMAND) == 0
    assert (tmp_path / "recipe.toml").read_text() == "new"


def test_a_recipe_that_was_there_is_left_and_where_the_new_one_is_said(proved, tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text("old")
    assert dynotune(*COMMAND) == 0
    assert (tmp_path / "recipe.toml").read_text() == "old"
    said = capsys.readouterr().err
    assert "is left as it is" in said and str(proved.kept / "recipe.toml") in said


def test_a_recipe_is_replaced_where_asked_and_that_is_said(proved, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text("old")
    assert dynotune("--output", "mine.toml", "--report", "r.html", *COMMAND) == 0
    assert (tmp_path / "mine.toml").read_text() == "new"
    assert (tmp_path / "r.html").read_text() == "<p>report</p>"
    assert "in place of the one that was there" in capsys.readouterr().err


def test_nothing_proved_leaves_no_recipe(asked, tmp_path, capsys):
    assert dynotune("--json", "study.json", *COMMAND) == 0
    assert not (tmp_path / "recipe.toml").exists()
    assert "Nothing helps." in capsys.readouterr().out
    assert document.read(tmp_path / "study.json", Study) == asked.study


# For real

SAVES = (
    CALLS
    + """
for number in range(100_000):
    step()
    if number % 5 == 0:
        open("checkpoint.pt", "w").write("the state")
        open("log.txt", "a").write("saved\\n")
"""
)


def test_a_program_that_saves_checkpoints_is_tuned_and_its_folder_is_as_it_was(user, monkeypatch, capsys):
    # Few pairs end it early, and not the budget: how many runs fit into that is the machine's affair.
    monkeypatch.setattr(confirmation, "MAX_PAIRS", TELLING_PAIRS)
    monkeypatch.chdir(user.cwd)
    for name, value in user.env.items():
        monkeypatch.setenv(name, value)
    user.write("train.py", SAVES)
    user.write("log.txt", "mine\n")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in user.cwd.iterdir()}
    quick = (
        "--budget",
        "1h",
        "--warmup",
        "3",
        "--steps",
        "20",
        "--no-lock",
        "--run-dir",
        str(user.runs),
        *MARKED,
    )
    code = dynotune("--try", "env.A=1", *quick, "--", PYTHON, "train.py")
    said = capsys.readouterr().err
    assert code == 0 and "Traceback" not in said, said
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in user.cwd.iterdir()} == before
    (folder,) = user.runs.iterdir()
    study = document.read(folder / "study.json", Study)
    assert study.finished and study.verdict and not study.recipe
    assert [candidate.id for candidate in study.candidates] == ["env.A=1"]
    assert study.trials and {trial.ended for trial in study.trials} == {"measured"}
    # The diagnosis ran it as it is. Where that was steady, which a busy machine decides, it is not done
    # again.
    (pilot,) = [trial for trial in study.trials if (trial.arm, trial.phase) == ("", "pilot")]
    (plain,) = [file.parent for file in folder.glob("diagnosis/*/observation.json")]
    assert pilot.run in (str(plain.relative_to(folder)), "0001-pilot")
    (found,) = pilots_on_disk(folder, [replace(pilot, run=str(plain.relative_to(folder)))]).values()
    assert found.run.purpose == "live" and len(found.records[0].steps) >= 20
    assert "Budget: 60 min" in said and "Each run: " in said
    assert (folder / "report.html").stat().st_size > 1000
    assert any("checkpoint.pt" in name for name in _changed(folder, study))


def _changed(folder, study):
    from dynotune.schema.run import Run

    runs = [document.read(folder / trial.run / "run.json", Run) for trial in study.trials]
    return {name for run in runs for name in run.changed_files}


# On top of a recipe

RECIPE = (
    '[recipe]\nschema = "dynotune.recipe/2"\nspeedup = 2.0\nci = [1.9, '
    '2.1]\n[settings]\n"env.OMP_SCHEDULE" = "1"\n'
)


def test_a_recipe_is_begun_from(asked, tmp_path):
    (tmp_path / "first.toml").write_text(RECIPE)
    assert dynotune("--recipe", "first.toml", *COMMAND) == 0
    began_from = asked.request.base_recipe
    assert (began_from.file, asked.request.run.settings) == (
        str(tmp_path / "first.toml"),
        [Setting("env.OMP_SCHEDULE", "1")],
    )
    assert began_from.recipe.recipe.speedup == 2.0


def test_a_variable_of_a_recipe_is_typed_to_begin_from_it(asked, tmp_path, capsys):
    (tmp_path / "first.toml").write_text(RECIPE + '"env.A" = "1"\n')
    assert dynotune("--recipe", "first.toml", *COMMAND) == 0
    assert "--set env.A=1" in " ".join(capsys.readouterr().err.split())
    assert asked.request.run.settings == [Setting("env.OMP_SCHEDULE", "1")]
    assert dynotune("--recipe", "first.toml", "--set", "env.A=2", *COMMAND) == 0
    assert asked.request.run.settings == [Setting("env.OMP_SCHEDULE", "1"), Setting("env.A", "2")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("[recipe]\nschema = 1", "first.toml"),
        ('[recipe]\nschema = "dynotune.recipe/2"\n', "no settings to begin from"),
        (RECIPE.replace("env.OMP_SCHEDULE", "no.such.knob"), "no.such.knob"),
        (RECIPE.replace("env.OMP_SCHEDULE", "env.LD_PRELOAD"), "foreign code"),
        (RECIPE.replace('"1"', "nan"), "is not a number"),
        (RECIPE + "[facts]\nnum_cores = inf\n", "is not a number"),
    ],
)
def test_tune_refuses_a_first_recipe_that_it_cannot_begin_from_before_anything_runs(
    asked, tmp_path, capsys, text, said
):
    if text is not None:
        (tmp_path / "first.toml").write_text(text)
    assert dynotune("--recipe", "first.toml", *COMMAND) in (2, 3)
    assert said in " ".join(capsys.readouterr().err.split())
    assert not hasattr(asked, "request")


def test_a_study_that_goes_on_has_the_recipe_that_it_began_from(asked, tmp_path, capsys):
    (tmp_path / "first.toml").write_text(RECIPE)
    assert dynotune("--resume", "s", "--recipe", "first.toml") == 2
    assert "no --recipe" in capsys.readouterr().err


def test_tune_writes_what_was_proved_when_handing_over_fails(proved, tmp_path, monkeypatch):
    def failing(folder, study, **where):
        raise UsageError("Cannot write recipe.toml: No space left on device.")

    monkeypatch.setattr(tuning, "_hand_over", failing)
    assert dynotune("--json", "out.json", *COMMAND) == 2
    assert document.read(tmp_path / "out.json", Study).id == "s"


@pytest.fixture
def resumed(asked):
    """The exit code of `--resume --fail-on nothing-proved`, of a study that began so and proved nothing."""

    def resumed(**began):
        recipe = recipes.read(asked.kept / "began.toml")
        beginning = BaseRecipe("began.toml", recipe, **began)
        asked.study = replace(asked.study, base_recipe=beginning, recipe=[])
        document.write(asked.kept / "study.json", asked.study)
        return dynotune("--resume", "s", "--fail-on", "nothing-proved")

    (asked.kept / "began.toml").write_text(RECIPE)
    return resumed


def test_the_gate_says_no_where_nothing_was_proved_on_top_of_a_recipe_of_the_users(asked, resumed, tmp_path):
    (tmp_path / "first.toml").write_text(RECIPE)
    assert dynotune("--fail-on", "nothing-proved", "--recipe", "first.toml", *COMMAND) == 1
    assert resumed() == 1


def test_a_recipe_that_is_handed_over_half_way_leaves_the_one_from_before(tmp_path, largest_file):
    (tmp_path / "new").write_bytes(bytes(1 << 20))
    (tmp_path / "old").write_text("old")
    largest_file(64 << 10)
    with pytest.raises(UsageError, match="File too large"):
        tuning._copy(tmp_path / "new", tmp_path / "old", "--output")
    assert (tmp_path / "old").read_text() == "old"
