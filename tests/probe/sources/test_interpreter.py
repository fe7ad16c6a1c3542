from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.probe import interpreter
from dynotune.probe.sources.interpreter import answer
from dynotune.schema.facts import Unknown


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def bin_folder(tmp_path):
    folder = tmp_path / "bin"
    for name in ("python", "python3", "bash", "nice", "numactl", "env", "uv", "conda"):
        program(folder / name, "")
    return folder


@pytest.fixture
def env(bin_folder):
    return {"PATH": str(bin_folder)}


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "train.py"],
        ["nice", "-n", "5", "python3", "train.py"],
        ["numactl", "--cpunodebind=0", "python3", "-m", "pkg"],
        ["env", "A=b", "python3", "train.py"],
        ["env", "-u", "A", "nice", "python3", "train.py"],
    ],
)
def test_python_is_found_on_path_and_behind_wrappers(command, env, bin_folder, tmp_path):
    assert interpreter(command, env, tmp_path) == str(bin_folder / "python3")


def test_a_console_script_runs_in_the_python_of_its_first_line(env, bin_folder, tmp_path):
    program(bin_folder / "torchrun", f"#!{bin_folder}/python\nimport torch\n")
    assert interpreter(["torchrun", "--nproc-per-node", "2", "x.py"], env, tmp_path) == str(
        bin_folder / "python"
    )


def test_env_in_the_first_line_looks_on_path(env, bin_folder, tmp_path):
    program(tmp_path / "train.py", "#!/usr/bin/env python3\n")
    real_env = program(tmp_path / "usr/bin/env", "")
    program(tmp_path / "split.py", f"#!{real_env} -S python3 -u\n")
    assert interpreter(["./train.py"], env, tmp_path) == str(bin_folder / "python3")
    assert interpreter(["./split.py"], env, tmp_path) == str(bin_folder / "python3")


def test_a_path_too_long_for_a_first_line_is_read_from_the_second(env, bin_folder, tmp_path):
    script = f"#!/bin/sh\n'''exec' {bin_folder}/python \"$0\" \"$@\"\n' '''\nimport re\n"
    program(bin_folder / "accelerate", script)
    assert interpreter(["accelerate", "launch", "x.py"], env, tmp_path) == str(bin_folder / "python")


def test_a_relative_path_means_the_folder_of_the_command(env, tmp_path):
    program(tmp_path / "project/venv/bin/python", "")
    found = interpreter(["venv/bin/python", "x.py"], env, tmp_path / "project")
    assert found == str(tmp_path / "project/venv/bin/python")


def test_uv_runs_in_the_environment_of_the_project(env, tmp_path):
    python = program(tmp_path / "project/.venv/bin/python", "")
    (tmp_path / "project/pyproject.toml").touch()
    inner = tmp_path / "project/src"
    inner.mkdir()
    assert interpreter(["uv", "run", "train.py"], env, inner) == str(python)


def test_uv_without_an_environment_or_with_another_is_unknown(env, tmp_path):
    (tmp_path / "pyproject.toml").touch()
    assert isinstance(interpreter(["uv", "run", "train.py"], env, tmp_path), Unknown)
    program(tmp_path / ".venv/bin/python", "")
    assert isinstance(interpreter(["uv", "run", "--with", "rich", "train.py"], env, tmp_path), Unknown)
    (tmp_path / "inline.py").write_text("# /// script\n# dependencies = []\n# ///\n")
    assert isinstance(interpreter(["uv", "run", "inline.py"], env, tmp_path), Unknown)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["bash", "-c", "python train.py"],
        ["conda", "run", "-n", "x", "python", "train.py"],
        ["missing", "x.py"],
        ["nice", "-n", "5"],
        ["env", "PATH=/elsewhere", "python3"],
        ["./loop"],
        ["./binary"],
        ["./shell-script"],
    ],
)
def test_interpreter_is_unknown_when_only_a_run_would_tell(command, env, tmp_path):
    program(tmp_path / "loop", f"#!{tmp_path}/loop\n")
    program(tmp_path / "shell-script", "#!/bin/sh\npython3 train.py\n")
    program(tmp_path / "binary", "")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    assert isinstance(interpreter(command, env, tmp_path), Unknown)


def test_torchrun_without_python_is_unknown(env, bin_folder, tmp_path):
    program(bin_folder / "torchrun", f"#!{bin_folder}/python\n")
    assert isinstance(interpreter(["torchrun", "--no-python", "./x"], env, tmp_path), Unknown)


def test_this_very_python_is_named_as_it_was_called(tmp_path):
    assert interpreter([sys.executable, "x.py"], {}, tmp_path) == sys.executable


def test_an_interpreter_that_is_being_asked_ends_with_an_interrupt(monkeypatch):
    asked = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *args, **kwargs):
            asked.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        answer(sys.executable, "import time; time.sleep(600)", cwd=None, env=None, timeout_s=600.0)
    assert [child.wait() for child in asked] == [-signal.SIGKILL]
