"""`python -OO` strips docstrings: help, rules and diagnoses must not depend on them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dynotune import cli

from .conftest import User


def commands() -> list[tuple[str, ...]]:
    """The root command, every subcommand, and every subcommand of those."""
    paths: list[tuple[str, ...]] = [()]
    for name in cli.COMMANDS:
        group = cli._parser([name]).commands[name]
        paths += [(name,), *((name, child) for child in getattr(group, "commands", {}))]
    return paths


EVERY_HELP = """
import contextlib, io, json, sys
from dynotune.cli import main
texts = {}
for path in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*path, "--help"])
    texts[" ".join(path)] = out.getvalue()
print(json.dumps(texts))
"""


@pytest.fixture
def stripped(user: User) -> User:
    """A user whose Python strips docstrings, in dynotune as in the command that it runs."""
    user.env["PYTHONOPTIMIZE"] = "2"
    return user


def test_every_help_is_the_same_text_without_docstrings(user: User) -> None:
    paths = json.dumps(commands())
    plain, without = (
        json.loads(subprocess.check_output([sys.executable, *flags, "-c", EVERY_HELP, paths], env=user.env))
        for flags in ([], ["-OO"])
    )
    assert without == plain
    assert len(plain) == len(commands()) and all("Usage: dynotune" in text for text in plain.values())


def test_a_process_of_its_own_shows_help_without_docstrings(stripped: User) -> None:
    assert "Proves on your own PyTorch command" in stripped.types("--help").stdout
    assert "The command runs once for each arm" in stripped.types("compare", "--help").stdout
