"""Mistakes made on purpose: each is told in at most four lines, with what happened, why, and what to do
next."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dynotune import cli

from .conftest import CALLS

MARKED = "--step-function dynotune.step --no-lock"
# What is typed, the exit code, what the error names, what the next step names.
TYPED = {
    "no dashes": ("diagnose python train.py", 2, "two dashes", "dynotune diagnose -- python train.py"),
    "no subcommand": (
        "train.py --batch 3",
        2,
        "two dashes",
        "dynotune diagnose -- python train.py --batch 3",
    ),
    "a subcommand misspelt": ("diagnos -- python train.py", 2, "diagnos", "dynotune --help"),
    "an option misspelt": ("diagnose --step 3 -- python train.py", 2, "--steps", "dynotune diagnose --help"),
    "an option without its value": ("compare env.A=1 --json", 2, "--json", "dynotune compare --help"),
    "a knob misspelt": (
        "compare loader.num_worker=4 -- python train.py",
        2,
        "num_worker",
        "loader.num_workers",
    ),
    "a knob without a value": (
        "compare loader.num_workers -- python train.py",
        2,
        "no value",
        "num_workers=VALUE",
    ),
    "a value of the wrong kind": (
        "compare loader.num_workers=many -- python train.py",
        2,
        "many",
        "whole number",
    ),
    "nothing to compare": (
        "compare -- python train.py",
        2,
        "no setting",
        "dynotune compare loader.num_workers=4 --",
    ),
    "twice the same": ("compare env.A=1 --baseline env.A=1 -- python train.py", 2, "the same", "For example"),
    "one knob twice": ("compare env.A=1 env.A=2 -- python train.py", 2, "both set env.A", "one of them"),
    "no command": ("diagnose --", 2, "no command", "-- python train.py"),
    "a program misspelt": ("diagnose -- pyton train.py", 2, "pyton", "python"),
    "a notebook given to Python": ("diagnose -- python -u n.ipynb", 2, "notebook", "nbconvert"),
    "a script misspelt": ("diagnose -- python trian.py --epochs 3", 2, "no trian.py", "train.py"),
    "a variable without its env.": (
        "compare CUBLAS_WORKSPACE_CONFIG=@unset -- python train.py",
        2,
        "no knob",
        "env.CUBLAS_WORKSPACE_CONFIG=@unset",
    ),
    "a word for a knob": ("compare tf32=true -- python train.py", 2, "tf32", "matmul.fp32_precision=high"),
    "an address without a token": (
        "watch --serve 0.0.0.0:8000 -- python train.py",
        2,
        "other machines",
        "--token",
    ),
    "an objective that is none": (
        "compare env.A=1 --objective latency -- python train.py",
        2,
        "latency",
        "call-latency-p99",
    ),
    "one value for two arms": (
        "compare arg.n=1 -- python train.py {n}",
        2,
        "no value",
        "--baseline arg.n=VALUE",
    ),
    "a placeholder with the same value": (
        "compare arg.n=1 --baseline arg.n=1 -- python train.py {n}",
        2,
        "the same",
        "For example",
    ),
    "a notebook": ("diagnose -- n.ipynb", 2, "n.ipynb", "nbconvert"),
    "a script that is not executable": ("diagnose -- ./train.py", 2, "not executable", "python ./train.py"),
    "a time without a unit": ("tune --budget 3 -- python train.py", 2, "no unit", "--budget 3m"),
    "a time that is none": ("tune --budget soon -- python train.py", 2, "soon", "--budget 90s"),
    "too many pairs": ("compare env.A=1 --pairs 200 -- python train.py", 2, "48", "dynotune compare --help"),
    "a word that is none of these": ("diagnose --fail-on critical -- python train.py", 2, "critical", "high"),
    "a recipe that is not there": (
        "run --recipe nothing.toml -- python train.py",
        3,
        "nothing.toml",
        "dynotune tune",
    ),
    "a recipe that is damaged": ("run --recipe train.py -- python train.py", 3, "not TOML", "Make it again"),
    "a report of nothing": ("report nothing", 2, "nothing", "Name a folder"),
    "a trace that is not there": ("trace nothing.json", 2, "nothing.json", "Name a trace"),
    "a trace that is none": ("trace empty.json", 2, "no trace", "torch.profiler"),
    "a snapshot given to trace": (
        "trace snapshot.pickle",
        2,
        "snapshot of memory",
        "dynotune memory snapshot.pickle",
    ),
    "a folder that takes no records": (
        "diagnose --run-dir /proc/x -- python train.py",
        3,
        "/proc/x",
        "--run-dir",
    ),
    "a file that cannot be written": (
        "compare env.A=1 --json /nowhere/x -- python train.py",
        2,
        "/nowhere",
        "--json",
    ),
    "a placeholder that is not there": (
        "compare arg.n=1 --baseline arg.n=2 -- python train.py",
        2,
        "{n}",
        "",
    ),
    "a resumption of nothing": ("compare --resume nothing", 2, "nothing", ""),
    "an explanation of nothing": ("explain zzzzzz", 2, "zzzzzz", "dynotune explain"),
    "another machine's file missing": (
        "doctor --baseline nothing.json",
        2,
        "nothing.json",
        "dynotune doctor --json",
    ),
    "a placeholder of one batch": (
        "memory --values arg.n=8 -- python train.py {n}",
        2,
        "two batch sizes",
        "arg.batch=8,16",
    ),
}


def is_told(said: str, what: str, hint: str) -> None:
    lines = said.strip().splitlines()
    assert len(lines) <= 4, said
    assert lines[0].startswith("error: ") and what in said.partition("next: ")[0], said
    assert lines[-1].startswith("next: ") and hint in lines[-1], said
    assert "Traceback" not in said and "Usage:" not in said


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("raise SystemExit('it was started')\n")
    (folder / "n.ipynb").write_text("{}")
    (folder / "empty.json").write_text("{}")
    (folder / "snapshot.pickle").write_bytes(b"\x80\x04N.")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return folder


@pytest.mark.parametrize(("typed", "code", "what", "hint"), TYPED.values(), ids=TYPED.keys())
def test_typing_mistakes_are_told_before_anything_runs(project, tmp_path, capsys, typed, code, what, hint):
    with pytest.raises(SystemExit) as end:
        cli.main(shlex.split(typed))
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (code, ""), said
    is_told(said.err, what, hint)
    assert "it was started" not in said.err
    assert not list((tmp_path / "state").glob("*/runs/*"))


def ends_early(user) -> str:
    user.write("train.py", CALLS + "for _ in range(3):\n    step()\n")
    return f"diagnose {MARKED} -- {sys.executable} train.py"


def has_no_torch(user) -> str:
    user.write("train.py", "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    return f"diagnose --no-lock -- {sys.executable} train.py"


def has_a_mistake(user) -> str:
    user.write("train.py", "for step in range(3)\n    pass\n")
    return f"diagnose --no-lock -- {sys.executable} train.py"


@pytest.mark.parametrize(
    ("mistake", "code", "what"),
    [
        (ends_early, 3, "3 steps"),
        (has_no_torch, 4, "No module named 'torch'"),
        (has_a_mistake, 4, "SyntaxError"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_mistakes_of_a_program_are_told_by_its_own_last_lines(
    user, mistake: Callable[..., str], code: int, what: str
):
    subcommand, *words = shlex.split(mistake(user))
    told = user.types(subcommand, "--run-dir", str(user.runs), *words)
    assert told.returncode == code, told.stderr
    lines = [line for line in told.stderr.strip().splitlines() if not line.startswith(("warning:", "  │ "))]
    assert what in told.stderr and lines[-1].startswith("next: ") and len(lines) <= 4, told.stderr


def test_a_reader_that_goes_away_is_no_error(user):
    with user.start("knobs", stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode in (0, 1) and "Traceback" not in said and "mistake" not in said, said
