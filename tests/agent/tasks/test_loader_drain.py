"""Draining a loader's iterator, without a program around it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dynotune.agent.tasks.loader_drain import drain, position


def iterator_of(batches, *, num_workers=0):
    """Something like an iterator of torch's loaders, and its `__next__`."""
    made = SimpleNamespace(
        _dynotune=(None, None),
        _num_workers=num_workers,
        _num_yielded=0,
        _dataset_kind=0,
        _index_sampler=batches,
    )
    source = iter(batches)
    return made, lambda _: next(source)


def test_drain_leaves_out_prefetched_batches_and_keeps_the_largest():
    batches = [torch.zeros(4, 2)] * 9 + [torch.zeros(3, 2)]
    iterator, following = iterator_of(batches)
    batch, fields = drain(following, iterator, fewest=2, skip=3, begun_s=None)
    assert (fields["num_batches"], fields["num_skipped"]) == (7, 3)
    assert fields["num_samples"] == 6 * 4 + 3
    assert len(batch) == 4
    assert not fields["whole_epoch"]


def test_a_short_epoch_is_taken_whole_from_its_begin_or_not_at_all():
    batches = [torch.zeros(4, 2)] * 5
    iterator, following = iterator_of(batches)
    batch, fields = drain(following, iterator, fewest=8, skip=3, begun_s=None)
    assert fields is None
    assert batch is batches[-1]
    iterator, following = iterator_of(batches)
    _, fields = drain(following, iterator, fewest=8, skip=3, begun_s=0.0)
    assert (fields["num_batches"], fields["num_samples"], fields["num_skipped"]) == (5, 20, 0)
    assert fields["whole_epoch"]


def test_the_end_of_an_epoch_that_gave_nothing_is_the_programs():
    iterator, following = iterator_of([])
    with pytest.raises(StopIteration):
        drain(following, iterator, fewest=8, skip=0, begun_s=None)


def test_an_error_of_the_data_set_is_the_programs():
    def following(_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        drain(following, iterator_of([])[0], fewest=8, skip=0, begun_s=None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, (True, 5, 0, 8)), ({"num_workers": 6, "prefetch_factor": 3}, (True, 5, 18, 12))],
)
def test_the_position_of_an_iterator_is_read_from_torch_itself(arguments, expected):
    iterator = iter(torch.utils.data.DataLoader(torch.zeros(10, 2), batch_size=2, **arguments))
    assert position(iterator) == expected


def test_the_length_of_an_iterable_data_set_is_not_believed():
    class Stream(torch.utils.data.IterableDataset):
        def __len__(self):
            return 1000

        def __iter__(self):
            return iter(range(3))

    assert position(iter(torch.utils.data.DataLoader(Stream())))[1] is None
