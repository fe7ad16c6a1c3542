"""`dynotune diagnose --pid`: the options beside it, and the answer as text and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dynotune import cli


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The id of a Python process that waits."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code = "print('ready', flush=True); import sys; sys.stdin.read()"
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        yield child.pid
        child.kill()


def diagnose(*argv: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["diagnose", *argv])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_diagnose_shows_part_and_rungs_when_a_process_is_named(program, capsys):
    assert diagnose("--pid", str(program)) == 0
    out = capsys.readouterr().out
    assert f"{program}, looked at for" in out
    assert "Rung 1" in out and "Processes" in out


def test_diagnose_writes_json_alone_when_it_is_asked_for(program, capsys):
    assert diagnose("--pid", str(program), "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["pid"], found["part"]) == ("dynotune.running/1", program, "waiting")


@pytest.mark.parametrize(
    ("argv", "said", "code"),
    [
        (["--pid", "1", "--", "python", "train.py"], "a command was given", 2),
        (["--pid", "1", "--replay", "x.json"], "exclude each other", 2),
        (["--pid", "1", "--warmup", "3"], "--warmup applies only to a command that is run", 2),
        (["--pid", "0"], "--pid", 2),
        (["--pid", "-4"], "--pid", 2),
        (["--pid", "99999999999"], "--pid", 2),
        (["--pid", "train.py"], "train.py", 2),
        (["--pid", str(2**22 + 1)], "There is no process", 3),
    ],
)
def test_diagnose_says_what_is_wrong_when_options_do_not_fit(argv, said, code, capsys):
    assert diagnose(*argv) == code
    assert said in capsys.readouterr().err
