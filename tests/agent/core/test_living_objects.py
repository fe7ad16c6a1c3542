"""The program's objects are found, also where it froze them."""

from __future__ import annotations

import gc
import re
import sys
import types
import weakref
from pathlib import Path

import pytest

from dynotune import agent
from dynotune.agent.core import living_objects as subject
from dynotune.agent.core.living_objects import instances, living_objects, watch_freezing

ASK = {"core/living_objects.py", "facts/garbage.py"}
"""Modules that ask the collector itself: the one that finds objects, and one that counts what collections
walk."""


class Model:
    def __init__(self):
        self.itself = self


@pytest.fixture
def errors(monkeypatch):
    """Errors of the watch, which ends with the test; nothing stays frozen."""
    monkeypatch.setattr(gc, "freeze", gc.freeze)
    monkeypatch.setattr(subject, "_frozen", [])
    kept = []
    watch_freezing(lambda where, error: kept.append(error))
    yield kept
    gc.unfreeze()


def found(kind):
    return [id(one) for one in living_objects() if type(one) is kind]


def test_living_objects_holds_each_object_once_when_some_are_frozen(errors):
    before = Model()
    gc.freeze()
    between = Model()
    gc.freeze()
    after = Model()
    assert sorted(found(Model)) == sorted(map(id, (before, between, after)))
    assert not any(type(one) is Model for one in gc.get_objects() if one is not after)
    gc.unfreeze()
    assert sorted(found(Model)) == sorted(map(id, (before, between, after)))
    assert errors == []


def test_a_frozen_object_ends_as_it_would_when_its_freezing_was_watched(errors):
    class Short:
        pass

    model = Short()
    gc.freeze()
    assert len(found(Short)) == 1
    del model
    assert found(Short) == []


def test_freeze_looks_like_the_original_when_it_is_watched(errors):
    assert gc.freeze.__name__ == "freeze" and gc.freeze() is None
    with pytest.raises(TypeError):
        gc.freeze(1)


PROGRAM = """
import gc
def step(): pass
class Model: pass
model = Model()
gc.freeze()
from _dynotune_agent.core.living_objects import living_objects
found = list(map(id, living_objects()))
print(id(step) in found, id(model) in found)
"""


@pytest.mark.parametrize(("plan", "seen"), [({"observe": True}, True), ({"live": True}, True), ({}, False)])
def test_frozen_objects_of_a_program_are_found_when_it_is_measured(run_under_agent, tmp_path, plan, seen):
    (tmp_path / "frozen.py").write_text(PROGRAM)
    ran = run_under_agent([tmp_path / "frozen.py"], **plan)
    assert ran.stdout == f"{seen} {seen}\n"


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in Path(agent.__file__).parent.rglob("*.py")
        if str(path.relative_to(Path(agent.__file__).parent)) not in ASK
    ],
    ids=lambda path: str(path.relative_to(Path(agent.__file__).parent)),
)
def test_the_agent_finds_objects_in_one_way_when_it_needs_them(path):
    assert not re.search(r"gc\.get_(objects|referrers)\(", path.read_text())


def test_frozen_objects_are_noted_when_they_were_frozen_before_the_agent_came(monkeypatch):
    monkeypatch.setattr(subject, "_frozen", [])
    model = Model()
    gc.freeze()
    try:
        assert found(Model) == []
        subject.note_frozen(lambda: None)
        assert found(Model) == [id(model)]
    finally:
        gc.unfreeze()


class Unhashable(type):
    __hash__ = None


def test_instances_are_those_of_classes_and_below_when_types_are_odd():
    class Own(Model):
        pass

    class Below(Own):
        pass

    class Odd(metaclass=Unhashable):
        pass

    class Liar:
        __class__ = Own

    kept = Own(), Below(), Odd(), Liar()
    assert {id(one) for one in instances(Own, Odd)} == set(map(id, kept[:3]))


def test_instances_holds_frozen_objects_once_when_they_were_noted(errors):
    class Own(Model):
        pass

    model = Own()
    gc.freeze()
    assert [id(one) for one in instances(Own)] == [id(model)]
    gc.unfreeze()
    assert [id(one) for one in instances(Own)] == [id(model)]


def test_other_objects_are_not_held_when_instances_are_sought(monkeypatch):
    held = []

    class Kind:
        pass

    class Asked(type):
        def __subclasscheck__(cls, other):
            held.append(reference() is not None)
            return False

    class Wanted(metaclass=Asked):
        pass

    things = [Kind()]
    reference, listed = weakref.ref(things[0]), gc.get_objects

    def dropped_after():
        found = listed()
        things.clear()
        return found

    monkeypatch.setattr(gc, "get_objects", dropped_after)
    assert instances(Wanted) == [] and held and not any(held)


def test_no_module_is_loaded_when_variables_are_listed(monkeypatch):
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            pytest.fail(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    assert any(
        "test_no_module_is_loaded_when_variables_are_listed" in one
        for one in subject._variables()
        if type(one) is dict
    )


def test_no_tensor_is_held_when_frozen_objects_are_sought(monkeypatch):
    class Tensor:
        pass

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    found = list(subject._reachable([Tensor(), [Tensor(), Model()]], lambda: None))
    assert [type(one) for one in found][:2] == [list, Model]
    assert not any(type(one) is Tensor for one in found)
