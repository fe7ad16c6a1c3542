"""What only some steps do: by where the thread of the steps was seen, and in which of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.records.periodic import periodic_work, seen_inside
from dynotune.schema.events import Moments

TRAINS, VALIDATES, MODULE, SAVES, SERIALISES, DRAWS, SAMPLES = range(7)
FRAMES = {
    "train.py(20): main": "loss.backward()",
    "train.py(30): main": "evaluate(model)",
    "model.py(12): forward": "return self.head(x)",
    "train.py(35): main": "keep(model)",
    "/lib/torch/serialization.py(900): save": "_save(obj)",
    "train.py(18): main": "for batch in loader:",
    "/lib/torch/utils/data/sampler.py(170): __iter__": "yield from torch.randperm(n).tolist()",
}
FIRST = 100


def periodic(step_s, *seen):
    """`seen`: a stack as a list of frames, the step of the window, and how often."""
    stacks = []
    moments = []
    for stack, step, num in seen:
        stacks.append(list(stack))
        moments += [[len(stacks) - 1, step + FIRST]] * num
    told = Moments(frames=list(FRAMES), texts=list(FRAMES.values()), stacks=stacks, seen=moments)
    return periodic_work(told, step_s, FIRST)


def every(num_steps, period, *, long_s=0.5):
    return [long_s if step % period == period - 1 else 0.1 for step in range(num_steps)]


def usual(num_steps):
    return [([TRAINS], step, 8) for step in range(num_steps)]


def test_a_function_that_some_steps_alone_call_is_named_with_its_period_and_its_share():
    long = [([VALIDATES, MODULE], step, 32) for step in range(9, 60, 10)]
    (work,), steps = periodic(every(60, 10), *usual(60), *long)
    assert (work.kind, work.function, work.text) == ("validation", "train.py(30): main", "evaluate(model)")
    assert (work.num_steps, work.every, work.callee) == (6, 10, "model.py(12): forward")
    assert work.share == pytest.approx(6 * 32 / (6 * 32 + 60 * 8))
    assert steps == set(range(9, 60, 10))


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        ([SAVES, SERIALISES], "checkpoint"),
        ([DRAWS, SAMPLES], "epoch"),
        ([SAVES], "other"),
        ([SAVES, TRAINS], "other"),
    ],
)
def test_periodic_works_kind_is_told_by_its_calls(stack, kind):
    (work,), _ = periodic(every(60, 10), *usual(60), *[(stack, step, 32) for step in range(9, 60, 10)])
    assert work.kind == kind


def test_two_kinds_of_work_are_two():
    step_s = [0.5 if step % 10 == 9 else 0.4 if step % 15 == 4 else 0.1 for step in range(60)]
    validates = [([VALIDATES, MODULE], step, 32) for step in range(9, 60, 10)]
    saves = [([SAVES, SERIALISES], step, 24) for step in range(4, 60, 15)]
    found, _ = periodic(step_s, *usual(60), *validates, *saves)
    assert [work.kind for work in found] == ["validation", "checkpoint"]


def test_a_line_that_is_slower_now_and_then_is_no_work_of_some_steps():
    assert periodic(every(60, 10), *usual(60), *[([TRAINS], step, 32) for step in range(9, 60, 10)]) == (
        [],
        set(),
    )


def test_periodic_work_costs_no_more_than_its_steps_are_longer_when_it_replaces_other_work():
    seen = [([VALIDATES, MODULE], step, 15) if step % 10 == 9 else ([TRAINS], step, 10) for step in range(60)]
    (work,), _ = periodic(every(60, 10, long_s=0.15), *seen)
    assert work.share == pytest.approx(6 * 0.05 / (54 * 0.1 + 6 * 0.15))


def test_steps_that_are_all_alike_or_mostly_long_tell_nothing():
    seen = [([VALIDATES], step, 8) for step in range(60)]
    assert periodic([0.1] * 60, *seen) == ([], set())
    assert periodic([0.1] * 20 + [0.5] * 40, *seen) == ([], set())


def test_other_steps_that_nobody_saw_may_do_the_same():
    # Steps of a device that is behind: most only queue work, and some wait until there is room for more.
    step_s = [0.1 if step % 4 == 3 else 0.00002 for step in range(60)]
    assert periodic(step_s, *[([TRAINS, MODULE], step, 20) for step in range(3, 60, 4)]) == ([], set())


@given(
    st.lists(st.floats(0.001, 10), min_size=1, max_size=40),
    st.lists(
        st.tuples(st.lists(st.integers(0, 6), max_size=5), st.integers(-3, 50), st.integers(1, 9)),
        max_size=30,
    ),
)
def test_shares_are_of_the_window_whatever_was_seen(step_s, seen):
    found, steps = periodic(step_s, *seen)
    assert all(0 < work.share <= 1 and work.num_steps >= 1 for work in found)
    assert sum(work.share for work in found) <= 1 + 1e-9
    assert all(0 <= step < len(step_s) for step in steps)


def test_seen_inside_counts_calls_of_a_line_however_deep_they_are():
    seen = [(0, 1), (1, 1), (1, 2), (0, 3)]
    told = Moments(frames=list(FRAMES), stacks=[[TRAINS], [VALIDATES, MODULE]], seen=seen)
    assert seen_inside(told, "train.py(30): main") == seen_inside(told, "model.py(12): forward") == 0.5
    assert seen_inside(told, "train.py(99): main") == 0.0
    assert seen_inside(Moments(frames=told.frames, stacks=told.stacks), "train.py(30): main") is None
