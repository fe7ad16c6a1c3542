"""Copies of a batch that is given again, and changes of it in place."""

from __future__ import annotations

from collections import UserDict, namedtuple

import torch

from dynotune.agent.tasks.replayed_batch import alias, values

Pair = namedtuple("Pair", "first second")


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
