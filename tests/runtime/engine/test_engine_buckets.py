"""Buckets, padding, errors and percentiles: the arithmetic under the engine."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynotune.runtime.engine.buckets import Bucket, BucketTable, Padding, parse_buckets
from dynotune.runtime.engine.numerics import default_tolerance, outputs_error, relative_error
from dynotune.runtime.engine.timing import HostTimer, percentile
from dynotune.runtime.errors import InputError, NumericsError

SIZES = st.integers(1, 5)
CPU = torch.device("cpu")


def shapes_of(shapes, dtype=torch.float32):
    return [bucket.shapes for bucket in parse_buckets(shapes, dtype)]


def test_a_shape_an_example_and_tuples_of_them_are_buckets():
    image, tokens = torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.int64)
    assert shapes_of((2, 3)) == [((2, 3),)]
    assert shapes_of(torch.Size((2, 3))) == [((2, 3),)]
    assert shapes_of([(2, 3), (4, 3)]) == [((4, 3),), ((2, 3),)]
    assert shapes_of([((2, 3), (2,))]) == [((2, 3), (2,))]
    assert shapes_of(image) == [((2, 3),)]
    assert shapes_of(image.numpy()) == [((2, 3),)]
    assert shapes_of([(image, tokens)]) == [((2, 3), (2, 4))]
    (bucket,) = parse_buckets((image, tokens), torch.float16)
    assert bucket.dtypes == (torch.float16, torch.int64)


def test_samples_are_seeded_and_an_example_comes_as_it_is_and_in_another_order():
    (bucket,) = parse_buckets((64,), torch.float32)
    assert torch.equal(bucket.samples(CPU, 1)[0], bucket.samples(CPU, 1)[0])
    assert not torch.equal(bucket.samples(CPU, 0)[0], bucket.samples(CPU, 1)[0])
    example, tokens = torch.arange(64.0), torch.arange(64)
    (bucket,) = parse_buckets((example, tokens), torch.float32)
    assert torch.equal(bucket.samples(CPU, 0)[0], example)
    shuffled, same = bucket.samples(CPU, 1)
    assert not torch.equal(shuffled, example)
    assert torch.equal(shuffled.sort().values, example)
    assert torch.equal(same, tokens)


@given(
    buckets=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6, unique=True),
    shape=st.tuples(SIZES, SIZES),
    dims=st.sets(st.integers(0, 1)),
)
def test_the_smallest_bucket_that_padding_reaches_is_found_and_none_otherwise(buckets, shape, dims):
    table = BucketTable(parse_buckets(buckets, torch.float32), Padding(dict.fromkeys(dims, 0)))
    fitting = [
        bucket
        for bucket in buckets
        if all(
            size == wanted or (dim in dims and size < wanted)
            for dim, (size, wanted) in enumerate(zip(shape, bucket, strict=True))
        )
    ]
    for _ in range(2):  # found, and remembered
        found = table.find((shape,))
        if not fitting:
            assert found is None
        elif shape in buckets:
            assert found.shapes == (shape,)
        else:
            assert found.shapes[0] in fitting
            assert found.num_elements == min(math.prod(bucket) for bucket in fitting)


def test_inputs_beside_the_first_must_have_its_rows_or_the_buckets():
    bucket = Bucket(((4, 3), (4, 2), (1, 7)), (torch.float32,) * 3)
    pad = Padding("batch")
    assert pad.fits(((2, 3), (2, 2), (1, 7)), bucket)
    assert pad.fits(((2, 3), (4, 2), (1, 7)), bucket)
    assert not pad.fits(((2, 3), (3, 2), (1, 7)), bucket)
    assert not pad.fits(((2, 3), (2, 2)), bucket)


@given(
    source=st.lists(SIZES, min_size=3, max_size=3), more=st.lists(st.integers(0, 3), min_size=3, max_size=3)
)
def test_padding_writes_the_source_into_the_corner_and_its_fill_everywhere_else(source, more):
    target = torch.full([size + extra for size, extra in zip(source, more, strict=True)], math.nan)
    Padding({0: -1, 1: -1, 2: -1}).write(torch.ones(source), target)
    corner = tuple(slice(size) for size in source)
    assert bool((target[corner] == 1).all())
    target[corner] = -1
    assert bool((target == -1).all())


def test_relative_error_is_of_norms_and_never_hides_what_is_not_finite():
    wanted = torch.tensor([3.0, 4.0])
    assert relative_error(wanted, wanted) == 0
    assert relative_error(wanted, torch.tensor([3.0, 4.5])) == pytest.approx(0.1)
    assert relative_error(torch.zeros(2), torch.tensor([0.0, 2.0])) == 2
    assert relative_error(wanted, torch.tensor([3.0, math.nan])) == math.inf
    assert relative_error(wanted, torch.tensor([3.0, math.inf])) == math.inf
    infinite = torch.tensor([-math.inf, 4.0])
    assert relative_error(infinite, infinite) == 0
    assert relative_error(infinite, torch.tensor([math.inf, 4.0])) == math.inf
    assert relative_error(infinite, wanted) == math.inf
    assert relative_error(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25
    assert relative_error(torch.ones(0), torch.ones(0)) == 0
    assert relative_error(wanted.half(), torch.tensor([3.0, 4.5]).half()) == pytest.approx(0.1)


def test_the_worst_output_counts_and_another_structure_or_shape_is_an_error():
    wanted = {"a": torch.ones(2), "b": (torch.ones(4), "word")}
    assert outputs_error(wanted, {"a": torch.ones(2), "b": (torch.full((4,), 1.5), "word")}) == 0.5
    assert outputs_error(wanted, {"a": torch.ones(2), "b": (torch.ones(4), "other")}) == math.inf
    assert outputs_error(wanted, {"a": "word", "b": (torch.ones(4), "word")}) == math.inf
    with pytest.raises(NumericsError, match="structure"):
        outputs_error(wanted, [torch.ones(2), torch.ones(4)])
    with pytest.raises(NumericsError, match="shape"):
        outputs_error(torch.ones(2), torch.ones(3))


def test_tolerance_is_by_dtype_and_has_room_for_tf32_on_a_gpu():
    assert default_tolerance(torch.float32, CPU) < default_tolerance(torch.float32, torch.device("cuda"))
    assert default_tolerance(torch.float32, torch.device("cuda")) < default_tolerance(torch.float16, CPU)
    assert default_tolerance(torch.float16, CPU) < default_tolerance(torch.bfloat16, CPU)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_sample_that_enough_of_them_do_not_exceed(samples, share):
    found = percentile(samples, share)
    assert found in samples
    assert sum(sample <= found for sample in samples) >= share * len(samples)
    assert sum(sample < found for sample in samples) < share * len(samples)


def test_no_samples_have_no_percentile_and_only_the_newest_are_kept():
    assert percentile([], 0.5) is None
    timer = HostTimer()
    for _ in range(5000):
        timer.end(timer.begin())
    assert len(timer.samples_s()) == 4096


def test_an_array_that_is_no_tensor_is_refused():
    with pytest.raises(InputError):
        parse_buckets([object()], torch.float32)
