"""Following a run folder."""

from __future__ import annotations

import math
import os

from dynotune.agent.core.writer import Writer
from dynotune.watch.follower import Follower


def test_a_process_is_called_by_its_part_in_the_first_look_that_knows_its_steps(tmp_path, monkeypatch):
    follower, called = Follower(tmp_path), []
    monkeypatch.setattr(follower.processes, "update", lambda pids, roles, *rest: called.append(roles))
    writer = Writer(str(tmp_path), {"watched": True})
    writer.event(event="cycle", begin_s=0.5, step="step")
    writer.step(1.0, 0.1, 4, 0)
    follower.update(math.inf)
    follower.close()
    assert called == [{os.getpid(): "program"}]
