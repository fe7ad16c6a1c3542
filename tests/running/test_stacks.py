"""Stacks from outside: by py-spy where it is installed, and by programs that behave like it, well and
badly."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from dynotune.running import stacks, targets
from dynotune.schema.facts import Unknown

WRITES = """#!{python}
import sys
pid, file = (sys.argv[sys.argv.index(name) + 1] for name in ("--pid", "--output"))
user, torch = "/home/me/train.py", "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py"
open(file, "w").write(
    f"thread ({{pid}}): MainThread;<module> ({{user}}:9);main ({{user}}:5);__next__ ({{torch}}:725) 30\\n"
    f"thread ({{pid}});<module> ({{user}}:9);main ({{user}}:6) 10\\n"
    f"thread (1): QueueFeederThread;wait (/usr/lib/python3.11/threading.py:327) 40\\n"
    "process 1:\\"hostile;thread (2): x;y (z:1) 9\\" and no number\\n"
)
"""
FAILS = "#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
HANGS = "#!/bin/sh\nread line < $FIFO\n"


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """`py_spy(text)` puts a script in the place of py-spy."""

    def put(text: str) -> None:
        path = tmp_path / "py-spy"
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(stacks, "_program", lambda: str(path))

    return put


def test_stacks_have_shares_and_lines_when_py_spy_writes_them(started, py_spy):
    py_spy(WRITES.format(python=sys.executable))
    found = stacks.read(targets.find(started().pid).ranks[0])
    assert not isinstance(found, Unknown), found
    assert (found.num, found.loader_share, found.backward_share) == (40, 0.75, 0.0)
    assert [(line.place, line.in_loader, line.share) for line in found.lines] == [
        ("train.py(5): main", True, 0.75),
        ("train.py(6): main", False, 0.25),
    ]


def test_stacks_are_unknown_with_what_is_needed_when_py_spy_has_no_right(started, py_spy):
    py_spy(FAILS)
    found = stacks.read(targets.find(started().pid).ranks[0])
    assert isinstance(found, Unknown)
    assert "CAP_SYS_PTRACE" in found.reason


def test_stacks_are_given_up_when_py_spy_hangs(started, py_spy, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setenv("FIFO", str(tmp_path / "fifo"))
    monkeypatch.setattr(stacks, "LIMIT_S", 0.2)
    py_spy(HANGS)
    found = stacks.read(targets.find(started().pid).ranks[0])
    assert isinstance(found, Unknown)
    assert "no stacks after" in found.reason


def test_stacks_name_the_users_line_when_the_real_py_spy_is_installed(started, tmp_path):
    if stacks._program() is None:
        pytest.skip("py-spy is not installed")
    program = tmp_path / "train.py"
    program.write_text("def step():\n    while True: pass\n\nprint('ready', flush=True)\nstep()\n")
    running = started(words=[sys.executable, str(program)])
    found = stacks.read(targets.find(running.pid).ranks[0])
    assert not isinstance(found, Unknown), found
    assert found.lines[0].place == "train.py(2): step"
    assert found.loader_share == 0.0


@pytest.mark.parametrize(
    ("scope", "said"), [("0\n", ""), ("1\n", "ptrace_scope is 1"), ("2\n", "ptrace_scope is 2")]
)
def test_missing_right_is_named_when_the_kernel_restricts_tracing(tmp_path, monkeypatch, scope, said):
    (tmp_path / "scope").write_text(scope)
    monkeypatch.setattr(stacks, "PTRACE_SCOPE", tmp_path / "scope")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert said in stacks.missing_right()
    assert bool(said) == bool(stacks.missing_right())
