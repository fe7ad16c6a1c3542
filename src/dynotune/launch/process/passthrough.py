"""`run`: a command under settings on our own descriptors, with a record beside it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune.launch.process import environment, variants
from dynotune.launch.process.foreground import run_in_foreground
from dynotune.launch.process.launcher import Exit
from dynotune.launch.records.record import Records, read_back, summarise
from dynotune.schema import document
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Run
from dynotune.schema.setting import Setting


class TransparentRun:
    """A command that runs as if dynotune were not there; `folder` takes what is recorded of it, None for nothing.

    Running and recording are two calls: the command's exit is its own, whatever becomes of the record.
    """

    def __init__(self, command: Sequence[str], settings: Sequence[Setting], *, cwd: Path, folder: Path | None) -> None:
        self._command, self._settings = list(command), list(settings)
        self._cwd, self._folder = cwd, folder
        self._started_s, self._launched_s, self._ended_s = 0.0, 0.0, 0.0

    def run(self, env: Mapping[str, str], facts: Facts, *, step_function: str | None = None) -> Exit:
        """Run the command to its own end.

        Raises UsageError, CannotRunHere: it cannot be started, or not with these settings.
        """
        command, env = variants.variant(self._command, env, self._settings, self._cwd)
        child_env, planned = environment.build(
            self._settings, env, run_dir=self._folder, agent_dir=environment.AGENT, facts=facts
        )
        if self._folder is not None:
            plan = Plan(settings=planned, step_function=step_function)
            document.write(self._folder / "plan.json", plan, to_agent=True)
        self._started_s, self._launched_s = time.time(), time.perf_counter()
        exit_ = run_in_foreground(command, env=child_env, cwd=self._cwd, run_dir=self._folder)
        self._ended_s = time.perf_counter()
        return exit_

    def record(self, exit_: Exit) -> Run:
        """What came of the run that ended with `exit_`; written as `run.json` where there is a folder.

        Raises:
            RecordError: what its processes wrote cannot be read.
            CannotRunHere: it cannot be written.
        """
        folder = self._folder
        records = [] if folder is None else Records(folder).update()
        processes = [summarise(record, self._launched_s) for record in records]
        run = Run(
            id="" if folder is None else folder.name,
            purpose="run",
            command=self._command,
            cwd=str(self._cwd),
            settings=self._settings,
            started_s=self._started_s,
            wall_s=self._ended_s - self._launched_s,
            exit_code=exit_.status,
            ended_by="command",
            processes=processes,
            readback=read_back(processes, self._settings),
        )
        if folder is not None:
            document.write(folder / "run.json", run)
        return run
