"""What a loader's workers have made and what they still have to make, as torch's own iterators tell it.

These tests read private names: `Router.waiting` tells whether workers are done, and only `_done` tells how
many batches were made of those that were asked for, which tests must know to hold workers at one moment.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from dynotune.agent.sites.loader_router import _done

from ...forked import Forked


@pytest.fixture(scope="module")
def forked():
    forked = Forked("torch", "dynotune.agent.sites.loader_router")
    yield forked
    forked.end()


@pytest.fixture
def run(forked, tmp_path):
    """Runs a program's text."""

    def run(program):
        (tmp_path / "program.py").write_text(program)
        return forked.run([str(tmp_path / "program.py")], cwd=tmp_path, folder=tmp_path)

    return run


# Items from the fifth on wait for the gate. In a process of its own: workers are forked, and tests have
# threads.
HELD = """
import multiprocessing, torch
from torch.utils.data import DataLoader, Dataset
from dynotune.agent.sites.loader_router import _done
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


def test_batches_that_are_made_and_batches_that_are_asked_for_are_told_apart(run):
    done = run(HELD)
    assert done.stdout == "(4, 4)\n", done.stderr


def test_a_loader_without_workers_has_nothing_to_do_or_to_give():
    iterator = iter(DataLoader(list(range(10))))
    next(iterator)
    assert _done(iterator) == (0, 0)


def test_ready_batches_count_as_many_as_there_may_be_when_torch_does_not_tell():
    assert _done(SimpleNamespace(_num_workers=3, _prefetch_factor=4)) == (12, 12)


# Drawn from by turns, with workers that wait for the gate: what a worker has not begun is taken back and
# given again.
HELD_BACK = """
import multiprocessing, torch
from types import SimpleNamespace
from torch.utils.data import DataLoader, Dataset
from dynotune.agent.sites.loader_router import _Sources, _done
gate, begun = (multiprocessing.get_context("fork").Semaphore(0) for _ in range(2))
class Held(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        begun.release()
        assert gate.acquire(timeout=60)
        return index
def once():
    for _ in range(2):
        assert begun.acquire(timeout=60)
own = iter(DataLoader(Held(), num_workers=2, prefetch_factor=4))
sources = _Sources(own, SimpleNamespace(torch=torch), print)
other = sources._others[("num_workers", 2),] = iter(DataLoader(list(range(60, 80)), num_workers=2))
once()
sources.turn(own, (("num_workers", 2),), {}, {})
print("while the other is drawn from", sources.waiting((("num_workers", 2),))[0])
for _ in range(2):
    gate.release()
while not sources.waiting((("num_workers", 2),))[0]:
    assert all(worker.is_alive() for worker in own._workers)
print("of 8, ready", _done(own)[0], "begun since", begun.acquire(block=False))
for _ in range(200):
    gate.release()
sources.release_own()
drawn = [int(type(own).__next__(own))]  # as another task draws
assert sources.turn(own, None, {}, {}) is own
while True:
    try:
        drawn.append(int(sources.draw(type(own).__next__, own, own)))
    except StopIteration:
        break
sources._hold(own)  # which has ended
sources._release(own)
print(sorted(drawn) == list(range(80)), drawn[:60] == list(range(60)))
"""


def test_tasks_that_no_worker_has_begun_wait_for_the_loaders_next_turn(run):
    done = run(HELD_BACK)
    expected = ["while the other is drawn from False", "of 8, ready 2 begun since False", "True True"]
    assert done.stdout.splitlines() == expected, done.stderr


# The own loader has no workers; the other loader's workers have batches ready, and more to make.
DRAINED = """
import torch
from types import SimpleNamespace
from torch.utils.data import DataLoader
from dynotune.agent.sites.loader_router import Router, _Sources
own, options = iter(DataLoader(list(range(5)))), (("num_workers", 2),)
router = Router(SimpleNamespace(torch=torch))
sources = router._seen[id(own)] = _Sources(own, SimpleNamespace(torch=torch), print)
sources._others[options] = iter(DataLoader(list(range(5, 13)), num_workers=2))
draw = router.around(lambda iterator: type(iterator).__next__(iterator))
def drawn(active, num):
    router.active = active
    return [int(draw(own)) for _ in range(num)], router.num_drained
print(*drawn(options, 3))
print(*drawn(None, 5))
print(*drawn(None, 1))
print(*drawn(None, 4))
"""


def test_a_batch_that_no_other_replaces_is_counted_at_the_end_of_an_epoch(run):
    done = run(DRAINED)
    expected = ["[5, 6, 7] 0", "[0, 1, 2, 3, 4] 0", "[8] 0", "[9, 10, 11, 12] 4"]
    assert done.stdout.splitlines() == expected, done.stderr
