"""`dynotune account`: of a command that ends, that fails, and that is ended."""

from __future__ import annotations

import sys

import pytest

from dynotune.schema import document
from dynotune.schema.account import RunAccount

from .test_bad_input import said

RECIPE = """[recipe]
schema = "dynotune.recipe/2"
[settings]
"env.OMP_NUM_THREADS" = "1"
"env.LD_PRELOAD" = "evil.so"
"""


@pytest.fixture
def account(user):
    def account(program, *words):
        user.write("train.py", program)
        ours = ["--no-lock", "--no-sandbox", "--run-dir", str(user.runs), "--json", "account.json", *words]
        done = user.types("account", *ours, "--", sys.executable, "train.py")
        file = user.cwd / "account.json"
        return done, document.read(file, RunAccount) if file.exists() else None

    return account


def test_account_is_the_answer_and_output_is_kept_when_the_command_ends(account, user):
    done, found = account("print('out')")
    said(done, 0)
    assert "whole run" in done.stdout and "out" not in done.stdout.split()
    assert "energy" in done.stdout
    assert sum(row.took_s for row in found.rows) == pytest.approx(found.wall_s)
    (kept,) = user.runs.glob("*/stdout")
    assert kept.read_text() == "out\n"


def test_account_shows_the_last_lines_when_the_command_fails(account):
    done, found = account("import nothing_of_this_name")
    said(done, 4, "with exit code 1", "nothing_of_this_name")
    assert "whole run" in done.stdout and found.exit_code == 1


def test_account_says_so_when_the_command_makes_no_step_before_the_timeout(account):
    done, found = account("while True: pass", "--timeout", "2s")
    said(done, 0)
    assert "No step was found." in done.stdout
    assert any("--timeout" in note for note in found.notes)


def test_account_applies_a_recipe_and_leaves_out_what_only_the_user_may_set(account, user):
    path = user.write("recipe.toml", RECIPE)
    done, _ = account("import os; print(os.environ['OMP_NUM_THREADS'])", "--recipe", str(path))
    said(done, 0, "env.LD_PRELOAD")
    (kept,) = user.runs.glob("*/stdout")
    assert kept.read_text() == "1\n"
