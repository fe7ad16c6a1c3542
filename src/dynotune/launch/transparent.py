"""`run`: a command under settings on our own descriptors, with a record beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune.launch import environment
from dynotune.launch.foreground import run_in_foreground
from dynotune.launch.launcher import Exit
from dynotune.launch.record import Records, read_back, summarise
from dynotune.schema import document
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Run
from dynotune.schema.setting import Setting


def run_transparently(
    command: Sequence[str],
    settings: Sequence[Setting],
    *,
    cwd: Path,
    env: Mapping[str, str],
    folder: Path,
    facts: Facts,
    step_on: str | None = None,
    now_s: float,
) -> tuple[Run, Exit]:
    """Run `command` to its own end; the record is in `folder`.

    Raises:
        UsageError, CannotRunHere: it cannot be started, or not with these settings.
    """
    child_env, planned = environment.build(settings, env, run_dir=folder, agent_dir=environment.AGENT, facts=facts)
    document.write(folder / "plan.json", Plan(settings=planned, step_on=step_on))
    launched_s = time.perf_counter()
    exit_ = run_in_foreground(command, env=child_env, cwd=cwd, run_dir=folder)
    processes = [summarise(record, launched_s) for record in Records(folder).update()]
    run = Run(
        id=folder.name,
        purpose="run",
        command=list(command),
        cwd=str(cwd),
        settings=list(settings),
        started_s=now_s,
        wall_s=time.perf_counter() - launched_s,
        exit_code=exit_.status,
        ended_by="command",
        processes=processes,
        readback=read_back(processes),
    )
    document.write(folder / "run.json", run)
    return run, exit_
