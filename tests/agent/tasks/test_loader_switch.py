"""What a loader's workers have made and what they still have to make, as torch's own iterators tell it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from torch.utils.data import DataLoader

from dynotune.agent.tasks.loader_switch import _done

# Items from the fifth on wait for the gate. In a process of its own: workers are forked, and tests have threads.
HELD = """
import multiprocessing, torch
from torch.utils.data import DataLoader, Dataset
from dynotune.agent.tasks.loader_switch import _done
gate = multiprocessing.get_context("fork").Event()
class Held(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        if index >= 4:
            gate.wait(60)
        return torch.tensor(index)
iterator = iter(DataLoader(Held(), batch_size=2, num_workers=2, prefetch_factor=2))
next(iterator)
ready, asked = _done(iterator)
assert asked == 4 and ready <= 1, (ready, asked)
gate.set()
while _done(iterator)[0] < 4:
    assert all(worker.is_alive() for worker in iterator._workers)
print(_done(iterator))
"""


def test_batches_that_are_made_and_batches_that_are_asked_for_are_told_apart():
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "(4, 4)\n", done.stderr


def test_a_loader_without_workers_has_nothing_to_do_or_to_give():
    iterator = iter(DataLoader(list(range(10))))
    next(iterator)
    assert _done(iterator) == (0, 0)


def test_where_torch_does_not_tell_as_many_batches_count_as_ready_as_there_may_be():
    assert _done(SimpleNamespace(_num_workers=3, _prefetch_factor=4)) == (12, 12)
