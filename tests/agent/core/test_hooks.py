"""Waiting for an import without being seen, and without standing in its way."""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from dynotune.agent.core.hooks import AfterImport


class OneLoader:
    """A finder whose modules share one loader and whose specs are made once, as bundlers and import hooks
    do."""

    def __init__(self, *names):
        self.specs = {name: ModuleSpec(name, self) for name in names}

    def find_spec(self, name, path=None, target=None):
        return self.specs.get(name)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.ready = True


class Delegating:
    """A finder that asks all the others, as import hooks do."""

    def find_spec(self, name, path=None, target=None):
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None


@pytest.fixture
def hooks(monkeypatch):
    """AfterImport before a finder of two modules that do not exist elsewhere; `errors` holds what it logs."""
    hooks = AfterImport(lambda where, error: hooks.errors.append((where, error)))
    hooks.errors = []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, OneLoader("dyno_one", "dyno_two")])
    hooks.install()
    yield hooks
    sys.modules.pop("dyno_one", None)
    sys.modules.pop("dyno_two", None)


def test_calls_back_once_when_the_module_is_ready(hooks):
    seen = []
    hooks.call("dyno_one", lambda module: seen.append((module.__name__, module.ready)))
    importlib.import_module("dyno_one")
    importlib.import_module("dyno_two")
    assert seen == [("dyno_one", True)]
    hooks.call("dyno_one", seen.append)
    assert seen[1] is sys.modules["dyno_one"]
    assert hooks.errors == []


def test_a_module_that_was_looked_for_before_is_still_imported(hooks):
    """Finding it twice through one loader covered that loader twice; the second uncovering raised in the
    import."""
    seen = []
    hooks.call("dyno_one", seen.append)
    assert importlib.util.find_spec("dyno_one") is not None
    assert importlib.import_module("dyno_one").ready
    assert seen == [sys.modules["dyno_one"]]
    assert "exec_module" not in vars(sys.modules["dyno_one"].__loader__)


def test_a_module_of_the_same_loader_is_not_taken_for_the_one_waited_for(hooks):
    seen = []
    hooks.call("dyno_one", seen.append)
    importlib.util.find_spec("dyno_one")
    assert importlib.import_module("dyno_two").ready
    assert seen == []
    importlib.import_module("dyno_one")
    assert [module.__name__ for module in seen] == ["dyno_one"]


def test_another_finder_that_asks_the_others_is_not_asked_for_ever(hooks):
    seen = []
    hooks.call("dyno_one", seen.append)
    sys.meta_path.insert(0, Delegating())
    assert importlib.import_module("dyno_one").ready
    assert seen == [sys.modules["dyno_one"]]


def test_an_import_that_fails_is_waited_for_again(hooks, monkeypatch):
    seen = []
    hooks.call("dyno_one", seen.append)

    def fail(self, module):
        raise ImportError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(OneLoader, "exec_module", fail)
        with pytest.raises(ImportError, match="not today"):
            importlib.import_module("dyno_one")
    assert importlib.import_module("dyno_one").ready
    assert seen == [sys.modules["dyno_one"]]


def test_a_mistake_of_the_callback_is_logged_and_the_import_stands(hooks):
    hooks.call("dyno_one", lambda module: 1 / 0)
    assert importlib.import_module("dyno_one").ready
    assert [where for where, _ in hooks.errors] == ["after import of dyno_one"]
