"""One of each case of the standing attack by what comes from elsewhere, and what it would say of a signal."""

from __future__ import annotations

import os
import signal

import pytest

from .outsiders import CASES, attack, bystander


@pytest.mark.parametrize("number", [1, pytest.param(2 * len(CASES), marks=pytest.mark.long)])
def test_nothing_from_elsewhere_acts_when_it_is_read(number):
    counts = attack(number, seed=62)
    assert counts.failures == []
    assert counts.tried.total() == counts.held.total() == number


def test_a_signal_to_a_bystander_is_seen():
    with pytest.raises(AssertionError, match="it was signalled"), bystander() as process:
        os.kill(process.pid, signal.SIGTERM)
