"""Run a command as if dynotune were absent (terminal, signals, job control, exit status), and keep a
record."""

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
from dynotune.launch.process.inboxes import FROM_OUTSIDE, SignalInbox
from dynotune.launch.process.launcher import Exit, start
from dynotune.launch.records.process_summary import read_back, summarise
from dynotune.launch.records.reader import Records
from dynotune.schema import document
from dynotune.schema.facts import Facts
from dynotune.schema.run import Plan, Run
from dynotune.schema.setting import Setting


def run_in_foreground(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, run_dir: Path | None
) -> Exit:
    """Start the command with dynotune's own descriptors and process group, and wait for its end.

    A signal sent to dynotune alone is forwarded. A signal to the whole process group is not forwarded,
    because the command has received it. When the command stops (Ctrl-Z), dynotune stops and continues with
    the command. After a normal end, background processes of the command go on; if dynotune is killed, all of
    the command's processes are ended. Call this on the main thread only, while no other thread runs Python
    code that waits for signals.

    Raises UsageError, CannotRunHere: as for `launcher.start`.
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
    """End dynotune by the signal that ended the command, without a second core file.

    Return if no signal can end dynotune (process 1 of a container); the caller then exits with 128 +
    `number`.
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
    """Run a command as the command runs without dynotune; the record goes to `folder`, None keeps no record.

    Running and recording are separate calls, so that a failure to record does not change the command's exit
    status.
    """

    def __init__(
        self, command: Sequence[str], settings: Sequence[Setting], *, cwd: Path, folder: Path | None
    ) -> None:
        self._command, self._settings = list(command), list(settings)
        self._cwd, self._folder = cwd, folder
        self._started_s, self._launched_s, self._ended_s = 0.0, 0.0, 0.0

    def run(
        self,
        env: Mapping[str, str],
        facts: Facts,
        *,
        step_function: str | None = None,
        watched: bool = False,
        account: bool = False,
    ) -> Exit:
        """Run the command until it ends.

        Args:
            watched: whether to read the record of all steps while the command runs.
            account: whether to record what an account of the whole run needs.

        Raises UsageError, CannotRunHere: the command cannot be started, or cannot be started with the run's
        settings.
        """
        command, env = variants.variant(self._command, env, self._settings, self._cwd)
        child_env, planned = environment.build(self._settings, env, run_dir=self._folder, facts=facts)
        if self._folder is not None:
            plan = Plan(settings=planned, step_function=step_function, watched=watched, account=account)
            document.write(self._folder / "plan.json", plan, to_agent=True)
        self._started_s, self._launched_s = time.time(), time.perf_counter()
        exit_ = run_in_foreground(command, env=child_env, cwd=self._cwd, run_dir=self._folder)
        self._ended_s = time.perf_counter()
        return exit_

    @property
    def launched_s(self) -> float:
        """Return the time of the launch (CLOCK_MONOTONIC)."""
        return self._launched_s

    def record(self, exit_: Exit) -> Run:
        """Summarise the run that ended with `exit_`, and write `run.json` if the run has a folder.

        Raises:
            RecordError: a record of the run's processes cannot be read.
            CannotRunHere: `run.json` cannot be written.
        """
        folder = self._folder
        records = [] if folder is None else Records(folder, launched_s=self._launched_s).update()
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
