"""What an agent that leaves puts back."""

from __future__ import annotations

import gc
import weakref

import pytest

from dynotune.agent.core import covers
from dynotune.agent.core.covers import Replaced


class Base:
    def call(self) -> str:
        return "base"


class Owner(Base):
    @staticmethod
    def make() -> str:
        return "made"


@pytest.fixture
def kept(monkeypatch):
    found = Replaced()
    found.is_kept = True
    monkeypatch.setattr(covers, "replaced", found)
    return found


def test_replaced_restores_an_inherited_attribute_by_removing_its_own(kept):
    owner = type("Own", (Owner,), {})
    covers.replace(owner, "call", lambda self: "cover")
    assert kept.restore() == []
    assert "call" not in vars(owner) and owner().call() == "base"


def test_replaced_restores_a_static_method_as_one_when_it_was_covered(kept):
    owner = type("Own", (Owner,), dict(vars(Owner)))
    covers.covers(owner, "make")(lambda: "cover")
    kept.restore()
    assert isinstance(vars(owner)["make"], staticmethod)


def test_replaced_restores_the_first_value_when_covers_lie_over_covers(kept):
    owner = type("Own", (), {"value": 1})
    covers.replace(owner, "value", 2)
    covers.replace(owner, "value", 3)
    kept.restore()
    assert owner.value == 1


def test_replaced_names_an_attribute_when_the_program_has_covered_it_since(kept):
    owner = type("Own", (), {"value": 1})
    covers.replace(owner, "value", 2)
    owner.value = 4
    assert kept.restore() == ["Own.value"]
    assert owner.value == 4


def test_replaced_forgets_a_cover_when_it_was_uncovered(kept):
    owner = type("Own", (Owner,), dict(vars(Owner)))
    cover = covers.covers(owner, "make")(lambda: "cover")
    covers.uncover(owner, "make", cover)
    assert kept.restore() == [] and owner.make() == "made"


def test_replaced_keeps_no_owner_alive_when_the_program_drops_it(kept):
    owner = Owner()
    covers.replace(owner, "call", lambda: "cover")
    del owner
    gc.collect()
    assert not any(isinstance(thing, Owner) for thing in gc.get_objects())
    assert kept.restore() == []


def test_replaced_keeps_no_value_alive_when_its_owner_has_ended(kept):
    class DataSet:
        pass

    owner, data_set = Owner(), DataSet()
    covers.replace(owner, "data_set", data_set)
    held = weakref.ref(data_set)
    del owner, data_set
    assert held() is None
    assert kept.restore() == []


def test_replaced_keeps_nothing_when_the_agent_stays_until_the_end(monkeypatch):
    found = Replaced()
    monkeypatch.setattr(covers, "replaced", found)
    owner = type("Own", (), {"value": 1})
    covers.replace(owner, "value", 2)
    found.restore()
    assert owner.value == 2


class Frozen(type):
    is_frozen = False

    def __setattr__(cls, name, value):
        if Frozen.is_frozen:
            raise TypeError("frozen")
        type.__setattr__(cls, name, value)


def test_replaced_restores_the_rest_when_a_class_forbids_it(kept, monkeypatch):
    owner, frozen = type("Own", (), {"value": 1}), Frozen("Closed", (), {"value": 1})
    covers.replace(owner, "value", 2)
    covers.replace(frozen, "value", 2)
    monkeypatch.setattr(Frozen, "is_frozen", True)
    assert kept.restore() == ["Closed.value"]
    assert owner.value == 1
