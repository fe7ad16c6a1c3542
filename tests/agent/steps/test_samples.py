"""How many samples a batch holds, by the shapes that loaders and models take."""

import warnings
from collections import UserDict, namedtuple
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynotune.agent.steps.samples import in_batch, in_call


class Array:
    """As much of a tensor as counting looks at."""

    def __init__(self, *shape):
        self.shape = shape


def pictures(num):
    """Pictures of different sizes, as detection has them."""
    return [Array(3, 400 + k, 600 - k) for k in range(num)]


Pair = namedtuple("Pair", "image label")
SIZES = st.integers(1, 64)


@given(SIZES, st.none() | SIZES)
def test_an_array_holds_its_leading_size(num, batch_size):
    assert in_batch(Array(num, 3, 8, 8), batch_size) == num


@given(SIZES, SIZES, st.sampled_from([list, tuple, lambda pair: Pair(*pair)]))
def test_arrays_side_by_side_hold_their_common_leading_size(num, more, make):
    assert in_batch(make([Array(num, 3, 8, 8), Array(num)]), num + more - 1) == num


@given(SIZES, st.sampled_from([dict, UserDict]))
def test_a_mapping_holds_what_its_arrays_hold(num, make):
    batch = make(name="train", input_ids=Array(num, 7), labels=Array(num))
    assert in_batch(batch, 64) == num
    assert in_call((), {"batch": batch}) == num


@given(SIZES)
def test_detections_lists_side_by_side_hold_one_entry_a_sample(num):
    batch = tuple(zip(*[(picture, {"boxes": Array(k, 4)}) for k, picture in enumerate(pictures(num))]))  # noqa: B905, runs on Python 3.9
    assert in_batch(batch, 64) == num


@given(st.integers(2, 64), st.integers(0, 4))
def test_a_list_of_pictures_of_several_sizes_holds_one_a_picture(num, missing):
    assume(num + missing != 3)  # then the three channels may as well be three samples
    assert in_batch(pictures(num), num + missing) == num


@given(st.integers(1, 16), st.integers(1, 16))
def test_the_last_partial_batch_is_counted_as_it_is(batch_size, num):
    num = min(num, batch_size)
    assert in_batch([Array(num, 3, 8, 8), Array(num)], batch_size) == num
    assert in_batch([Array(num, 8), Array(num), Array(num, 2, 2)], batch_size) == num
    assert in_batch({"x": Array(num, 8), "y": Array(num)}, batch_size) == num


def test_sentences_kept_apart_hold_one_a_sentence():
    assert in_batch(["one", "two", "three"], 3) == 3


def test_batches_inside_a_batch_hold_what_the_first_holds():
    assert in_batch([[Array(8, 3), Array(8, 5)], [Array(8)]], 8) == 8


def test_a_batch_of_graphs_says_its_number():
    assert in_batch(SimpleNamespace(num_graphs=5), 8) == 5


SILENT = {
    "nothing": None,
    "number": 7,
    "text": "text",
    "object": object(),
    "empty list": [],
    "empty tuple": (),
    "empty dict": {},
    "scalar": Array(),
    "list of objects": [object()],
    "dict of text": {"name": "x"},
    "shape of text": SimpleNamespace(shape="?"),
}


@pytest.mark.parametrize("batch", SILENT.values(), ids=SILENT)
def test_samples_of_a_batch_are_unknown_when_it_does_not_say(batch):
    assert in_batch(batch, 8) is None


class Hostile:
    """A batch that does not like to be looked at."""

    def __getattr__(self, name):
        raise RuntimeError(name)


def test_samples_are_unknown_when_looking_at_a_batch_raises():
    assert in_batch(Hostile(), 8) is None
    assert in_batch([Hostile(), 1], 8) is None
    assert in_call((Hostile(), Array(3)), {}) == 3


def test_a_call_holds_what_its_first_array_holds():
    assert in_call((3, None, Array(8, 2), Array(9)), {}) == 8
    assert in_call((), {"mask": None, "input_ids": Array(4, 7)}) == 4
    assert in_call(([Array(6, 2), Array(6)],), {}) == 6
    assert in_call((), {}) is None
    assert in_call((Array(),), {"scale": 2.0}) is None


@pytest.mark.parametrize("num", [1, 3, 5])
def test_call_holds_the_pictures_of_a_list_when_a_detector_takes_them_one_by_one(num):
    assert in_call(([Array(3, 32, 48) for _ in range(num)],), {}) == num
    assert in_call(([Array(3, 32 + n, 48) for n in range(num)], None), {}) == num


def test_sizes_that_are_being_traced_are_left_alone():
    torch = pytest.importorskip("torch")
    seen = []

    class Net(torch.nn.Module):
        def forward(self, x):
            seen.append((in_call((x,), {}), in_call(([x],), {})))
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        torch.jit.trace(Net(), torch.ones(3, 2))
    assert seen[0] == (None, None)
