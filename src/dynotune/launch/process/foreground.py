"""Running a command as if dynotune were not there: terminal, signals, job control, how it ended; with a record."""

import contextlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune.launch.process import environment, processes, variants
from dynotune.launch.process.launcher import Exit, start
from dynotune.launch.process.signals import FROM_OUTSIDE, SignalInbox
from dynotune.launch.records.record import Records, read_back, summarise
from dynotune.schema import document
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Run
from dynotune.schema.setting import Setting


def run_in_foreground(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, run_dir: Path | None) -> Exit:
    """Start the command on our own descriptors, in our own process group, and wait for its end.

    A signal sent to dynotune alone is handed on; one that the whole group got is not, since the command has had it.
    When the command stops (Ctrl-Z), dynotune stops too, and goes on with it. What it leaves running in the background
    after a normal end is left alone; if dynotune is killed, it all is. Main thread only, and no other thread may be
    running Python code that waits for signals.

    Raises UsageError, CannotRunHere: as `launcher.start`.
    """
    with (
        SignalInbox(FROM_OUTSIDE) as inbox,
        start(command, env=env, cwd=cwd, run_dir=run_dir, capture=False) as launched,
    ):
        poll = select.poll()
        poll.register(inbox.fileno(), select.POLLIN)
        poll.register(launched.fileno(), select.POLLIN)
        while (exit_ := launched.poll()) is None:
            if launched.take_stop() and (command_ := processes.read(launched.pid)) and command_.state in "Tt":
                os.kill(os.getpid(), signal.SIGSTOP)
            poll.poll()
            for number in inbox.take():
                launched.send_signal(number)
        return exit_


def die_by(number: int) -> None:
    """Die by the signal the command died by, leaving no second core file.

    Returns only where that is not possible (process 1 of a container): then exit with 128 + `number`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    processes.dump_no_core()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


class TransparentRun:
    """Command that runs as without dynotune; `folder` takes what is recorded of it, None for nothing.

    Running and recording are two calls: the command's exit is its own, whatever becomes of the record.
    """

    def __init__(self, command: Sequence[str], settings: Sequence[Setting], *, cwd: Path, folder: Path | None) -> None:
        self._command, self._settings = list(command), list(settings)
        self._cwd, self._folder = cwd, folder
        self._started_s, self._launched_s, self._ended_s = 0.0, 0.0, 0.0

    def run(
        self, env: Mapping[str, str], facts: Facts, *, step_function: str | None = None, watched: bool = False
    ) -> Exit:
        """Run the command to its own end. `watched`: its steps are followed while it runs, however many they are.

        Raises UsageError, CannotRunHere: it cannot be started, or not with these settings.
        """
        command, env = variants.variant(self._command, env, self._settings, self._cwd)
        child_env, planned = environment.build(self._settings, env, run_dir=self._folder, facts=facts)
        if self._folder is not None:
            plan = Plan(settings=planned, step_function=step_function, watched=watched)
            document.write(self._folder / "plan.json", plan, to_agent=True)
        self._started_s, self._launched_s = time.time(), time.perf_counter()
        exit_ = run_in_foreground(command, env=child_env, cwd=self._cwd, run_dir=self._folder)
        self._ended_s = time.perf_counter()
        return exit_

    def record(self, exit_: Exit) -> Run:
        """Record what came of the run that ended with `exit_`; written as `run.json` if there is a folder.

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
