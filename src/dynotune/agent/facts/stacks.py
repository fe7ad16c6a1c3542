"""A signal by which a watched process writes where its threads are, from within a call that hangs, too."""

from __future__ import annotations

import faulthandler
import os
import signal

_files: list[object] = []


def listen(folder: str) -> int | None:
    """Answer a signal that nobody uses in `stacks-PID.txt`, and return its number; None where there is none."""
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) is signal.SIG_DFL:
            # Not the file of the process that this one was forked from. It is open as long as the process lives.
            file = open(os.path.join(folder, "stacks-%d.txt" % os.getpid()), "ab")  # noqa: SIM115
            faulthandler.register(number, file)
            _files[:] = [file]
            return number
    return None
