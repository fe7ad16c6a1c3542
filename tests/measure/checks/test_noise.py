"""What the arithmetic of errors says of errors that are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.measure.checks.noise import BEYOND, NO_WORSE, judge
from dynotune.measure.checks.tolerance import TOLERANCES

ERRORS = st.lists(st.floats(1e-12, 1.0), min_size=2, max_size=30)


@given(ERRORS)
def test_errors_are_no_worse_than_themselves_and_than_larger_ones(errors):
    assert judge(errors, errors).verdict == "no worse"
    assert judge(errors, [10 * error for error in errors]).verdict == "no worse"
    assert (
        judge([10 * error for error in errors], errors, [10 * error for error in errors]).verdict
        == "no worse"
    )


@given(st.lists(st.floats(1e-5, 1e-2), min_size=2, max_size=30), st.floats(NO_WORSE * 1.1, 1e4))
def test_errors_that_are_so_many_times_as_large_throughout_are_worse_by_that(errors, times):
    found = judge([times * error for error in errors], errors)
    assert found.verdict == "worse"
    assert found.ratio == pytest.approx(times, rel=0.1)


def test_one_value_that_no_rounding_explains_is_enough():
    errors = [1e-6] * 24
    found = judge([*errors[:-1], 2 * BEYOND * 1e-6], errors)
    assert (found.verdict, found.beyond) == ("worse", 23)


def test_errors_below_what_float32_can_tell_apart_are_none():
    assert judge([3e-8] * 24, [0.0] * 24).verdict == "no worse"


def test_errors_of_one_kind_are_hardly_ever_called_worse():
    """Of single losses, whose errors may be next to nothing by chance."""
    drawn = np.random.default_rng(0)
    answers = [judge(*np.abs(drawn.normal(0, 1e-3, (2, 24)))).verdict for _ in range(1000)]
    assert answers.count("worse") <= 2
    assert answers.count("no worse") >= 900


def test_a_single_value_is_no_worse_only_if_its_error_is_no_larger():
    assert judge([1e-3], [1e-3]).verdict == "no worse"
    assert judge([2e-3], [1e-3]).verdict == "undecided"
    assert judge([], []) is None
    assert judge([None], [None]) is None


def test_sums_that_tensor_cores_cut_off_are_no_fault_and_larger_errors_stay_one():
    """A mean over many elements: errors of rounding go away in it, and those of sums that are cut off do
    not."""
    least = TOLERANCES["tf32"].least
    assert judge([6e-5] * 24, [1e-7] * 24, [2e-6] * 24, least=least).verdict == "no worse"
    assert judge([6e-5] * 24, [1e-7] * 24, [2e-6] * 24).verdict == "worse"
    assert judge([4e-4] * 24, [1e-7] * 24, [2e-6] * 24, least=least).verdict == "worse"
