"""Trainers of libraries: told once for each line of the program that makes one."""

import sys
from types import ModuleType

import pytest

from dynotune.agent.core.hooks import AfterImport
from dynotune.agent.facts.trainers import TRAINERS, Trainers


@pytest.fixture
def trainer(monkeypatch):
    """Makes a trainer of a library that stands in for `module`; returns events and the trainer's class."""

    def begin(module):
        kind, method, _ = TRAINERS[module]
        events, errors = [], []
        owner = type(kind, (), {method: lambda self, *args, **kwargs: self.__dict__.update(kwargs)})
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
        setattr(sys.modules[module], kind, owner)
        hooks = AfterImport(lambda *error: errors.append(error))
        Trainers(events.append, lambda *error: errors.append(error)).install(hooks)
        assert not errors
        return (
            events,
            lambda **kwargs: getattr(owner(), method)(**kwargs) if method != "__init__" else owner(**kwargs),
        )

    return begin


@pytest.mark.parametrize("module", list(TRAINERS))
def test_trainer_is_told_with_the_users_line_when_it_is_made(trainer, module):
    events, make = trainer(module)
    for _ in range(3):
        make(precision="bf16")
    (event,) = events
    assert event["name"] == TRAINERS[module][2]
    assert "test_trainers.py:" in event["place"]
