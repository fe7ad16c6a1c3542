"""Profiles cover all shapes that were seen, and waste little of them."""

from __future__ import annotations

import random
from itertools import combinations
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.engines import plan_profiles, profiles
from dynotune.engines.profiles import MOST_DIFFERENT, MOST_PROFILES, SUFFICES
from dynotune.schema.engine_plan import Calls, Profile, ShapeHistogram
from dynotune.schema.errors import RecordError
from lab.shape_histograms import TEN, histogram


def area(shapes):
    return sum(map(prod, shapes.values()))


def holds(profile, shapes):
    return all(
        low <= size <= high
        for name, sizes in shapes.items()
        for low, size, high in zip(profile.min[name], sizes, profile.max[name], strict=True)
    )


def wasted(plan):
    """Elements that the calls of a histogram leave unused, each in the smallest profile that holds it."""
    return sum(
        call.num
        * (min(area(one.max) for one in plan.profiles if holds(one, call.shapes)) - area(call.shapes))
        for call in plan.histogram.calls
    )


@pytest.mark.parametrize("made", TEN)
def test_profiles_hold_all_that_was_seen_and_waste_at_most_half_of_what_one_wastes(made):
    plan, one = plan_profiles(made()), plan_profiles(made(), 1)
    assert len(one.profiles) == 1
    assert 1 < len(plan.profiles) <= MOST_PROFILES
    for call in plan.histogram.calls:
        assert any(holds(profile, call.shapes) for profile in plan.profiles)
    assert wasted(plan) <= wasted(one) / 2
    assert sum(profile.num_calls for profile in plan.profiles) == sum(call.num for call in made().calls)
    used = sum(call.num * area(call.shapes) for call in plan.histogram.calls)
    assert one.wasted == pytest.approx(wasted(one) / (used + wasted(one)), abs=1e-6)
    assert plan.wasted >= wasted(plan) / (used + wasted(plan)) - 1e-6  # some fit in a smaller one, too


SIZES = st.dictionaries(st.integers(1, 30), st.integers(1, 50), min_size=1, max_size=7)


@given(sizes=SIZES, num=st.integers(1, 4))
@settings(max_examples=150)
def test_profiles_waste_least_of_their_number_when_one_dimension_varies(sizes, num):
    sizes = sorted(sizes.items())
    plan = plan_profiles(histogram(*((2, size) for size, _ in sizes), num=[count for _, count in sizes]), num)

    def wasted_by(cuts):
        parts = [sizes[a:b] for a, b in zip([0, *cuts], [*cuts, len(sizes)], strict=True)]
        return sum(2 * count * (part[-1][0] - size) for part in parts for size, count in part)

    number = len(plan.profiles)
    assert number <= num
    best = min(wasted_by(cuts) for cuts in combinations(range(1, len(sizes)), number - 1))
    assert wasted(plan) == best
    if plan.wasted_by_one > SUFFICES:
        assert best == min(
            wasted_by(cuts) for more in range(num) for cuts in combinations(range(1, len(sizes)), more)
        )


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=30
    ),
    num=st.none() | st.integers(1, 8),
)
@settings(max_examples=100)
def test_profiles_hold_all_calls_and_none_is_without_a_call(shapes, num):
    plan = plan_profiles(histogram(*({"a": [b, c], "b": [b, d]} for b, c, d in shapes)), num)
    for call in plan.histogram.calls:
        assert any(holds(profile, call.shapes) for profile in plan.profiles)
    for profile in plan.profiles:
        assert profile.num_calls
        assert holds(profile, profile.opt)
    assert plan.wasted <= plan.wasted_by_one


def test_a_size_between_two_profiles_is_held_by_the_larger_one():
    plan = plan_profiles(histogram((1, 10), (1, 11), (1, 100), (1, 101)), 2)
    assert [one.max["x"] for one in plan.profiles] == [[1, 11], [1, 101]]
    assert holds(plan.profiles[1], {"x": [1, 50]})


