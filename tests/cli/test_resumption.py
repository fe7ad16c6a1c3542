"""What --resume names."""

import pytest
import typer

from dynotune.cli import compare, resumption, startup, tune


@pytest.fixture
def there(tmp_path):
    (tmp_path / "runs" / "it").mkdir(parents=True)
    (tmp_path / "runs" / "it" / "study.json").touch()
    return tmp_path / "runs"


@pytest.mark.parametrize(
    "command", [compare.compare, startup.time, tune.tune], ids=lambda command: command.__name__
)
@pytest.mark.parametrize("named", ["it", "./it", "absolute"])
def test_resume_takes_a_name_or_a_path_everywhere(command, there, named, monkeypatch):
    monkeypatch.chdir(there)
    app = typer.Typer()
    app.command()(command)
    context = typer.Context(typer.main.get_command(app), obj=None)
    resume = str(there / "it") if named == "absolute" else named
    assert resumption.resumed_folder(context, resume, there, "study.json").resolve() == there / "it"
