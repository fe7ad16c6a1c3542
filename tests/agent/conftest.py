"""Runs programs under the agent alone, without a launcher."""

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import dynotune
from dynotune.launch.records.process_summary import summarise
from dynotune.launch.records.reader import Records
from dynotune.launch.records.record import Record
from dynotune.launch.records.task_page import TaskPage
from dynotune.schema.run import Process

BOOTSTRAP = Path(dynotune.__file__).parent / "agent" / "bootstrap"


@dataclass
class Ran:
    """What a program printed and what its processes recorded."""

    returncode: int
    stdout: str
    stderr: str
    records: list[Record]
    launched_s: float
    processes: list[Process] = field(init=False)

    def __post_init__(self) -> None:
        self.processes = [summarise(record, self.launched_s) for record in self.records]

    @property
    def stepping(self) -> Process:
        return max(self.processes, key=lambda process: process.num_steps)


def _ran(folder: Path, start, env, plan) -> Ran:
    """What comes of `start(environment)` with a plan in a run folder inside `folder`."""
    folder = folder / f"run-{len(list(folder.glob('run-*')))}"
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps({"settings": [], **plan}))
    page = TaskPage(folder) if plan.get("live") else None
    child_env = {
        **os.environ,
        "DYNOTUNE_RUN": str(folder),
        "PYTHONPATH": str(BOOTSTRAP),
        "CUDA_VISIBLE_DEVICES": "",
        **(env or {}),
    }
    launched_s = time.perf_counter()
    done = start(child_env)
    if page is not None:
        page.close()
    return Ran(done.returncode, done.stdout, done.stderr, Records(folder).update(), launched_s)


@pytest.fixture
def run_under_agent(tmp_path: Path, target_python: str):
    """`run_under_agent(argv, env={}, **plan)`; `argv` begins after the interpreter unless `python` is
    None."""

    def run(argv, *, env=None, python=target_python, **plan) -> Ran:
        words = [*([python] if python else []), *map(str, argv)]
        how = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 240}
        return _ran(tmp_path, lambda child_env: subprocess.run(words, env=child_env, **how), env, plan)

    return run


@pytest.fixture
def fork_under_agent(tmp_path: Path, interpreters):
    """`run_under_agent` of a program whose start is not the subject: the agent meets a torch that is imported
    already.

    `compiler=False` where how the agent meets the compiler is the subject.
    """

    def run(argv, *, env=None, compiler=True, **plan) -> Ran:
        forked = interpreters["compiler" if compiler else "torch"]
        words = [str(word) for word in argv]

        def fork(child_env):
            return forked.run(
                words, cwd=tmp_path, folder=output, env=child_env, first=str(BOOTSTRAP / "sitecustomize.py")
            )

        output = tmp_path / "output"
        output.mkdir(exist_ok=True)
        return _ran(tmp_path, fork, env, plan)

    return run


@pytest.fixture
def script(tmp_path: Path):
    """Writes a script and gives its path."""

    def write(text: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
