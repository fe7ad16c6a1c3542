"""How much of a batch is padding, by whatever tells it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.agent.facts.padding import Padding

LENGTHS = st.lists(st.integers(1, 12), min_size=2, max_size=16).filter(
    lambda lengths: max(lengths) - min(lengths) >= 2
)


def ids(lengths, width, *, left=False, pad=0):
    rows = torch.full((len(lengths), width), pad)
    for row, length in zip(rows, lengths, strict=True):
        row[slice(width - length, None) if left else slice(length)] = torch.arange(1, length + 1)
    return rows


def looked(*batches):
    padding = Padding()
    for batch in batches:
        padding.look(torch, batch)
    return padding.facts()


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.booleans(), st.integers(0, 3))
def test_a_mask_says_how_much_is_padding_on_either_side(lengths, left, more):
    width = max(4, max(lengths) + more)
    tokens = ids(lengths, width, left=left)
    told = looked({"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": tokens})
    assert told["by"] == "attention_mask"
    assert told["share"] == pytest.approx(1 - sum(lengths) / (len(lengths) * width))
    assert told["longest_share"] == pytest.approx(1 - sum(lengths) / (len(lengths) * max(lengths)))
    assert told["sorted_share"] <= told["longest_share"] + 1e-9


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.booleans())
def test_a_constant_tail_does_so_without_a_mask(lengths, left):
    width = max(4, *lengths)
    told = looked((ids(lengths, width, left=left), torch.ones(len(lengths))))
    if told is not None:  # where few rows are padded, nothing tells a tail from what rows end with
        assert told["share"] == pytest.approx(1 - sum(lengths) / (len(lengths) * width))
    assert told is not None or sum(length < width for length in lengths) <= len(lengths) / 2


def test_frames_of_zeros_and_a_mask_of_what_is_left_out_do_so_too():
    frames = torch.zeros(4, 10, 3)
    for row, length in zip(frames, (10, 2, 2, 6), strict=True):
        row[:length] = 1.0
    assert looked(frames)["share"] == pytest.approx(0.5)
    outside = (frames == 0).all(-1)
    assert looked({"src_key_padding_mask": outside})["share"] == pytest.approx(0.5)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_hold_none(layout):
    assert looked(torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(5, 2)], layout=layout)) is None


@pytest.mark.parametrize(
    "batch",
    [
        torch.randint(0, 9, (8, 16), generator=torch.Generator().manual_seed(0)),
        torch.rand(8, 3, 16, 16),
        torch.rand(8, 16),
        torch.zeros(8, 16, dtype=torch.long),
        torch.eye(8, dtype=torch.long),
        [torch.ones(3), "text", None],
        {"token_type_ids": ids([3, 9, 5, 2], 9), "labels": ids([3, 9, 5, 2], 9, pad=-100)},
    ],
)
def test_padding_is_not_seen_when_a_batch_has_none(batch):
    assert looked(batch, batch) is None


def test_a_few_batches_are_looked_at_and_sorting_them_is_foretold():
    rows = ids([2, 12] * 4, 12)
    told = looked(*[rows] * 200)
    assert told["num_batches"] == 8
    assert told["share"] == pytest.approx(5 / 12) and told["sorted_share"] == pytest.approx(0)
    padding = Padding()
    for _ in range(2):
        padding.look(torch, torch.rand(8, 3, 4, 4))
    assert padding.done
