"""Arguments, names of files, variables and output are bytes: a command has them as they are, and so do its
records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch.records.reader import Records
from dynotune.recipes.checking import command_hash
from dynotune.schema import document
from dynotune.schema import recipe as recipes
from dynotune.schema.comparison import Comparison
from dynotune.schema.events import ProcessBegun
from dynotune.schema.recipe import Header, Recipe
from dynotune.schema.run import Run

from .conftest import CALLS, MARKED, User, has_typed

WORD, FOLDER, SCRIPT = (os.fsdecode(name) for name in (b"arg\xff", b"dir\xfe", b"tr\xe9.py"))
SAYS = r"""
import os, sys
said = [b"said \xff\x1b[31m", os.fsencode(sys.argv[1]), os.environb.get(b"VALUE", b"")]
sys.stdout.buffer.write(b" ".join(said) + b"\n")
sys.stdout.flush()
open(os.fsencode(sys.argv[1]) + b".out", "w").close()
"""


@pytest.fixture
def elsewhere(user: User) -> User:
    """A user in a folder whose name is no UTF-8, with a script of that kind."""
    user.cwd = user.cwd / FOLDER
    user.cwd.mkdir()
    user.write(SCRIPT, SAYS + CALLS + "for _ in range(int(sys.argv[2])):\n    step()\n")
    return user


def typed(user: User, *words: str) -> tuple[int, bytes, bytes]:
    """As `User.types`, with output as it is."""
    done = subprocess.run(
        [sys.executable, "-m", "dynotune", *words], cwd=user.cwd, env=user.env, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert b"dynotune made a mistake" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_command_of_bytes_runs_and_is_recorded_byte_for_byte(elsewhere):
    command = [sys.executable, SCRIPT, WORD, "12"]
    setting = os.fsdecode(b"env.VALUE=\xe9")
    code, out, err = typed(
        elsewhere, "run", *MARKED, "--set", setting, "--run-dir", str(elsewhere.runs), "--", *command
    )
    assert (code, out) == (0, b"said \xff\x1b[31m arg\xff \xe9\n"), err
    (folder,) = elsewhere.runs.iterdir()
    run = document.read(folder / "run.json", Run)
    assert run.command == command
    assert run.processes[0].argv[-3:] == command[-3:]
    assert [(read.asked, read.ok) for read in run.readback] == [(os.fsdecode(b"\xe9"), True)]
    assert Records(folder).update()[0].last(ProcessBegun).argv == run.processes[0].argv


@pytest.mark.long
def test_a_comparison_of_bytes_is_shown_and_read_again(elsewhere):
    words = [
        "compare",
        os.fsdecode(b"env.VALUE=\xe9"),
        *MARKED,
        "--run-dir",
        str(elsewhere.runs),
        "--json",
        "out.json",
    ]
    command = [sys.executable, SCRIPT, WORD, "100000"]
    quick = ["--pairs", "2", "--warmup", "3", "--steps", "20", "--no-lock"]
    code, out, err = typed(elsewhere, *words, *quick, "--", *command)
    assert code == 0, err
    assert rb"$'tr\xe9.py' $'arg\xff' 100000" in out and rb"env.VALUE=\udce9" in out
    told = json.loads((elsewhere.cwd / "out.json").read_bytes())
    assert told["run"]["command"] == command
    folder = elsewhere.comparison_folder()
    assert document.read(folder / "comparison.json", Comparison).run.command == command
    pilot = document.read(folder / "pilot-baseline" / "run.json", Run)
    assert pilot.sandbox == "none" or pilot.changed_files == [f"{WORD}.out"]
    assert typed(elsewhere, "report", str(folder))[:2] == (0, out)


@pytest.mark.long
def test_a_recipe_of_a_command_of_bytes_proves_that_command_again(elsewhere, monkeypatch):
    command = [sys.executable, SCRIPT, WORD, "100000"]
    monkeypatch.setenv("XDG_STATE_HOME", elsewhere.env["XDG_STATE_HOME"])
    has_typed(command, cwd=elsewhere.cwd, runs=elsewhere.runs)
    head = Header(recipes.SCHEMA, command=command, speedup=1.2, ci=(1.1, 1.3))
    facts = {"command_hash": command_hash(command)}
    recipes.write(elsewhere.cwd / "recipe.toml", Recipe(head, {"env.OMP_NUM_THREADS": "2"}, facts=facts))
    quick = ["--pairs", "2", "--warmup", "3", "--steps", "20", "--no-lock", "--run-dir", str(elsewhere.runs)]
    code, out, err = typed(elsewhere, "recipe", "verify", "recipe.toml", *quick)
    assert code in (0, 1), err
    assert rb"$'tr\xe9.py' $'arg\xff' 100000" in err and b"command was" not in out
    assert document.read(elsewhere.comparison_folder() / "comparison.json", Comparison).run.command == command


@pytest.mark.long
def test_a_diagnosis_of_a_command_of_bytes_is_made_and_made_again(elsewhere):
    command = [sys.executable, SCRIPT, WORD, "100000"]
    code, out, err = typed(
        elsewhere, "diagnose", "--no-lock", "--run-dir", str(elsewhere.runs), "--", *command
    )
    assert code == 0, err
    (observation,) = Path(elsewhere.runs).glob("*/observation.json")
    assert rb"$'arg\xff'" in out
    assert typed(elsewhere, "diagnose", "--replay", str(observation))[:2] == (0, out)


@pytest.mark.parametrize(
    "words",
    [[b"re\xffport"], [b"report", b"no\xff"], [b"recipe", b"show", b"no\xff"], [b"trace", b"no\xff.json"],
     [b"run", b"--set", b"no\xff=1", b"--", b"true"], [b"compare", b"env.A=1", b"--", b"no\xff"],
     [b"run", b"--json", b"no\xff/x.json", b"--", b"true"], [b"startup", b"unpack", b"no\xff"],
     [b"tune", b"--try", b"env.A=\xff", b"--", b"true"],
     [b"explain", b"\xff\x1b[31m"]],
    ids=lambda words: os.fsdecode(b"-".join(words)).encode(errors="replace").decode().replace("\x1b", "E"),
)  # fmt: skip
def test_a_mistake_with_bytes_is_explained_in_characters_that_print(user, words):
    code, out, err = typed(user, *map(os.fsdecode, words))
    assert code in (2, 3, 127), err
    assert (out + err).decode().replace("\n", "").isprintable()


# States of the machine


@pytest.mark.parametrize(
    "words", [["doctor"], ["knobs", "--json", "-"], ["--help"], ["explain", "launch-blocking-on"]]
)
def test_an_output_that_takes_nothing_is_no_mistake_of_dynotunes(user, words):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dynotune", *words],
            cwd=user.cwd,
            env=user.env,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 3
    first, second = done.stderr.decode().splitlines()
    assert first == "error: The system refused what dynotune needs: a disk is full." and "next: " in second


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_output_is_no_mistake_of_dynotunes(user, closed):
    line = f'exec "$@" {closed}>&-'
    done = subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", "dynotune", "knobs"],
        env=user.env,
        capture_output=True,
    )
    assert done.returncode == 0 and b"mistake" not in done.stderr


def test_a_run_is_watched_to_its_end_though_the_output_is_closed(user, tmp_path):
    ours = [sys.executable, "-m", "dynotune"]
    asked = [*ours, "run", "--run-dir", str(tmp_path / "runs"), "--", sys.executable, "-c", "pass"]
    subprocess.run(asked, cwd=user.cwd, env=user.env, capture_output=True, check=True)
    (folder,) = (tmp_path / "runs").iterdir()
    closed = ["bash", "-c", 'exec "$@" 1>&-', "bash", *ours, "watch", str(folder)]
    done = subprocess.run(closed, cwd=user.cwd, env=user.env, capture_output=True)
    assert done.returncode == 0 and b"mistake" not in done.stderr
