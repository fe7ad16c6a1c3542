"""A watcher without a terminal."""

from __future__ import annotations

from pathlib import Path


class Silent:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def begun(self, folder: Path) -> None: ...

    def running(self, what: str, *, left_s: float | None = None) -> None:
        pass
