"""What a loader's workers have made and what they still have to make, as torch's own iterators tell it."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from dynotune.agent.tasks.loader_switch import _done


class Held(Dataset):
    """Its items from the fifth on wait for the gate."""

    def __init__(self, gate):
        self.gate = gate

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index >= 4:
            self.gate.wait(60)
        return torch.tensor(index)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_batches_that_are_made_and_batches_that_are_asked_for_are_told_apart():
    gate = multiprocessing.get_context("fork").Event()
    loader = DataLoader(Held(gate), batch_size=2, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    assert _done(iterator)[1] == 4
    assert _done(iterator)[0] <= 1, "two more wait at the gate"
    gate.set()
    # The last of them is there, so the others are.
    while _done(iterator)[0] < 4:
        assert all(worker.is_alive() for worker in iterator._workers)
    assert _done(iterator) == (4, 4)


def test_a_loader_without_workers_has_nothing_to_do_or_to_give():
    iterator = iter(DataLoader(list(range(10))))
    next(iterator)
    assert _done(iterator) == (0, 0)
