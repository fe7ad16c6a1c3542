"""Tell an agent that came late when a process begins as a fork of the program.

Python has no way to take a handler of forks back, so the functions themselves are covered.
"""

from __future__ import annotations

import os

from .covers import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Forks:
    """Calls `in_child` in each new process that is a fork of this one; it must not raise, and may be
    replaced."""

    def __init__(self, in_child: Callable[[], object]) -> None:
        self.in_child = in_child
        original, original_pty = os.fork, os.forkpty

        @covers(os, "fork")
        def fork() -> int:
            pid = original()
            if not pid:
                self.in_child()
            return pid

        @covers(os, "forkpty")
        def forkpty() -> tuple[int, int]:
            pid, descriptor = original_pty()
            if not pid:
                self.in_child()
            return pid, descriptor
