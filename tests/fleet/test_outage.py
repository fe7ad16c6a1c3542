"""A real server that goes away while two workers are in the middle of a study."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import dynotune
from dynotune.fleet import open_store

from .conftest import PASSWORD

PYTHON, DEADLINE_S = sys.executable, 240
PROGRAM = """
import os, time, dynotune
def step():
    time.sleep(0.005 if os.environ.get("A") else 0.01)
    dynotune.step()
for _ in range(100_000):
    step()
"""
OPTIONS = (
    "--study", "s", "--no-lock", "--budget", "10m", "--step-function", "dynotune.step", "--warmup", "3",
    "--steps", "20", "--margin", "0.1", "--try", "env.A=1", "--try", "env.B=1",
)  # fmt: skip


@pytest.mark.long
def test_a_study_ends_with_every_result_once_though_the_database_went_away_in_the_middle(server, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    env = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": str(Path(dynotune.__file__).parent.parent), "DYNOTUNE_STORAGE": server.url,
    }  # fmt: skip
    words = [PYTHON, "-m", "dynotune", "tune", *OPTIONS, "--run-dir", str(tmp_path / "runs")]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    workers = [
        subprocess.Popen(
            [*words, "--output", f"{number}.toml", "--", PYTHON, "train.py"],
            cwd=tmp_path, env=env, stdin=null, stdout=null, stderr=pipe, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    deadline_s = time.monotonic() + DEADLINE_S
    while not any(b'"prune"' in file.read_bytes() for file in (tmp_path / "runs").glob("*/study.json")):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    server.stop()
    before = _num_runs(tmp_path)
    while _num_runs(tmp_path) < before + 3:  # the leader goes on alone
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    server.start()
    said = [worker.communicate(timeout=DEADLINE_S)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    with open_store(server.url, pytest.fail) as store:
        study = store.study("s")
    assert study.finished and [str(one) for one in study.recipe] == ["env.A=1"]
    counted = Counter((one.phase, one.block, one.arm) for one in study.trials if one.block and not one.void)
    assert set(counted.values()) == {1}
    assert any("does not answer" in text for text in said) and PASSWORD not in "".join(said)
    assert not [
        file for file in tmp_path.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()
    ]


def _num_runs(tmp_path: Path) -> int:
    return len([*(tmp_path / "runs").glob("*/[0-9]*-*/run.json")])
