"""The command's executable is found as a shell finds it, or it is said why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from dynotune.launch.process.executable import find_executable
from dynotune.schema.errors import UsageError

from ..conftest import SOURCE


@pytest.fixture
def bin_(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("torchrun", "python", "plain"):
        (folder / name).touch(mode=0o755)
    (folder / "plain").chmod(0o644)
    return folder


def test_path_comes_from_the_commands_own_environment(bin_, tmp_path):
    assert find_executable("torchrun", env={"PATH": f"/nowhere:{bin_}"}, cwd=tmp_path) == str(
        bin_ / "torchrun"
    )


def test_relative_folders_of_path_count_from_the_working_directory(bin_, tmp_path):
    assert find_executable("torchrun", env={"PATH": "bin"}, cwd=tmp_path) == str(bin_ / "torchrun")


def test_a_path_is_started_as_it_is_typed(bin_, tmp_path):
    """Bare, a script sees it so too."""
    assert find_executable("bin/torchrun", env={}, cwd=tmp_path) == "bin/torchrun"
    assert find_executable("./bin/torchrun", env={}, cwd=tmp_path) == "./bin/torchrun"


def test_a_folder_that_may_not_be_entered_is_named(tmp_path):
    code = "import sys; from pathlib import Path; from dynotune.launch.process.executable import *\n"
    code += (
        "try: find_executable(sys.argv[1], env={}, cwd=Path('/'))\nexcept UsageError as error: print(error)"
    )
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0)
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if become and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to become someone else")
    words = [*become, sys.executable, "-c", f"import sys; sys.path.insert(0, {SOURCE!r})\n{code}"]
    done = subprocess.run([*words, str(tmp_path / "closed" / "x")], cwd="/", capture_output=True, text=True)
    if done.returncode:
        pytest.skip("another user may not read the source")
    assert "Permission denied" in done.stdout


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("", "empty", "--"),
        ("torchrum", "not found: torchrum", "torchrun"),
        ("qqqqqq", "not found", "PATH"),
        ("./none", "not found", "path"),
        ("./bin", "folder", "program"),
        ("plain", "not executable", "chmod"),
        ("./train.py", "not executable", "python ./train.py"),
        ("train.py", "not on PATH", "python ./train.py"),
    ],
)
def test_find_executable_says_what_to_do_when_a_program_cannot_be_started(name, what, hint, bin_, tmp_path):
    (tmp_path / "train.py").touch(mode=0o644)
    with pytest.raises(UsageError, match=what) as raised:
        find_executable(name, env={"PATH": str(bin_)}, cwd=tmp_path)
    assert hint in raised.value.hint
