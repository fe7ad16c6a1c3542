"""Draining a loader's iterator, and giving a batch again; without a program around it."""

from __future__ import annotations

import os
from collections import UserDict, namedtuple
from types import SimpleNamespace

import pytest
import torch

from dynotune.agent.tasks import page_cache
from dynotune.agent.tasks.isolate_loader import alias, drain, position, values

Pair = namedtuple("Pair", "first second")


def iterator_of(batches, *, num_workers=0):
    """Something like an iterator of torch's loaders, and its `__next__`."""
    made = SimpleNamespace(
        _dynotune=(None, None), _num_workers=num_workers, _num_yielded=0, _dataset_kind=0, _index_sampler=batches
    )
    source = iter(batches)
    return made, lambda _: next(source)


def test_what_was_prefetched_is_left_out_and_the_largest_batch_is_kept():
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


def test_a_batch_taken_apart_or_reshaped_in_place_is_whole_the_next_time():
    batch = {"x": torch.zeros(2, 3), "more": [torch.zeros(1), Pair(torch.ones(1), "name")], "n": 5}
    given = alias(torch, batch)
    assert given.pop("x").unsqueeze_(0).shape == (1, 2, 3)
    given["more"].clear()
    again = alias(torch, batch)
    assert again["x"].shape == (2, 3)
    assert again["x"].data_ptr() == batch["x"].data_ptr()
    assert type(again["more"][1]) is Pair
    assert again["n"] == 5


def test_containers_of_the_programs_own_are_copied_once_deep():
    batch = UserDict(x=torch.zeros(2))
    del alias(torch, batch)["x"]
    assert "x" in batch

    class Refuses:
        def __copy__(self):
            raise TypeError

    refuses = Refuses()
    assert alias(torch, refuses) is refuses


def test_a_change_of_values_in_place_shows_and_one_of_shape_does_not():
    batch = [torch.full((2,), torch.nan), {"y": torch.zeros(5000)}, torch.eye(2).to_sparse()]
    before = values(torch, batch)
    alias(torch, batch)[1]["y"].unsqueeze_(0)
    assert values(torch, batch) == before
    alias(torch, batch)[1]["y"].add_(1)
    assert values(torch, batch) != before


def test_files_of_the_working_directory_leave_the_page_cache(tmp_path, monkeypatch):
    path = tmp_path / "below" / "data.bin"
    path.parent.mkdir()
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        file.read()
    (tmp_path / "gone").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page_cache, "_open_files", lambda: iter(()))
    found = page_cache.drop()
    assert (found["num_files"], found["num_bytes"], found["num_refused"]) == (1, 1 << 20, 1)
    assert found["complete"]
    assert found["resident_bytes"] <= found["probed_bytes"] <= 1 << 20


def test_a_file_that_this_process_has_open_is_among_those_dropped(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(b"1")
    with path.open("rb"):
        assert str(path.resolve()) in list(page_cache._open_files())
