"""A program's optimizers, loaders and models are found without a list of all objects."""

from __future__ import annotations

import gc
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

from dynotune.agent.core.pieces import Pieces  # noqa: E402
from dynotune.agent.facts.living import Living  # noqa: E402


@pytest.fixture(autouse=True)
def all_are_followed(monkeypatch):
    """Beside these objects, the running functions of pytest hold all tests of a session."""
    monkeypatch.setattr("dynotune.agent.facts.living.MOST_OBJECTS", sys.maxsize)


@pytest.fixture
def program(monkeypatch):
    """Variables of the program's main module."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return vars(module)


def living() -> Living:
    """Look from a thread beside this one, as the agent does."""
    found: list[Living] = []
    thread = threading.Thread(target=lambda: found.append(Living(torch, lambda: None)))
    thread.start()
    thread.join()
    return found[0]


def training():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    loader = torch.utils.data.DataLoader(torch.zeros(8, 2), batch_size=2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.loader = training()
        self.itself = self

    def step(self):
        return living()


def enclosed():
    model, optimizer, loader = training()

    def step():
        return model, optimizer, loader

    return step


def test_objects_are_found_when_running_functions_hold_them():
    model, optimizer, loader = training()
    found = living()
    assert model in found.roots and optimizer in found.optimizers
    assert model[0] not in found.roots
    iterator = iter(loader)
    assert found.loader_of(iterator) is loader


@pytest.mark.parametrize("holder", [Trainer, enclosed, lambda: [{"all": training()}]])
def test_objects_are_found_when_a_module_of_the_program_holds_them(program, holder):
    program["holder"] = holder()
    found = living()
    assert any(len(list(root.children())) == 2 for root in found.roots)
    assert len(list(found.optimizers)) == 1


def test_objects_are_found_when_they_are_frozen(program):
    program["trainer"] = trainer = Trainer()
    gc.freeze()
    try:
        assert trainer.optimizer in living().optimizers
    finally:
        gc.unfreeze()


def test_weights_and_iterators_are_not_held_when_objects_are_sought(program):
    model, optimizer, loader = training()
    program["all"] = [model, optimizer, loader, iter(loader), model[0].weight]
    held: set[type] = set()

    def pause():
        frame = sys._getframe(1)
        held.add(type(frame.f_locals["thing"]))

    thread = threading.Thread(target=lambda: Living(torch, pause))
    thread.start()
    thread.join()
    assert torch.nn.Linear in held
    never = torch.Tensor, torch.utils.data.dataloader._BaseDataLoaderIter
    assert not [kind for kind in held if issubclass(kind, never)]


def test_program_runs_between_pieces_when_a_piece_is_long_enough(monkeypatch):
    now, slept = [0.0], []
    monkeypatch.setattr("dynotune.agent.core.pieces.perf_counter", lambda: now[0])
    monkeypatch.setattr("dynotune.agent.core.pieces.sleep", slept.append)
    pieces = Pieces()
    for now[0] in (0.001, 0.003, 0.004, 0.0052):
        pieces.pause()
    assert len(slept) == 2