def test_the_usual_shape_of_each_profile_is_the_one_that_kernels_are_chosen_for():
    plan = plan_profiles(histogram((1, 10), (1, 11), (1, 100), (1, 101), num=[7, 3, 2, 9]), 2)
    assert [one.opt["x"] for one in plan.profiles] == [[1, 10], [1, 101]]


def test_more_profiles_are_refused_where_one_suffices_and_it_says_why():
    plan = plan_profiles(histogram((1, 3, 600, 640), (1, 3, 640, 640)), 3)
    assert len(plan.profiles) == 1
    assert plan.why.startswith(
        "One profile suffices: it leaves 3% of its largest shapes unused. 3 would hardly save"
    )


def test_more_profiles_than_there_are_kinds_of_shapes_are_refused_too():
    plan = plan_profiles(histogram((1, 10), (1, 100)), 5)
    assert len(plan.profiles) == 2
    assert "5 would hardly save more" in plan.why


def test_calls_that_no_engine_could_take_are_left_out_and_said():
    plan = plan_profiles(
        histogram((4, 8), (0, 8), (4, 8, 1), {"x": [4, 8], "mask": [4, 8]}, {}, num=[10, 1, 2, 3, 4])
    )
    assert plan.histogram.calls == [Calls(10, {"x": [4, 8]})]
    assert plan.notes == ["10 of 20 calls had other inputs, or empty ones: keep them from the engine."]


@pytest.mark.parametrize(
    "calls", [[], [{}], [{"x": [0, 3]}], [{"x": [size]} for size in range(1, MOST_DIFFERENT + 2)]]
)
def test_no_shapes_and_far_too_many_are_refused(calls):
    with pytest.raises(RecordError, match="different shapes"):
        plan_profiles(histogram(*calls))


@pytest.mark.parametrize(("num", "inputs", "dimensions"), [(2048, 8, 8), (256, 64, 4), (16, 1024, 1)])
def test_shapes_that_would_be_planned_for_minutes_are_refused_with_their_number(num, inputs, dimensions):
    drawn = random.Random(1)
    sizes = {f"x{at}": dimensions for at in range(inputs)}
    calls = [
        {name: [drawn.randint(1, 30) for _ in range(n)] for name, n in sizes.items()} for _ in range(num)
    ]
    many = inputs * dimensions
    with pytest.raises(
        RecordError, match=f"{num} different shapes of {many} dimensions, {many} of which vary"
    ) as told:
        plan_profiles(histogram(*calls))
    assert "multiples" in told.value.hint


def test_many_inputs_that_grow_together_as_caches_of_keys_do_are_no_more_work_than_one():
    calls = [{f"layer{at}": [4, 8, length, 64] for at in range(64)} for length in range(1, 129)]
    plan = plan_profiles(histogram(*calls))
    assert 0 < plan.wasted < plan.wasted_by_one


def test_inputs_stand_in_the_order_in_which_the_model_takes_them():
    plan = plan_profiles(histogram({"z": [1], "a": [2]}, {"a": [2], "z": [5]}))
    assert list(plan.profiles[-1].max) == ["z", "a"]
    assert plan.profiles[-1].max == {"z": [5], "a": [2]}


@pytest.mark.parametrize("shape", [[1 << 40, 1 << 40], [2] * 9])
def test_a_shape_that_no_engine_takes_is_refused(shape):
    with pytest.raises(RecordError, match="larger than any"):
        plan_profiles(histogram([1, 2], shape))


def test_inputs_whose_sizes_vary_together_are_looked_at_once(monkeypatch):
    seen = []
    partitions = profiles._partitions
    monkeypatch.setattr(profiles, "_partitions", lambda *given: seen.append(1) or partitions(*given))
    caches = [Calls(1, {f"cache.{at}": [1, 8, size, 64] for at in range(40)}) for size in range(1, 30)]
    plan_profiles(ShapeHistogram(calls=caches))
    assert len(seen) == 2


def test_a_profile_takes_no_input_that_it_does_not_have():
    profile = Profile(1, {"x": [1]}, {"x": [2]}, {"x": [3]})
    assert profiles.holds({"x": [2]}, profile)
    assert not profiles.holds({"x": [2], "mask": [2]}, profile)
