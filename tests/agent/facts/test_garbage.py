"""The processor time of Python's garbage collections."""

from __future__ import annotations

import gc

import pytest

from dynotune.agent.facts import garbage


def test_garbage_leaves_out_time_that_a_collection_waits(monkeypatch):
    clock = iter([1.0, 1.002])
    monkeypatch.setattr(garbage, "thread_time", lambda: next(clock))
    collections = garbage.Garbage()
    collections._called("start", {})
    collections._called("stop", {"generation": 0})
    assert collections.facts()["total_s"] == pytest.approx(0.002)
    assert collections.flag()


@pytest.fixture
def counted():
    collections = garbage.Garbage()
    collections.install()
    yield collections
    collections.remove()


def test_line_that_asks_for_collections_is_named_with_their_time(counted):
    def tidy():
        gc.collect()

    tidy()
    facts = counted.facts()
    assert facts["asked_at"].endswith(": tidy") and "test_garbage.py(" in facts["asked_at"]
    assert 0 < facts["asked_s"] <= facts["total_s"]


def test_no_line_is_named_when_python_begins_a_collection_by_itself(counted):
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        kept = [[index] for index in range(100)]
    finally:
        gc.set_threshold(*before)
    facts = counted.facts()
    assert len(kept) == 100 and facts["num"] and (facts["asked_s"], facts["asked_at"]) == (0, "")


def test_places_of_an_earlier_window_are_forgotten(counted):
    gc.collect()
    counted.reset()
    assert counted.facts()["asked_at"] == ""
