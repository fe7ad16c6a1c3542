"""dynotune as a user starts it: a process of its own, on tiny programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

import dynotune
from dynotune.launch.process import origin
from dynotune.schema.comparison import Comparison

from ..fakes import of_run
from ..forked import Forked

T = TypeVar("T")
SOURCE = str(Path(dynotune.__file__).parent.parent)
AS_TYPED = str(Path(__file__).with_name("as_typed.py"))
DEADLINE_S = 120
QUICK = ("--pairs", "2", "--warmup", "3", "--steps", "20", "--no-lock")

# Without an optimizer: torch imports its compiler for the first one.
STEPS = """
import gc
gc.disable()
import time, torch
net = torch.nn.Linear(8, 8)
def step():
    net(torch.randn(4, 8)).sum().backward()
    net.zero_grad()
    time.sleep(0.01)
"""
TRAIN = STEPS + "for _ in range(100_000):\n    step()\n"
# Steps without torch, whose import is most of a small program, for tests whose subject is not the step. To be
# run with MARKED.
CALLS = """
import time, dynotune
def step():
    time.sleep(0.01)
    dynotune.step()
"""
MARKED = ("--step-function", "dynotune.step")
CALL = CALLS + "for _ in range(100_000):\n    step()\n"


def until(ask: Callable[[], T], what: str) -> T:
    """Ask until the answer is true."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline_s, f"never happened: {what}"
        time.sleep(0.02)
    return answer


class User:
    """Somebody with a folder, who types commands in it."""

    def __init__(self, tmp_path: Path, forks: Forked) -> None:
        self._forks, self._output = forks, tmp_path / "output"
        self._output.mkdir()
        self.cwd = tmp_path / "project"
        self.cwd.mkdir()
        self.runs = tmp_path / "runs"
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PYTHONPATH": SOURCE,
            "OMP_NUM_THREADS": "1",
            # Of several GPUs, a test has the one that it was started for.
            **{name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ},
        }
        self._usual = dict(self.env)

    def write(self, name: str, text: str) -> Path:
        path = self.cwd / name
        path.write_text(text)
        return path

    def start(self, *words: str, **more) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dynotune", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, **{"cwd": self.cwd, "env": self.env, "text": True} | streams | more)

    def types(self, *words: str, **more) -> subprocess.CompletedProcess[str]:
        """What comes of it, in a fork; in an interpreter of its own with `more`, or with variables of a
        test's own, which Python and libraries may read as they start."""
        if more or self.env != self._usual:
            with self.start(*words, **more) as process:
                out, err = process.communicate(timeout=DEADLINE_S)
            done = subprocess.CompletedProcess(words, process.returncode, out, err)
        else:
            done = self._forked(AS_TYPED, *words)
        assert "Traceback" not in done.stderr.replace("│ Traceback", "")
        assert "dynotune made a mistake" not in done.stderr
        return done

    def forks(self, code: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """What comes of Python code that uses dynotune, with these variables, too."""
        program = self._output / "code.py"
        program.write_text(code)
        return self._forked(str(program), env=env)

    def _forked(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self._forks.run(argv, cwd=self.cwd, folder=self._output, env=self.env | (env or {}))

    def compares(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`dynotune compare` of a few steps; `words` hold options, and the command after `--`."""
        settings = [] if any("=" in word for word in words[: words.index("--")]) else ["env.A=1"]
        return self.types("compare", *settings, "--run-dir", str(self.runs), *QUICK, *words)

    def trains(self, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Compare on the Python text `program`."""
        self.write("train.py", program)
        marked = MARKED if CALLS in program else ()
        return self.compares(*marked, *options, "--", sys.executable, "train.py")

    def comparison_folder(self) -> Path:
        (found,) = self.runs.glob("*/comparison.json")
        return found.parent

    def comparison(self) -> dict:
        return msgspec.json.decode((self.comparison_folder() / "comparison.json").read_bytes())

    def num_finished(self) -> int:
        """Pairs that were measured; on a busy machine some of them are void, and then fewer follow."""
        comparison = self.comparison()
        return len(comparison["pairs"]) + len(comparison["voided"])


def has_typed(command: Sequence[str], *, cwd: Path, runs: Path) -> None:
    """As if this user had begun a comparison on the command in the folder `cwd`, with its run folder below
    `runs`."""
    folder = runs / "begun-before"
    folder.mkdir(parents=True)
    fields = {"id": folder.name, "command": list(command), "cwd": cwd, "candidate_settings": []}
    origin.mark(folder, of_run(Comparison, **fields))


@pytest.fixture
def user(tmp_path: Path, dynotune_forks: Forked) -> User:
    return User(tmp_path, dynotune_forks)
