"""Options of a run: declared once, the same in every subcommand."""

import inspect

import msgspec
import pytest
import typer

from dynotune.cli import compare, diagnose, options, recipe, startup, trace, tune
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec

COMMANDS = (
    compare.compare, diagnose.diagnose, recipe.verify, startup.warm, startup.time, trace.trace, tune.tune,
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_subcommand_that_runs_a_command_has_the_options_of_every_run(command):
    parameters = inspect.signature(command).parameters
    assert "run" not in parameters
    for name in options.OF_EVERY_RUN:
        assert parameters[name].annotation == options.RUN_OPTIONS[name]


def test_options_of_a_run_are_fields_of_its_description():
    assert set(options.RUN_OPTIONS) <= {field.name for field in msgspec.structs.fields(RunSpec)}


@pytest.mark.parametrize(
    ("text", "s"), [("90s", 90), ("1.5h", 5400), ("3m", 180), ("3min", 180), (" 3 min ", 180), ("0.5s", 0.5)]
)
def test_lengths_of_time(text, s):
    assert options.seconds(text, "--budget") == s


@pytest.mark.parametrize("text", ["0s", "soon", "-3s", "3 parsecs", ""])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(UsageError, match="not a length of time"):
        options.seconds(text, "--budget")


def test_a_length_of_time_needs_a_unit():
    with pytest.raises(UsageError, match="--budget 3 has no unit") as refused:
        options.seconds("3", "--budget")
    assert "--budget 3s" in refused.value.hint and "--budget 3m" in refused.value.hint


@pytest.fixture
def there(tmp_path):
    (tmp_path / "runs" / "it").mkdir(parents=True)
    (tmp_path / "runs" / "it" / "study.json").touch()
    return tmp_path / "runs"


@pytest.mark.parametrize("command", [compare.compare, startup.time, tune.tune], ids=lambda command: command.__name__)
@pytest.mark.parametrize("named", ["it", "./it", "absolute"])
def test_resume_takes_a_name_or_a_path_everywhere(command, there, named, monkeypatch):
    monkeypatch.chdir(there)
    app = typer.Typer()
    app.command()(command)
    context = typer.Context(typer.main.get_command(app), obj=None)
    resume = str(there / "it") if named == "absolute" else named
    assert options.resumed_folder(context, resume, there, "study.json").resolve() == there / "it"
