"""End what sends a run's numbers elsewhere: all at once, and within one deadline."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

LONGEST_S = 15.0
"""How long trackers and collectors may take together after the command's end."""


class Sender(Protocol):
    """A display that sends values to another program. `name`: what the user called it."""

    name: str

    def close(self) -> str:
        """Send the last values, however long that takes. Return what did not arrive; "" if all did."""


def end(senders: Sequence[Sender], say: Callable[[str], None], within_s: float = LONGEST_S) -> bool:
    """Close the senders, and say which did not take their values. Ctrl-C ends the wait.

    Returns whether all have ended. Otherwise threads of this process still wait for an answer, and functions
    that packages registered with `atexit` would wait, too.
    """
    said: dict[int, str] = {}

    def close(at: int) -> None:
        try:
            said[at] = senders[at].close()
        except Exception as error:  # the packages are not ours
            said[at] = f"the last values did not arrive: {error}"

    threads = [threading.Thread(target=close, args=(at,), daemon=True) for at in range(len(senders))]
    why = f"no answer within {within_s:.0f} s"
    deadline_s = time.monotonic() + within_s
    with _interruptible():
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        except KeyboardInterrupt:
            why = "Ctrl-C ended the wait for an answer"
    for at, sender in enumerate(senders):
        text = said.get(at, f"{why}, so the last values may be missing")
        if text:
            with suppress(OSError):
                say(f"{sender.name}: {text}")
    return len(said) == len(senders)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt within the block: while a command runs, Ctrl-C is the command's."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
