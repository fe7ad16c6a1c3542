"""Exchange messages between dynotune and a supervisor: JSON, one line for each message."""

import json
import socket
from typing import Any


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
        """Return the complete messages that have arrived; set `broken` if the other process has closed its end."""
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
