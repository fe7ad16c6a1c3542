"""Completion as the shells ask for it: typer's scripts start dynotune with the words typed so far."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHELLS = ("bash", "zsh", "fish")
CODE = """
import sys
from dynotune.cli import main
try:
    main()
finally:
    assert 'torch' not in sys.modules
"""


def asked(user, shell: str, line: str, **more: str) -> str:
    """What is said: of a fork, or with `more` in the environment of an interpreter of its own."""
    words = line.split(" ")
    env = {"_DYNOTUNE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        env |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if more:
        command, env = [sys.executable, "-c", CODE], user.env | env | more
        done = subprocess.run(command, env=env, cwd=user.cwd, capture_output=True, text=True, timeout=120)
    else:
        done = user.forks(CODE, env)
    assert done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dynotune diag", "diagnose"),
        ("dynotune recipe ver", "verify"),
        ("dynotune diagnose --set loader.num_w", "loader.num_workers="),
        ("dynotune compare loader.num_w", "loader.num_workers="),
        ("dynotune tune --objective lat", "latency-p99"),
        ("dynotune explain num-workers-z", "num-workers-zero"),
        ("dynotune tune --bud", "--budget"),
    ],
)
def test_a_shell_is_offered_what_fits(user, shell, line, offered):
    assert offered in asked(user, shell, line)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("dynotune compare compile.mode = red", ["reduce-overhead"]),
        ("dynotune compare optimizer.fused = ", ["true", "false"]),
        ("dynotune compare loader.pin_memory = true optimizer.fused = t", ["true"]),
    ],
)
def test_bash_is_offered_values_alone_when_it_breaks_words_at_equals(user, line, offered):
    assert asked(user, "bash", line).split() == offered


def test_shell_is_offered_the_value_with_its_knob_when_it_keeps_words_whole(user):
    assert "compile.mode=reduce-overhead" in asked(user, "zsh", "dynotune compare compile.mode=red")


def test_shell_is_offered_variables_that_advice_speaks_of(user):
    assert "env.CUBLAS_WORKSPACE_CONFIG=" in asked(user, "fish", "dynotune compare env.CUBL")


@pytest.mark.parametrize("shell", SHELLS)
def test_runs_are_offered_by_name_and_by_folder(user, shell):
    folder = user.cwd.parent / "state" / "dynotune" / "runs" / "20260101-120000-000-abcdef"
    folder.mkdir(parents=True)
    assert folder.name in asked(user, shell, "dynotune compare --resume 2026")
    assert str(folder) in asked(user, shell, "dynotune report ")


@pytest.mark.parametrize("shell", SHELLS)
def test_nothing_is_offered_for_the_users_command(user, shell):
    assert asked(user, shell, "dynotune diagnose -- train.py --s").strip() in ("", "_files")


def test_an_empty_variable_asks_for_nothing(user):
    assert user.types("--version", env=user.env | {"_DYNOTUNE_COMPLETE": ""}).returncode == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_starts_dynotune(user, shell):
    said = asked(user, shell, "", _DYNOTUNE_COMPLETE=f"source_{shell}")
    assert f"_DYNOTUNE_COMPLETE=complete_{shell}" in said
