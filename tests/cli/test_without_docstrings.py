"""`python -OO` strips docstrings: help, rules and diagnoses must not depend on them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dynotune
from dynotune import cli
from dynotune.doctor import all_rules, explain

from .conftest import User
from .test_diagnose import LOADS


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


@pytest.mark.long
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
    assert "Settings that can be switched while a program" in stripped.types("compare", "--help").stdout


def test_doctor_judges_every_rule_without_docstrings(stripped: User) -> None:
    done = stripped.types("doctor", "--json", "-")
    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"]) == (0, "dynotune.examination/2")
    assert {row["id"] for row in [*document["findings"], *document["unknown"]]} <= set(all_rules())


@pytest.mark.parametrize("id_", ["cudnn-benchmark-off", "launch-blocking-on"])
def test_a_finding_is_explained_the_same_without_docstrings(stripped: User, id_: str) -> None:
    document = json.loads(stripped.types("explain", id_, "--json", "-").stdout)
    finding = explain(id_, ()).finding
    assert finding is not None
    assert document["finding"]["costs"] == finding.costs
    assert document["finding"]["settings"] == finding.settings


@pytest.mark.long
def test_a_program_is_diagnosed_without_docstrings(stripped: User) -> None:
    stripped.write("train.py", LOADS)
    folder = ("--no-lock", "--run-dir", str(stripped.runs))
    done = stripped.types("diagnose", *folder, "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "bottleneck  input" in done.stdout
    (observation,) = Path(stripped.runs).glob("*/observation.json")
    again = stripped.types("diagnose", "--replay", str(observation))
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_nothing_of_dynotune_reads_a_docstring():
    """`python -OO` has none; an `assert` tells mypy something, and its absence changes no answer."""
    sources = [
        path for path in Path(dynotune.__file__).parent.rglob("*.py") if "__pycache__" not in path.parts
    ]
    texts = {path: path.read_text() for path in sources}
    assert [path for path, text in texts.items() if "__doc__" in text or "getdoc(" in text] == []
    asserted = re.compile(r"^\s*assert (?!.*\bis not None\b|isinstance\()", re.MULTILINE)
    assert [path for path, text in texts.items() if asserted.search(text)] == []
