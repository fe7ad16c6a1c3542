"""Fixtures of the runtime's tests."""

import os

import pytest

from .delayed_streams import install


@pytest.fixture
def world(monkeypatch):
    """Delayed streams, which all that the test builds uses."""
    return install(monkeypatch)


@pytest.fixture
def in_forked_child():
    """Runs a function in a forked child; returns the name of the error it raised, or an empty one."""

    def run(work):
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            name = ""
            try:
                work()
            except BaseException as error:
                name = type(error).__name__
            os.write(writable, name.encode())
            os._exit(0)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            name = pipe.read()
        os.waitpid(child, 0)
        return name

    return run
