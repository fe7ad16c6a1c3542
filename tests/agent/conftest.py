"""Runs programs under the agent alone, without a launcher."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import dynotune
from dynotune.launch.record import Record, Records, summarise
from dynotune.schema.run import Process

AGENT = Path(dynotune.__file__).parent / "agent"


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


@pytest.fixture
def run_under_agent(tmp_path: Path):
    """`run_under_agent(argv, env={}, **plan)`; `argv` begins after the interpreter unless `python` is None."""

    def run(argv, *, env=None, python=sys.executable, **plan) -> Ran:
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps({"settings": [], **plan}))
        child_env = {
            **os.environ,
            "DYNOTUNE_RUN": str(folder),
            "PYTHONPATH": str(AGENT / "bootstrap"),
            "CUDA_VISIBLE_DEVICES": "",
            **(env or {}),
        }
        launched_s = time.perf_counter()
        done = subprocess.run(
            [*([python] if python else []), *map(str, argv)],
            env=child_env, capture_output=True, text=True, cwd=tmp_path, timeout=240,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, Records(folder).update(), launched_s)

    return run


@pytest.fixture
def script(tmp_path: Path):
    """Writes a script and gives its path."""

    def write(text: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
