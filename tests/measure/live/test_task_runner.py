"""One live run after another of one command: where they work is said before anything comes of them."""

from __future__ import annotations

import os
import sys

import pytest

from dynotune.launch.process import sandbox as views
from dynotune.measure.live import TaskRunner
from dynotune.schema.run import RunSpec
from lab.silent import Silent

COMMAND = [sys.executable, "-c", "import sys; sys.exit('it fails at once')"]


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        (True, ["Runs work in your folder itself. There is no copy-on-write view of it: trying it: no."]),
        (False, []),
    ],
)
def test_runs_in_the_users_folder_itself_are_said_when_the_first_begins(sandbox, said, monkeypatch, tmp_path):
    monkeypatch.setattr(views, "_find_place", lambda *args: "trying it: no")
    (tmp_path / "project").mkdir()
    watcher, base = Silent(), tmp_path / "runs"
    run = RunSpec(
        command=COMMAND,
        cwd=tmp_path / "project",
        env=dict(os.environ),
        base=base,
        lock=False,
        sandbox=sandbox,
    )
    with TaskRunner(run, watcher, facts={}, label="the run") as runner:
        runner.start()
        assert watcher.warned == said
        runner.start()
    assert watcher.warned == said
