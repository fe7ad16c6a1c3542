"""The function whose return ends a step, whatever kind of function it is."""

import sys
from types import ModuleType

import pytest

from dynotune.agent.core.hooks import AfterImport
from dynotune.agent.steps.marker import wrap_function

SOURCE = """
class Base:
    def method(self, x):
        return self, x
    @classmethod
    def of_class(cls, x):
        return cls, x
    @staticmethod
    def of_none(x):
        return x
class Engine(Base):
    pass
"""


@pytest.fixture
def engine_room(monkeypatch):
    module = ModuleType("engine_room")
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, "engine_room", module)
    return module


@pytest.fixture
def marks(engine_room):
    """Wraps a function of engine_room; gives the list that its returns grow."""

    def wrap(path):
        seen, errors = [], []
        hooks = AfterImport(lambda where, error: errors.append(error))
        wrap_function(f"engine_room:{path}", hooks, lambda begin_s: seen.append(path), hooks._log)
        assert errors == []
        return seen

    return wrap


@pytest.mark.parametrize("owner", ["Base", "Engine"])
def test_marks_the_return_of_a_method_own_or_inherited(owner, engine_room, marks):
    seen = marks(f"{owner}.method")
    engine = getattr(engine_room, owner)()
    assert engine.method(3) == (engine, 3)
    assert len(seen) == 1


@pytest.mark.parametrize("owner", ["Base", "Engine"])
def test_marks_the_return_of_a_class_method(owner, engine_room, marks):
    seen = marks(f"{owner}.of_class")
    assert getattr(engine_room, owner).of_class(3) == (getattr(engine_room, owner), 3)
    assert getattr(engine_room, owner)().of_class(3) == (getattr(engine_room, owner), 3)
    assert len(seen) == 2


@pytest.mark.parametrize("owner", ["Base", "Engine"])
def test_marks_the_return_of_a_static_method(owner, engine_room, marks):
    seen = marks(f"{owner}.of_none")
    assert getattr(engine_room, owner).of_none(3) == 3
    assert getattr(engine_room, owner)().of_none(x=3) == 3
    assert len(seen) == 2
