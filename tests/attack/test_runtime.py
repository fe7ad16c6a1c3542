"""One of each case of the standing attack on the runtime, and what it would say of memory, hangs and
errors."""

from __future__ import annotations

import threading

from . import runtime
from .runtime import CASES, attack


def test_the_runtime_answers_right_or_says_why_not():
    counts = attack(len(CASES), seed=41)
    assert counts.failures == []
    assert counts.held.total() == len(CASES)


def test_memory_that_grows_is_seen_and_a_step_at_the_start_is_not():
    flat = [1 << 30] * 400
    assert runtime._growth(flat) == runtime._growth([1 << 29] * 90 + flat[90:]) == ""
    assert "grew from" in runtime._growth([(1 << 30) + (at << 20) for at in range(400)])


def test_a_case_that_hangs_or_raises_is_told(monkeypatch):
    monkeypatch.setattr(runtime, "LONGEST_S", 0.05)
    release = threading.Event()
    assert "hangs" in runtime._failed(lambda: release.wait(60) and None)
    release.set()
    assert "ZeroDivisionError" in runtime._failed(lambda: 1 / 0 and None)
