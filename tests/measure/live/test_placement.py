"""Where a recording begins in a live run."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.records.record import COMPILED, EPOCH
from dynotune.measure.live.placement import is_steady, recent_step_s, recording_from_now, recording_within
from dynotune.measure.live.request import RecordRequest
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.task import RecordTrace

from ...fakes import of_run, record


def request(**fields) -> RecordRequest:
    return of_run(RecordRequest, **fields)


def compiling(made, *indices):
    for index in indices:
        made.steps[index] = msgspec.structs.replace(made.steps[index], flags=COMPILED)
    return made


def test_steps_are_steady_when_a_while_has_passed_since_the_last_start():
    assert is_steady(record([0.1] * 29), None) is None
    assert is_steady(record([0.1] * 30), None) is True
    assert is_steady(compiling(record([0.1] * 50), 30), None) is None


def test_slow_steps_are_steady_after_fewer_of_them():
    assert is_steady(record([3.0] * 6), None) is None
    assert is_steady(compiling(record([1.0] * 40), 39), None, restless_s=30.0) is False
    assert is_steady(compiling(record([1.0] * 40), 39), None, restless_s=60.0) is None
    assert is_steady(record([3.0] * 7), None) is True
    assert is_steady(compiling(record([3.0] * 7), 3), None) is None


def test_steps_that_never_become_steady_are_called_restless():
    restless = compiling(record([0.1] * 1300), *range(0, 1300, 3))
    assert is_steady(restless, None) is False


def test_the_warm_up_that_is_asked_for_is_enough():
    assert is_steady(record([0.1] * 4), 5) is None
    assert is_steady(record([0.1] * 5), 5) is True


@pytest.mark.parametrize(
    ("step_s", "num_ranks", "num"), [(0.001, 1, 10), (0.01, 1, 5), (0.1, 1, 3), (0.01, 2, 9)]
)
def test_few_steps_are_recorded_when_a_running_job_waits_for_them(step_s, num_ranks, num):
    records = [record([step_s] * 30)] * num_ranks
    assert recording_from_now(records, request(brief=True, stacks=True)).num_steps == num


def test_a_step_of_a_burst_takes_its_share_of_the_wait_for_the_next_burst():
    """Eight workers: eight batches come at once, and the next ones two seconds later."""
    made = record([2.0, *[0.1] * 7] * 10)
    waits = [1.9, *[0.0] * 7] * 10
    made.steps[:] = [
        msgspec.structs.replace(one, wait_s=wait) for one, wait in zip(made.steps, waits, strict=True)
    ]
    assert recent_step_s(made) == pytest.approx((2.0 + 7 * 0.1) / 8)
    # An epoch's begin does not come in each step, nor does validation.
    made.steps[-8] = msgspec.structs.replace(made.steps[-8], flags=EPOCH)
    assert recent_step_s(made) < (2.0 + 7 * 0.1) / 8
    assert recent_step_s(record([0.1] * 60 + [30.0] + [0.1] * 10)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("step_s", "stacks", "num_steps"),
    [
        (0.001, False, 10),
        (1.0, False, 6),
        (30.0, False, 3),
        (0.125, True, 10),
        (0.25, True, 6),
        (2.0, True, 3),
    ],
)
def test_fewer_steps_are_recorded_of_slow_ones(step_s, stacks, num_steps):
    assert recording_from_now([record([step_s] * 40)], request(stacks=stacks)).num_steps == num_steps
    assert recording_from_now([record([step_s] * 40)], request(stacks=stacks, num_steps=50)).num_steps == 50


@pytest.mark.parametrize(("step_s", "num_steps"), [(0.125, 10), (0.5, 9), (1.0, 6), (30.0, 3)])
def test_of_several_ranks_nine_steps_are_recorded_with_stacks_if_they_are_short_enough(step_s, num_steps):
    assert recording_from_now([record([step_s] * 40)] * 2, request(stacks=True)).num_steps == num_steps


def test_all_ranks_have_the_time_to_hear_of_it():
    ranks = [record([1 / 64] * 40, rank=0), record([1 / 64] * 43, rank=1)]
    assert recording_from_now(ranks, request()).at_step == 43 + 32
    assert recording_from_now([record([5.0] * 8)], request()).at_step == 8 + 2


@given(st.integers(1, 60), st.integers(60, 400), st.integers(1, 20))
def test_no_epoch_begins_among_the_recorded_steps_where_that_can_be(epoch, num, num_steps):
    begin = recording_from_now([record([0.125] * num, epoch=epoch)], request(num_steps=num_steps))
    recorded = range(begin.at_step + 1, begin.at_step + 1 + num_steps)
    if epoch > num_steps + 1 and num >= 2 * epoch:
        assert not any(number % epoch == 0 for number in recorded)
    assert num + 2 <= begin.at_step < num + 2 + epoch


@given(st.integers(1, 60), st.none() | st.integers(1, 60), st.none() | st.integers(1, 100))
def test_within_a_short_program_it_ends_before_the_program_does(num, num_steps, warmup_steps):
    made = record([0.1] * num, found_after=3)
    try:
        begin = recording_within(made, request(num_steps=num_steps, warmup_steps=warmup_steps))
    except CannotRunHere:
        assert num < 5 + (num_steps or 3) + 2
        return
    assert begin.at_step >= 5
    assert begin.at_step + 1 + begin.num_steps <= num - 1
    assert begin.num_steps == (num_steps or begin.num_steps) >= min(3, num_steps or 3)


def test_a_program_with_room_is_recorded_after_the_warm_up_that_is_asked_for():
    assert recording_within(record([0.1] * 60), request(warmup_steps=20)) == RecordTrace(
        at_step=20, num_steps=10
    )
