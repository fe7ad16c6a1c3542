"""Batches by length: each sequence once, within the limits, as many for each rank, and resumable anywhere."""

import random
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from dynotune.runtime import InputError, TooLargeError
from dynotune.runtime.data import LengthBatchSampler

LENGTHS = st.lists(st.integers(0, 300), max_size=80)
HOW = st.fixed_dictionaries(
    {"batch_size": st.none() | st.integers(1, 9), "packed": st.booleans(), "shuffle": st.booleans()},
    optional={"seed": st.integers(0, 3), "max_tokens": st.integers(300, 2000)},
).filter(lambda how: how["batch_size"] or "max_tokens" in how)


def of_all_ranks(lengths, num_ranks, **how):
    return [LengthBatchSampler(lengths, rank=rank, num_ranks=num_ranks, **how) for rank in range(num_ranks)]


@given(LENGTHS, HOW, st.integers(1, 4), st.integers(0, 3))
def test_each_sequence_comes_once_an_epoch_within_the_limits_and_ranks_get_as_many_batches(
    lengths, how, ranks, epoch
):
    samplers = of_all_ranks(lengths, ranks, **how)
    for sampler in samplers:
        sampler.set_epoch(epoch)
    announced = [len(sampler) for sampler in samplers]
    batches = [list(sampler) for sampler in samplers]
    assert announced == [len(each) for each in batches]
    assert len(set(announced)) == 1
    drawn = [index for each in batches for batch in each for index in batch]
    if len(lengths) >= ranks * max(1, announced[0]):  # enough that large batches could be halved
        assert sorted(drawn) == list(range(len(lengths)))
    assert set(drawn) == set(range(len(lengths)))
    for batch in (batch for each in batches for batch in each):
        assert batch
        assert len(batch) <= (how["batch_size"] or len(lengths))
        taken = [lengths[index] for index in batch]
        assert (sum(taken) if how["packed"] else max(taken) * len(taken)) <= how.get("max_tokens", 10**9)


@given(LENGTHS, HOW, st.integers(1, 3), st.integers(0, 40))
def test_a_saved_state_goes_on_where_it_stood(lengths, how, ranks, done):
    first, second = (of_all_ranks(lengths, ranks, **how)[-1] for _ in range(2))
    first.set_epoch(2)
    whole = list(first)
    first.set_epoch(2)
    begun = iter(first)
    drawn = list(islice(begun, min(done, len(whole))))
    state = first.state_dict(num_batches=len(drawn))
    second.load_state_dict(state)
    assert drawn + list(second) == whole
    assert second.epoch == 3


@given(LENGTHS.filter(bool), st.integers(1, 6), st.integers(1, 3))
def test_with_drop_last_all_batches_are_full_and_nothing_comes_twice(lengths, size, ranks):
    drawn = [
        batch for each in of_all_ranks(lengths, ranks, batch_size=size, drop_last=True) for batch in each
    ]
    assert all(len(batch) == size for batch in drawn)
    flat = [index for batch in drawn for index in batch]
    assert len(flat) == len(set(flat)) == len(lengths) // (size * ranks) * size * ranks


def test_batches_hold_sequences_of_like_length_and_epochs_differ():
    lengths = random.Random(0).choices(range(10, 500), k=4000)
    sampler = LengthBatchSampler(lengths, max_tokens=8000)
    first, second = list(sampler), list(sampler)
    padded = sum(len(batch) * max(lengths[index] for index in batch) for batch in first)
    assert padded < 1.1 * sum(lengths)
    assert first != second
    assert sampler.epoch == 2
    again = LengthBatchSampler(lengths, max_tokens=8000)
    assert list(again) == first


def test_batches_of_one_step_cost_all_ranks_about_the_same():
    lengths = random.Random(1).choices(range(100, 500), k=3000)
    ranks = [list(sampler) for sampler in of_all_ranks(lengths, 4, batch_size=16)]
    for step in zip(*ranks, strict=True):
        costs = [len(batch) * max(lengths[index] for index in batch) for batch in step if len(batch) == 16]
        assert max(costs) <= 1.35 * min(costs)


@pytest.mark.parametrize("state", [{}, None, [], {"plan": 1}, {"plan": "x", "epoch": 0, "num_batches": 0}])
def test_a_state_is_refused_when_no_sampler_made_it(state):
    with pytest.raises(InputError, match="no state of a LengthBatchSampler"):
        LengthBatchSampler([1, 2, 3], batch_size=2).load_state_dict(state)


def test_no_sequence_gives_no_batch():
    for sampler in of_all_ranks([], 2, batch_size=4):
        assert (len(sampler), list(sampler)) == (0, [])


def test_fewer_batches_of_one_than_ranks_are_repeated_so_that_no_rank_waits():
    assert [list(sampler) for sampler in of_all_ranks([3], 3, batch_size=1)] == [[[0]]] * 3


def test_length_sampler_refuses_sequences_longer_than_the_budget():
    with pytest.raises(TooLargeError, match=r"2 sequences are longer than max_tokens=8; the longest has 12"):
        LengthBatchSampler([4, 9, 12], max_tokens=8)


@pytest.mark.parametrize("how", [{}, {"batch_size": 0}, {"max_tokens": -1}, {"batch_size": 1, "rank": 1}])
def test_length_sampler_refuses_arguments_that_make_no_batches(how):
    with pytest.raises(InputError):
        LengthBatchSampler([1, 2], **how)
    with pytest.raises(InputError):
        LengthBatchSampler([-1], batch_size=1)


def test_a_state_of_other_batches_is_refused():
    state = LengthBatchSampler([1, 2, 3], batch_size=2).state_dict()
    with pytest.raises(InputError, match="other lengths"):
        LengthBatchSampler([1, 2, 4], batch_size=2).load_state_dict(state)


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2))
def test_a_loader_with_workers_takes_it(num_workers):
    lengths = list(range(1, 40))
    data = [torch.arange(length) for length in lengths]
    sampler = LengthBatchSampler(lengths, max_tokens=120)
    loader = DataLoader(
        data, batch_sampler=sampler, num_workers=num_workers, collate_fn=lambda batch: list(map(len, batch))
    )
    for _ in range(2):
        assert sorted(length for batch in loader for length in batch) == lengths
    assert sampler.epoch == 2
