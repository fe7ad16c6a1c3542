"""Running a command as if dynotune were not there: terminal, signals, job control, how it ended."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune.launch.process import processes
from dynotune.launch.process.launcher import Exit, start
from dynotune.launch.process.signals import FROM_OUTSIDE, SignalInbox


def run_in_foreground(command: Sequence[str], *, env: Mapping[str, str], cwd: Path, run_dir: Path | None) -> Exit:
    """Start the command on our own descriptors, in our own process group, and wait for its end.

    A signal sent to dynotune alone is handed on; one that the whole group got is not, since the command has
    had it. When the command stops (Ctrl-Z), dynotune stops too, and goes on with it. What it leaves running
    in the background after a normal end is left alone; if dynotune is killed, it all is. Main thread only,
    and no other thread may be running Python code that waits for signals.

    Raises:
        UsageError, CannotRunHere: as `launcher.start`.
    """
    with (
        SignalInbox(FROM_OUTSIDE) as inbox,
        start(command, env=env, cwd=cwd, run_dir=run_dir, capture=False) as launched,
    ):
        poll = select.poll()
        poll.register(inbox.fileno(), select.POLLIN)
        poll.register(launched.fileno(), select.POLLIN)
        while (exit_ := launched.poll()) is None:
            if launched.take_stop():
                _stop_with(launched.pid)
            poll.poll()
            for number in inbox.take():
                launched.send_signal(number)
        return exit_


def _stop_with(pid: int) -> None:
    command = processes.read(pid)
    if command is not None and command.state in "Tt":
        os.kill(os.getpid(), signal.SIGSTOP)


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
