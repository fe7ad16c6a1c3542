"""Options of a run: declared once, the same in every subcommand."""

import inspect
import pkgutil
from importlib import import_module

import msgspec
import pytest

from dynotune import api, cli
from dynotune.cli import compare, diagnose, recipe, run_options, startup, trace, tune
from dynotune.schema.run import RunSpec

COMMANDS = (
    compare.compare, diagnose.diagnose, recipe.verify, startup.warm, startup.time, trace.trace, tune.tune,
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_every_subcommand_that_runs_a_command_has_the_options_of_every_run(command):
    parameters = inspect.signature(command).parameters
    assert "run" not in parameters
    for name in run_options.OF_EVERY_RUN:
        assert parameters[name].annotation == run_options.RUN_OPTIONS[name]


def test_options_of_a_run_are_fields_of_its_description():
    assert set(run_options.RUN_OPTIONS) <= {field.name for field in msgspec.structs.fields(RunSpec)}


def test_options_of_every_run_are_options_of_the_api_too():
    named = {"base": "run_dir"}
    assert {named.get(name, name) for name in run_options.OF_EVERY_RUN} <= set(api.RunOptions.__annotations__)


def test_no_subcommand_keeps_the_function_that_tests_replace() -> None:
    """A name that a module bound at its import stays what it was: forked tests would read the server's
    environment."""
    modules = [import_module(f"dynotune.cli.{one.name}") for one in pkgutil.iter_modules(cli.__path__)]
    bound = [one.__name__ for one in modules if one is not run_options and hasattr(one, "environment")]
    assert bound == []
