"""Turn signals into bytes in a pipe, so that one poll waits for signals and for all other events."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType
from typing import Any

# Signals that come from outside. A process raises the other signals itself, or cannot catch them.
FROM_OUTSIDE = frozenset(
    signal.valid_signals()
    - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGXCPU}
    - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)


class SignalInbox:
    """Receive the given signals while the `with` block runs, without their usual effect. Ignored signals stay ignored.

    Use a SignalInbox on the main thread only, like Python's own signal handlers.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._signals = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
        self._found: dict[int, Any] = {}

    def __enter__(self) -> SignalInbox:
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._found_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in self._signals:
            self._found[number] = signal.signal(number, _arrive)
        return self

    def fileno(self) -> int:
        return self._read_end

    def take(self) -> list[int]:
        """Return the numbers of the signals that arrived since the last call, in order."""
        try:
            return list(os.read(self._read_end, 4096))
        except BlockingIOError:
            return []

    def __exit__(self, *error: object) -> None:
        for number, handler in self._found.items():
            # None: C code had set the handler, and Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._found_wakeup)
        os.close(self._read_end)
        os.close(self._write_end)


def _arrive(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python itself writes the signal's number to the wake-up descriptor."""
