from __future__ import annotations

import subprocess
import sys
import types
from typing import Annotated

import pytest
import typer

from dynotune import __version__, cli
from dynotune.schema.errors import CannotRunHere, CommandFailed, UsageError


def dynotune(*argv: str) -> int | str | None:
    """The exit code of `dynotune` with these arguments."""
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    return end.value.code


@pytest.fixture
def subcommand(monkeypatch):
    """Adds a subcommand `probe`, made of the function that it is given."""

    def add(function):
        module = types.ModuleType("dynotune.cli.probe")
        module.probe = function
        monkeypatch.setitem(sys.modules, "dynotune.cli.probe", module)
        monkeypatch.setitem(cli.COMMANDS, "probe", "A subcommand of the tests.")

    return add


def test_help_names_every_subcommand(capsys):
    assert dynotune("--help") == 0
    text = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f" {name} " in text
    assert "Exit codes" in text


def test_the_version_is_printed_when_it_is_asked_for(capsys):
    assert dynotune("--version") == 0
    assert capsys.readouterr().out == f"dynotune {__version__}\n"


def test_help_imports_neither_torch_nor_what_only_measuring_needs():
    program = """
import sys
from dynotune.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = {"torch", "numpy", "scipy", "pynvml", "dynotune.measure", "dynotune.launch", "dynotune.knobs"}
sys.exit(" ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("argv", [["tuen"], ["--nonsense"], ["knobs", "--nonsense"]])
def test_a_wrong_command_line_exits_with_2(capsys, argv):
    assert dynotune(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "No such" in captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("No knob is called x.", hint="Did you mean y?"), 2),
        (CannotRunHere("There is no GPU.", hint="Run it where there is one."), 3),
        (
            CommandFailed(
                "The command failed.", hint="Mend it.", command_exit_code=7, last_lines=("Boom", "[b]")
            ),
            4,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_says_what_happened_and_what_to_do_and_shows_no_traceback(subcommand, capsys, error, code):
    def fails():
        raise error

    subcommand(fails)
    assert dynotune("probe") == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {error.message}\n" in captured.err
    assert f"next: {error.hint}\n" in captured.err
    assert "Traceback" not in captured.err
    for line in getattr(error, "last_lines", ()):
        assert f"│ {line}\n" in captured.err


@pytest.mark.parametrize("argv", [["--debug", "probe"], ["probe", "--debug"]])
def test_debug_lets_the_traceback_through_wherever_it_stands(subcommand, argv):
    def fails():
        raise CannotRunHere("There is no GPU.")

    subcommand(fails)
    with pytest.raises(CannotRunHere):
        cli.main(argv)


def test_a_mistake_of_our_own_has_an_exit_code_that_means_nothing_else(subcommand, capsys):
    def fails():
        raise ZeroDivisionError("division by zero")

    subcommand(fails)
    assert dynotune("probe") == cli.INTERNAL_ERROR
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_an_interrupted_command_exits_with_130(subcommand):
    def fails():
        raise KeyboardInterrupt

    subcommand(fails)
    assert dynotune("probe") == 130


def test_a_subcommand_may_exit_with_a_code_of_its_own(subcommand):
    def ends():
        raise typer.Exit(7)

    subcommand(ends)
    assert dynotune("probe") == 7


def test_the_users_command_reaches_the_subcommand_untouched(subcommand):
    seen = []

    def takes(context: typer.Context, settings: list[str]):
        seen.append((settings, cli.command_of(context)))

    subcommand(takes)
    command = ["python", "train.py", "--debug", "--help", "--", "x y"]
    assert dynotune("probe", "a=1", "b=2", "--", *command) == 0
    assert seen == [(["a=1", "b=2"], command)]


@pytest.mark.parametrize("argv", [["probe"], ["probe", "--"]])
def test_a_missing_command_is_told_how_to_write_it(subcommand, capsys, argv):
    def takes(context: typer.Context):
        cli.command_of(context)

    subcommand(takes)
    assert dynotune(*argv) == 2
    assert "dynotune probe … -- python train.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("diagnose python train.py --batch 3", "diagnose -- python train.py --batch 3"),
        (
            "tune --budget 3m torchrun --nproc-per-node 2 train.py",
            "tune --budget 3m -- torchrun --nproc-per-node 2 train.py",
        ),
        ("compare precision.autocast=bf16 ./train.py", "compare precision.autocast=bf16 -- ./train.py"),
        ("memory /usr/bin/python3.12 train.py", "memory -- /usr/bin/python3.12 train.py"),
    ],
)
def test_a_command_without_its_dashes_is_told_where_they_belong(capsys, typed, meant):
    assert dynotune(*typed.split()) == 2
    said = capsys.readouterr().err
    assert "after two dashes" in said
    assert f"dynotune {meant}\n" in said


@pytest.mark.parametrize("words", [("--python", "/usr/bin/python3"), ("--python=/usr/bin/python3",)])
def test_the_value_of_an_option_is_no_command(subcommand, words, monkeypatch):
    monkeypatch.setattr(cli, "TAKE_COMMANDS", ("probe",))
    seen = []

    def probe(python: Annotated[str, typer.Option("--python")] = "") -> None:
        seen.append(python)

    subcommand(probe)
    assert dynotune("probe", *words) == 0
    assert seen == ["/usr/bin/python3"]


def test_help_shows_no_type_for_a_flag(capsys):
    for argv in (["--help"], ["diagnose", "--help"]):
        dynotune(*argv)
    assert "<bool>" not in capsys.readouterr().out
