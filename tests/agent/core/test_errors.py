"""Whose an exception is that is raised while the agent is at work."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from dynotune.agent.core.errors import MOST, ErrorLog


class Stopped(Exception):
    """What a program's handler raises."""


def raises(word: str, number: int, frame: object) -> None:
    raise Stopped(word)


class Handler:
    def __call__(self, number: int, frame: object) -> None:
        raise Stopped("object")

    def method(self, number: int, frame: object) -> None:
        raise Stopped("method")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


def at_work(log: ErrorLog) -> None:
    """As the agent guards its own work: a signal comes in the middle of it."""
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        for _ in range(1000):  # a handler runs between two instructions
            pass
    except Exception as error:
        log("window", error)


@pytest.mark.parametrize(
    "handler",
    [functools.partial(raises, "partial"), lambda number, frame: raises("plain", number, frame), Handler(),
     Handler().method],
    ids=["partial", "function", "object", "method"],
)  # fmt: skip
def test_exceptions_of_a_programs_signal_handler_reach_the_program_when_raised_inside_the_agent(
    handler: Callable[[int, object], None],
) -> None:
    written: list[dict[str, object]] = []
    signal.signal(signal.SIGUSR2, handler)
    with pytest.raises(Stopped):
        at_work(ErrorLog(written.append))
    assert written == []


def test_a_mistake_of_the_agents_own_is_written_down_and_goes_no_further() -> None:
    written: list[dict[str, object]] = []
    signal.signal(signal.SIGUSR2, Handler())
    log = ErrorLog(written.append)
    for _ in range(2 * MOST):
        try:
            {}["missing"]
        except Exception as error:
            log("steps", error)
    assert written == [{"event": "error", "where": "steps", "error": "KeyError: 'missing'"}] * MOST


def test_the_default_handlers_claim_no_mistake() -> None:
    written: list[dict[str, object]] = []
    log = ErrorLog(written.append)
    try:
        signal.Handlers(12345)
    except Exception as error:
        log("signals", error)
    assert len(written) == 1
