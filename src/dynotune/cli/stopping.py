"""End on SIGTERM as on Ctrl-C: what was measured is kept, and the line that goes on is said.

Schedulers, `timeout` and CI end a command by SIGTERM. Without a handler, Python ends at once and says
nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
TRANSPARENT = ("run", "watch", "mcp")
"""Subcommands that hand signals to the user's command, or end by themselves."""


class Stop:
    """How this dynotune was stopped.

    Attributes:
        by_term: whether SIGTERM came.
        is_said: whether the line that goes on was said.
        is_abrupt: whether this process ends without exit functions, since a package of the user's that got no
            answer would wait in them.
    """

    by_term = False
    is_said = False
    is_abrupt = False


stop = Stop()


@contextlib.contextmanager
def like_ctrl_c(subcommand: str) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGTERM while the block runs; a second one ends at once."""
    stop.by_term = stop.is_said = stop.is_abrupt = False
    if subcommand in TRANSPARENT or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.by_term = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say_stopped() -> None:
    """Say that the command was stopped, unless the line that goes on says so."""
    if stop.is_said:
        return
    with contextlib.suppress(OSError):
        os.write(2, b"Stopped.\n")
