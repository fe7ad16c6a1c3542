"""The main thread calls what another thread asks for."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

from dynotune.agent.core.pending_call import PendingCall

pytestmark = pytest.mark.skipif(sys.version_info < (3, 10), reason="joining needs Python 3.14")


class Alarm(Exception):
    pass


def wait_for(done, *, limit_s=20.0):
    until_s = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < until_s


def asked_until(call, done):
    """Ask from another thread, once this thread is in a loop that ends when `done`."""
    ready = threading.Event()

    def ask():
        ready.wait()
        call.ask()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        ready.set()
        wait_for(done)
    finally:
        thread.join()


def test_main_thread_calls_when_another_thread_asks():
    threads = []
    call = PendingCall(lambda: threads.append(threading.get_ident()))
    for _ in range(2):
        threads.clear()
        asked_until(call, lambda: threads)
        assert threads == [threading.get_ident()]


def test_nothing_is_called_when_it_was_cancelled():
    called, after = [], []
    first, second = PendingCall(lambda: called.append(1)), PendingCall(lambda: after.append(1))
    first.cancel()
    first.ask()
    asked_until(second, lambda: after)
    assert not called


def test_program_gets_its_interrupt_when_it_came_in_the_call():
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)

    call = PendingCall(interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked_until(call, lambda: False)


def test_program_gets_its_timeout_when_its_handler_raised_in_the_call(monkeypatch):
    def ring(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        call = PendingCall(lambda: signal.raise_signal(signal.SIGALRM))
        with pytest.raises(Alarm):
            asked_until(call, lambda: False)
    finally:
        signal.signal(signal.SIGALRM, before)
