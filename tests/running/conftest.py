"""Programs that run until their test ends, and say on a pipe when they are ready to be looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

READY = "print('ready', flush=True); import sys; sys.stdin.read()"
"""A program that waits until its standard input is closed."""
DEADLINE_S = 60.0


class Program:
    """A started program. `wait` returns when it printed its line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child, self.pid = child, child.pid

    def ready(self) -> str:
        assert self.child.stdout is not None
        line = self.child.stdout.readline().strip()
        assert line.startswith("ready"), f"the program said {line!r}"
        return line.removeprefix("ready").strip()

    def end(self) -> None:
        """Kill it with its group, and take away what the kernel keeps of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.child.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """`started(code)` runs Python code, and `started(words=…)` a command; all of them end with the test."""
    programs = []

    def start(
        code: str = READY,
        *,
        words: list[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        is_ready: bool = True,
    ) -> Program:
        child = subprocess.Popen(
            words or [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path if user is None else "/",
            env={**os.environ, **(env or {})},
            user=user,
            start_new_session=True,
        )
        programs.append(program := Program(child))
        if is_ready:
            program.ready()
        return program

    yield start
    for program in programs:
        program.end()


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the locks of one test from those of the tests beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def eventually(is_so: Callable[[], bool]) -> bool:
    """Ask again until the answer is true; false after a generous deadline."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        if is_so():
            return True
        os.sched_yield()
    return False
