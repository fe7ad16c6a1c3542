"""A watcher without a terminal."""

from __future__ import annotations


class Silent:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def running(self, what: str) -> None:
        pass
