from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

from dynotune.agent.steps import event_hooks


class EventLog:
    grad_enabled = staticmethod(torch.is_grad_enabled)

    """What a loader's cover tells, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object, float]] = []

    def drawn(self, key, batch_size, begin_s, end_s, batch) -> None:
        self.events.append(("drawn", key, end_s - begin_s))

    def waited_before(self, key, wait_s) -> None:
        self.events.append(("before", key, wait_s))


def refuse(where: str, error: Exception) -> None:
    raise AssertionError(where) from error


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> EventLog:
    """Covers loaders for one test; each look at the clock finds it a second later."""
    return hooked(monkeypatch, refuse)


def hooked(monkeypatch: pytest.MonkeyPatch, log: Callable[[str, Exception], None]) -> EventLog:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    for cls, names in ((iterator, ("__init__", "_reset", "__next__")), (DataLoader, ("__iter__",))):
        for name in names:
            monkeypatch.setattr(cls, name, getattr(cls, name))
    ticks = iter(range(10_000))
    monkeypatch.setattr(event_hooks, "perf_counter", lambda: float(next(ticks)))
    told = EventLog()
    event_hooks.LoaderHooks(torch, told, lambda key, loader: "loader", log)
    return told


def test_making_an_iterator_and_finding_it_exhausted_are_told_beside_each_batch(told):
    assert len(list(DataLoader(torch.arange(6), batch_size=3))) == 2
    assert told.events == [
        ("before", "loader", 1.0),
        ("drawn", "loader", 1.0),
        ("drawn", "loader", 1.0),
        ("before", "loader", 1.0),
    ]


def test_workers_that_persist_begin_anew_without_a_new_iterator(told):
    loader = DataLoader(torch.arange(2), num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert len(list(loader)) == 2
    assert [event for event, _, _ in told.events] == ["before", "drawn", "drawn", "before"] * 2


def test_an_iterator_that_another_library_makes_is_left_alone(told):
    class Own(DataLoader):
        def _get_iterator(self):
            return iter([1, 2])

    assert list(Own([0])) == [1, 2]
    assert told.events == []


@pytest.mark.parametrize(
    "answer", [{}.__getitem__, lambda name: lambda: name], ids=["raises", "answers anything"]
)
def test_an_iterator_that_answers_names_by_its_own_code_is_drawn_as_without_us(monkeypatch, answer):
    class Proxy:
        def __init__(self):
            self.left = iter([1, 2])

        def __getattr__(self, name):
            return answer(name)

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.left)

    class Own(DataLoader):
        def _get_iterator(self):
            return Proxy()

    told = hooked(monkeypatch, lambda where, error: None)
    assert list(Own([0])) == [1, 2]
    assert told.events == []
