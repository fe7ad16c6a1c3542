"""The page by which a process delays the fetches of its loaders' workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref

import pytest
import torch

from dynotune.agent.core import fetch_delay
from dynotune.agent.core.fetch_delay import DelayPage, FetchDelay

SHORT_S = 1e-4


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(index * index)


@pytest.fixture
def covered(tmp_path):
    """Fetchers look at the page of this process, in `tmp_path`, until the test ends."""
    from torch.utils.data import dataloader

    kinds, errors = dataloader._DatasetKind, []
    original = kinds.create_fetcher
    FetchDelay(str(tmp_path), lambda where, error: errors.append(error))._cover_torch(torch)
    yield DelayPage(str(tmp_path), os.getpid())
    kinds.create_fetcher = staticmethod(original)
    fetch_delay.let_go_of_pages()
    assert not errors


def test_page_counts_what_fetches_slept_when_a_delay_is_set(tmp_path):
    writer, reader = (DelayPage(str(tmp_path), 1) for _ in range(2))
    reader.hold(0)
    assert writer.read() == (0, 0.0)
    writer.set(SHORT_S)
    for worker in (0, 3, 3):
        reader.hold(worker)
    num, slept_s = writer.read()
    assert num == 3
    assert slept_s >= 3 * SHORT_S


def test_page_forgets_earlier_fetches_when_the_delay_is_set_anew(tmp_path):
    page = DelayPage(str(tmp_path), 1)
    page.set(SHORT_S)
    page.hold(0)
    page.set(0.0)
    assert page.read()[0] == 1  # still read after the delay
    page.set(SHORT_S)
    assert page.read() == (0, 0.0)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="workers are forked")
def test_fetches_are_delayed_and_batches_the_same_when_a_delay_is_set(covered, num_workers):
    def batches():
        context = "fork" if num_workers else None
        loader = torch.utils.data.DataLoader(
            Squares(), 4, num_workers=num_workers, multiprocessing_context=context
        )
        return [batch.tolist() for batch in loader]

    plain = batches()
    assert covered.read() == (0, 0.0)
    covered.set(SHORT_S)
    assert batches() == plain
    num, slept_s = covered.read()
    assert num == 3
    assert slept_s >= 3 * SHORT_S


def test_data_set_dies_with_its_fetcher_when_the_fetch_is_covered(covered):
    data = Squares()
    reference = weakref.ref(data)
    gc.disable()
    try:
        list(torch.utils.data.DataLoader(data, 4))
        del data
        assert reference() is None
    finally:
        gc.enable()
