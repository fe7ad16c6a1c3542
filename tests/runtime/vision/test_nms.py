"""Suppression in rounds against greedy suppression box by box."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.runtime.vision.nms import (
    FINITE,
    NUM_CANDIDATES,
    NUM_KEPT,
    SETTLED,
    PostProcess,
    nms,
    overlaps,
    suppress,
)

from ..yolo_like import greedy


@st.composite
def crowds(draw):
    """Boxes on a coarse grid with coarse scores: overlaps and ties abound."""
    num = draw(st.integers(0, 40))
    cell = st.integers(0, 12)
    boxes = [
        (x, y, x + draw(st.integers(0, 8)), y + draw(st.integers(0, 8)))
        for x, y in draw(st.lists(st.tuples(cell, cell), min_size=num, max_size=num))
    ]
    scores = draw(st.lists(st.sampled_from([0.3, 0.5, 0.5001, 0.9]), min_size=num, max_size=num))
    classes = draw(st.lists(st.integers(0, 2), min_size=num, max_size=num))
    return np.array(boxes, np.float32).reshape(-1, 4), scores, classes


@settings(max_examples=150, deadline=None)
@given(crowds(), st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0]), st.booleans())
def test_the_boxes_kept_are_those_of_greedy_suppression(crowd, iou, by_class):
    boxes, scores, classes = crowd
    given_classes = classes if by_class else None
    found = nms(
        torch.from_numpy(boxes),
        torch.tensor(scores, dtype=torch.float32),
        iou,
        classes=torch.tensor(classes, dtype=torch.int64) if by_class else None,
    )
    assert found.tolist() == greedy(boxes, scores, iou, given_classes)


def chain(num):
    """Each box suppresses only the next: settled from the best on, one box a round."""
    left = torch.arange(num, dtype=torch.float32) * 20
    return torch.stack([left, torch.zeros(num), left + 100, torch.full((num,), 100.0)], 1)


def test_suppression_says_that_it_is_not_settled_until_it_is_exact():
    beats = overlaps(chain(60)[None], None, 0.6, torch.float32)
    valid = torch.ones(1, 60)
    exact = greedy(chain(60), torch.arange(60, 0, -1), 0.6)
    assert exact == list(range(0, 60, 2))
    for rounds in range(1, 80):
        kept, settled = suppress(beats, valid, rounds)
        right = kept[0].nonzero().flatten().tolist() == exact
        assert right or not settled[0]
    assert settled[0] and right
    kept, settled = suppress(beats, valid, None)
    assert settled[0] and kept[0].nonzero().flatten().tolist() == exact


def raw_of(boxes, scores, classes, num_classes=3):
    """A model's output that holds these boxes (xyxy)."""
    raw = torch.zeros(1, 4 + num_classes, len(boxes))
    raw[0, :2] = ((boxes[:, :2] + boxes[:, 2:]) / 2).T
    raw[0, 2:4] = (boxes[:, 2:] - boxes[:, :2]).T
    raw[0, 4 + torch.as_tensor(classes), torch.arange(len(boxes))] = torch.as_tensor(
        scores, dtype=torch.float32
    )
    return raw


PLACES = torch.tensor([[0.0, 0, 1, 1e6, 1e6]])


def post(**options):
    return PostProcess(
        **{"end_to_end": False, "conf": 0.25, "iou": 0.7, "max_det": 50, "top_k": 64, **options}
    )


def test_boxes_beyond_top_k_are_left_out_and_counted():
    boxes = torch.tensor([[100.0 * number, 0, 100.0 * number + 10, 10] for number in range(30)])
    raw = raw_of(boxes, [0.3 + number / 100 for number in range(30)], [0] * 30)
    packed, rows = post(top_k=20)(raw, PLACES)
    assert packed[0, 50, :4].tolist() == [20, 30, True, True]
    assert rows.shape == (1, 20, 6)
    # The best ones, best first.
    assert packed[0, :20, 0].tolist() == [100.0 * number for number in range(29, 9, -1)]
    assert packed[0, 20:50].count_nonzero() == 0


def test_max_det_keeps_the_best():
    boxes = torch.tensor([[100.0 * number, 0, 100.0 * number + 10, 10] for number in range(9)])
    packed, _ = post(max_det=4)(raw_of(boxes, [0.3 + n / 20 for n in range(9)], [1] * 9), PLACES)
    assert packed[0, 4, NUM_KEPT] == 4
    assert packed[0, :4, 0].tolist() == [800, 700, 600, 500]
    assert packed[0, :4, 5].tolist() == [1] * 4


def test_a_fixed_number_of_rounds_is_finished_by_settle():
    boxes = chain(60)
    process = post(iou=0.6)
    raw = raw_of(boxes, torch.linspace(0.9, 0.3, 60), [0] * 60)
    exact, rows = process(raw, PLACES)
    kept, settled = process._keep(rows, 4)
    short = process._pack(rows, kept, PLACES, exact[:, 50, NUM_CANDIDATES], settled, exact[:, 50, FINITE])
    assert not short[0, 50, SETTLED]
    assert not torch.equal(short, exact)
    assert torch.equal(process.settle(rows, PLACES, short), exact)


def test_boxes_come_back_into_the_frame_and_are_cut_at_its_edges():
    places = torch.tensor([[10.0, 20, 0.5, 100, 60]])
    boxes = torch.tensor([[15.0, 25, 25, 40], [0.0, 0, 500, 500]])
    packed, _ = post()(raw_of(boxes, [0.9, 0.8], [0, 1]), places)
    assert packed[0, 0, :4].tolist() == [10, 10, 30, 40]
    assert packed[0, 1, :4].tolist() == [0, 0, 100, 60]


def test_the_row_of_counts_holds_nothing_of_what_was_dropped():
    packed, _ = post()(raw_of(chain(1).repeat(9, 1), [0.9] * 9, [0] * 9), PLACES)
    assert packed[0, 50, NUM_KEPT] < packed[0, 50, NUM_CANDIDATES] == 9
    assert packed[0, 50, FINITE + 1 :].tolist() == [0, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_output_that_is_not_finite_is_told(value):
    raw = raw_of(torch.tensor([[0.0, 0, 10, 10]]), [0.9], [0]).repeat(2, 1, 1)
    raw[1, 2, 0] = value
    packed, _ = post()(raw, PLACES.repeat(2, 1))
    assert packed[:, 50, FINITE].tolist() == [1, 0]


def test_an_image_without_candidates_has_no_detections_beside_one_that_has():
    raw = torch.cat([torch.zeros(1, 7, 5), raw_of(chain(5), [0.9] * 5, [0, 1, 2, 0, 1])])
    packed, _ = post()(raw, PLACES.repeat(2, 1))
    assert packed[:, 50, NUM_KEPT].tolist() == [0, 5]


def test_end_to_end_rows_are_filtered_and_not_suppressed():
    rows = torch.tensor([[[0, 0, 10, 10, 0.9, 2], [0, 0, 10, 10, 0.2, 1], [1, 0, 10, 10, 0.95, 2.0]]])
    packed, _ = post(end_to_end=True)(rows, PLACES)
    assert packed[0, 50, :4].tolist() == [2, 2, 1, 1]
    assert packed[0, :2, 0].tolist() == [1, 0]
