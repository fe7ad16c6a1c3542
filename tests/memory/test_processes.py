"""How many processes one GPU carries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import memory
from dynotune.schema.facts import Unknown

GIB = 1 << 30


def found(one=100.0, two=200.0, *, own=GIB, limit=20 * GIB, asked=None):
    return memory.processes(own, limit, one_per_s=one, two_per_s=two, asked_per_s=asked)


def test_processes_that_do_not_meet_are_bounded_by_memory():
    assert (found().by_memory, found().most) == (20, 20)


def test_processes_that_fill_the_device_do_not_add_to_each_other():
    assert (found(two=100.0).by_throughput, found(two=100.0).most) == (1, 1)


def test_a_rate_asked_of_each_bounds_their_number():
    # Two make 160: a quarter is lost to one other, so N of them make 100 / (1 + (N - 1) / 4) each.
    assert found(two=160.0, asked=30.0).by_throughput == 10
    assert found(two=160.0, asked=101.0).most == 0


def test_more_are_not_counted_where_one_more_hardly_adds():
    assert found(two=150.0, limit=1000 * GIB).by_throughput == 6


def test_memory_that_is_not_known_bounds_nothing():
    assert found(own=Unknown("no NVML"), two=100.0).most == 1


@given(st.floats(1, 1e6), st.floats(0.5, 2.5), st.floats(0.1, 1e6))
def test_each_of_those_that_fit_makes_what_is_asked(one, speedup, asked):
    result = memory.processes(1, 10**6, one_per_s=one, two_per_s=one * speedup, asked_per_s=asked)
    hindrance = max(0.0, 2 / speedup - 1)
    if result.by_throughput:
        assert one / (1 + hindrance * (result.by_throughput - 1)) >= asked * (1 - 1e-9)
    else:
        assert asked > one


def test_the_bound_is_the_smaller_one():
    assert found(limit=3 * GIB, asked=1.0).most == 3
    assert found(two=160.0, asked=30.0).most == pytest.approx(10)
