"""The processor time of Python's garbage collections."""

from __future__ import annotations

import pytest

from dynotune.agent.facts import garbage


def test_what_a_collection_waits_for_is_not_its_own_time(monkeypatch):
    clock = iter([1.0, 1.002])
    monkeypatch.setattr(garbage, "thread_time", lambda: next(clock))
    collections = garbage.Garbage()
    collections._called("start", {})
    collections._called("stop", {"generation": 0})
    assert collections.facts()["total_s"] == pytest.approx(0.002)
    assert collections.flag()
