"""The command line as a user has it: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = """
import argparse, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10000)
args = parser.parse_args()
{first}
torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.randn(80, 8), torch.randint(0, 2, (80,))), batch_size=8)
net = nn.Linear(8, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
{last}
"""
QUICK = ["--pairs", "2", "--warmup", "5", "--steps", "200", "--no-lock"]


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Cli:
    """Calls `dynotune` in `folder`, records in `runs`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "records" / "runs"
        self.work = folder / "work"
        self.work.mkdir()
        self.env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": ""}

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "dynotune", *map(str, words)]

    def start(self, *words: str, **options) -> subprocess.Popen:
        return subprocess.Popen(
            self.words(*words), cwd=self.work, env=self.env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options,
        )  # fmt: skip

    def __call__(self, *words: str, env: dict[str, str] | None = None, timeout: float = 240, **options) -> Done:
        done = subprocess.run(
            self.words(*words), cwd=self.work, env={**self.env, **(env or {})}, text=True, capture_output=True,
            stdin=subprocess.DEVNULL, timeout=timeout, **options,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def compare(self, *words: str, command: list[str], quick: bool = True, **options) -> Done:
        return self("compare", *words, *(QUICK if quick else []), "--run-dir", self.runs, "--", *command, **options)

    def program(self, first: str = "", last: str = "", *arguments: str) -> list[str]:
        """A training program, with code before and after its loop."""
        path = self.work / "train.py"
        path.write_text(PROGRAM.format(first=first, last=last))
        return [sys.executable, "train.py", *arguments]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)
