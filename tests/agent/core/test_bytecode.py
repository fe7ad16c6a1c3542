"""Bytecode of measured runs: kept in a folder of ours where a module has none, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynotune

BOOTSTRAP = Path(dynotune.__file__).parent / "agent" / "bootstrap"


@pytest.fixture
def import_module(tmp_path):
    """Imports `mine` in a fresh interpreter, with bytecode kept; gives what Python read and wrote, in its own
    words."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine.py").write_text("value = 7\n")

    def run(**env):
        base = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        kept = {"PYTHONPATH": f"{BOOTSTRAP}:{tmp_path / 'src'}", "DYNOTUNE_BYTECODE": str(tmp_path / "kept")}
        command = [sys.executable, "-v", "-c", "import mine; print('VALUE', mine.value)"]
        done = subprocess.run(
            command, env={**base, **kept, **env}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "VALUE 7\n"
        return [
            line for line in done.stderr.splitlines() if "mine." in line and not line.startswith("# destroy")
        ]

    return run


@pytest.mark.parametrize("env", [{}, {"PYTHONDONTWRITEBYTECODE": "1"}])
def test_a_module_without_bytecode_is_compiled_once_and_its_folder_stays_as_it_is(
    env, import_module, tmp_path
):
    assert any(line.startswith("# created") for line in import_module(**env))
    assert any(f"# {tmp_path / 'kept'}" in line and "matches" in line for line in import_module(**env))
    assert [path.name for path in (tmp_path / "src").iterdir()] == ["mine.py"]


def test_bytecode_that_is_there_is_read_and_not_made_twice(import_module, tmp_path):
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tmp_path / "src")], check=True)
    assert not any(line.startswith("# created") for line in import_module())
    assert not list((tmp_path / "kept").rglob("mine*.pyc"))


def test_a_module_that_changed_is_compiled_anew(import_module, tmp_path):
    import_module()
    (tmp_path / "src" / "mine.py").write_text("value = 7  # changed\n")
    assert any(line.startswith("# created") for line in import_module())


def test_stale_bytecode_of_a_user_who_writes_none_stays_as_it_is(import_module, tmp_path):
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tmp_path / "src")], check=True)
    (bytecode,) = (tmp_path / "src").rglob("*.pyc")
    before = bytecode.read_bytes()
    (tmp_path / "src" / "mine.py").write_text("value = 7  # changed since\n")
    import_module(PYTHONDONTWRITEBYTECODE="1")
    assert bytecode.read_bytes() == before


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(import_module, tmp_path):
    (tmp_path / "kept").write_text("a file")
    import_module()
