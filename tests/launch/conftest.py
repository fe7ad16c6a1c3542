"""Real processes, found again by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import dynotune
from dynotune.launch import new_run_folder

T = TypeVar("T")
SOURCE = str(Path(dynotune.__file__).parent.parent)
DEADLINE_S = 120

# Stands for dynotune where a test kills it: run folder, working directory, sandbox, command.
MEASURES = """
import os, sys
from pathlib import Path
from typing import TypeVar
from dynotune import launch
run_dir, cwd, sandbox, *command = sys.argv[1:]
paths = {"cwd": Path(cwd), "run_dir": Path(run_dir)}
with launch.start(command, env=dict(os.environ), sandbox=sandbox, **paths) as launched:
    print(launched.pid, launched.sandbox, flush=True)
    launched.wait()
"""

# Stands for `dynotune run`: run folder, command.
RUNS = """
import os, sys
from pathlib import Path
from typing import TypeVar
from dynotune import launch
from dynotune.launch.process.foreground import run_in_foreground
env = dict(os.environ)
exit_ = run_in_foreground(sys.argv[2:], env=env, cwd=Path.cwd(), run_dir=Path(sys.argv[1]))
if exit_.signal is not None:
    launch.die_by(exit_.signal)
sys.exit(exit_.status)
"""

# Every way in which a process can get away from its parent, and 20 that just are many.
FOREST = """
import os, signal, sys
ready, up = os.pipe()
def leaf():
    os.write(up, b".")
    while True:
        signal.pause()
def child(prepare):
    if os.fork() == 0:
        prepare()
        leaf()
def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
def daemon():
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, up)
for prepare in (os.setsid, deaf, daemon, *20 * [lambda: None]):
    child(prepare)
for _ in range(23):
    os.read(ready, 1)
print("grown", flush=True)
"""


def until(ask: Callable[[], T], what: str) -> T:
    """Ask until the answer is true."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.01)
    return answer


class Marked:
    """Processes that carry a mark of this test's own."""

    def __init__(self) -> None:
        self._entry = f"DYNOTUNE_TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self._entry.partition("=")
        self.env = {**os.environ, name: value, "PYTHONPATH": SOURCE}

    def pids(self) -> set[int]:
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(int(folder.name))
            except OSError:
                continue
        return found

    def wait_until_gone(self) -> None:
        until(lambda: not self.pids(), "all processes gone")


@pytest.fixture
def marked() -> Iterator[Marked]:
    marked = Marked()
    yield marked
    for pid in marked.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return new_run_folder(tmp_path / "runs")


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def measures(marked: Marked, run_dir: Path, cwd: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process that measures a command; it has said that the command runs."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, sandbox: str = "none") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", MEASURES, str(run_dir), str(cwd), sandbox, *command]
        process = subprocess.Popen(words, env=marked.env, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().split()[1:] in (["overlay"], ["none"])
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
