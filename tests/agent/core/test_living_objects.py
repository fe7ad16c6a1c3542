"""The program's objects are found, also where it froze them."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest

from dynotune import agent
from dynotune.agent.core import living_objects as subject
from dynotune.agent.core.living_objects import living_objects, watch_freezing

ASK = {"core/living_objects.py", "facts/garbage.py", "facts/living.py"}
"""Modules that ask the collector itself: the one that finds objects, one that counts what collections walk,
and one that looks into a program which may have frozen its objects before the agent came."""


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
        subject.note_frozen()
        assert found(Model) == [id(model)]
    finally:
        gc.unfreeze()
