"""What dynotune and a supervisor say to each other: JSON, a line a message."""

from __future__ import annotations

import json
import socket
from typing import Any


class Messages:
    """JSON lines over a stream socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._received = b""
        self.broken = False

    def fileno(self) -> int:
        return self._control.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send, or find the other side gone."""
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.broken = True

    def take(self, flags: int = socket.MSG_DONTWAIT) -> list[dict[str, Any]]:
        """Complete messages that have come; sets `broken` when the other side is gone."""
        try:
            while chunk := self._control.recv(1 << 16, flags):
                self._received += chunk
                if flags == 0:
                    break
            else:
                self.broken = True
        except BlockingIOError:
            pass
        except ConnectionError:
            self.broken = True
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait_for_one(self) -> dict[str, Any] | None:
        """The first message; None when the other side went away before it was whole."""
        while not self.broken:
            if messages := self.take(flags=0):
                return messages[0]
        return None

    def close(self) -> None:
        self._control.close()
