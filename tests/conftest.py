"""What holds for every test: programs that run side by side leave each other the cores."""

import os
import signal
from collections.abc import Iterator

import pytest

from .forked import Forked

# Threads of OpenMP wait for work by spinning, which takes the core of whoever runs beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Shells start their background jobs with the keyboard's signals ignored, and nohup what it runs with hangups ignored;
# all programs that tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def interpreters() -> Iterator[dict[str, Forked]]:
    """One that has imported torch, and one that has imported its compiler too, as the first optimizer makes it do."""
    started = {"torch": Forked("torch"), "compiler": Forked("torch", "torch._dynamo")}
    yield started
    for forked in started.values():
        forked.end()
