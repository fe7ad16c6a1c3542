"""Write the stacks of this process's threads to a file on a signal, even inside a hanging call."""

from __future__ import annotations

import faulthandler
import os
import signal

_files: list[object] = []


def listen(folder: str) -> int | None:
    """Write stacks to `stacks-PID.txt` on an unused signal.

    The result is the signal's number; None if no signal is unused.
    """
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            # A separate file from that of the parent process. It stays open for the life of the process.
            file = open(os.path.join(folder, "stacks-%d.txt" % os.getpid()), "ab")  # noqa: SIM115
            faulthandler.register(number, file)
            _files[:] = [file]
            return number
    return None
