"""Receive signals, as bytes in a pipe, and messages of dynotune and a supervisor, as JSON lines: one poll for
both."""

from __future__ import annotations

import json
import os
import signal
import socket
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
    """Receive the given signals while the `with` block runs, without their usual effect. Ignored signals stay
    ignored.

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


class Messages:
    """JSON lines over a stream socket. `control`: this process's end of a socket pair."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._partial = b""
        self._come: list[dict[str, Any]] = []
        self.broken = False

    def fileno(self) -> int:
        return self._control.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send the message, or set `broken` if the other process has closed its end."""
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.broken = True

    def take(self) -> list[dict[str, Any]]:
        """Return the complete messages that have arrived; set `broken` if the other process has closed its
        end."""
        while self._receive(socket.MSG_DONTWAIT):
            pass
        come, self._come = self._come, []
        return come

    def wait_for_one(self, limit_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None if the other process closes its end before, or at `limit_s`.

        Omit the limit in a process that lives only as long as the other process.
        """
        self._control.settimeout(limit_s)
        try:
            while not self._come and not self.broken:
                self._receive(0)
        except TimeoutError:
            return None
        finally:
            self._control.settimeout(None)
        return self._come.pop(0) if self._come else None

    def close(self) -> None:
        self._control.close()

    def _receive(self, flags: int) -> bool:
        try:
            chunk = self._control.recv(1 << 16, flags)
        except BlockingIOError:
            return False
        except ConnectionError:
            chunk = b""
        self.broken = self.broken or not chunk
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        self._come.extend(json.loads(line) for line in lines)
        return bool(chunk)
