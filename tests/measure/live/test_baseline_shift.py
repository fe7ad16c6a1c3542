"""The baseline in the blocks of a live run against the plain window before them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dynotune.launch.records import Record
from dynotune.measure.live.baseline_shift import baseline_shift, plain_window, why_not_proof
from dynotune.schema.comparison import MOST_SHIFT, BaselineShift
from dynotune.schema.events import Block, Stretch

from ...fakes import take

STEP_S = 0.01
TIMES = st.floats(0.5, 2.0)


def record(*events, begin_s=10.0, num_samples=None, **fields):
    """A record with a plain window, whose fields may be others, and further events."""
    window = {
        "event": "window",
        "first_step": 100,
        "num_steps": 200,
        "begin_s": begin_s,
        "end_s": begin_s + 200 * STEP_S,
        "num_samples": num_samples,
        "wait_s": None,
    }
    return take(Record(Path("x"), 1, 0.0), window | fields, *events)


def blocks(*times, num_samples=None, pace_s=None):
    """Blocks whose baseline takes `times` as long as the plain window."""
    stretch = [Stretch(50 * STEP_S, 50, num_samples)] * 2
    return [
        Block(
            arm=0,
            number=number,
            order="ABBA",
            begin_s=20.0,
            end_s=21.0,
            baseline=[Stretch(50 * STEP_S * time, 50, num_samples, pace_s)] * 2,
            candidate=stretch,
        )
        for number, time in enumerate(times)
    ]


@given(st.lists(TIMES, min_size=2, max_size=12))
def test_shift_is_the_mean_of_the_blocks_within_its_interval(times):
    shift = baseline_shift(record(), blocks(*times))
    assert math.log(shift.ratio) == pytest.approx(math.fsum(map(math.log, times)) / len(times), abs=1e-9)
    assert shift.ci[0] <= shift.ratio * (1 + 1e-9)
    assert shift.ratio <= shift.ci[1] * (1 + 1e-9)
    assert shift.num_blocks == len(times)


def test_shift_is_not_shown_when_nothing_is_known_of_the_noise():
    (whole,) = blocks(1.3)
    alone = baseline_shift(record(), [replace(whole, baseline=whole.baseline[:1])])
    assert alone.ci is None and not alone.is_shown


def test_shift_is_shown_by_two_blocks_when_their_stretches_are_as_steady():
    differ = [Stretch(50 * STEP_S * time, 50, None) for time in (1.33, 1.37)]
    steady = [replace(block, baseline=differ) for block in blocks(1.35, 1.35)]
    assert baseline_shift(record(), blocks(1.2, 1.5)).is_shown is False
    assert baseline_shift(record(), steady).is_shown is True
    assert baseline_shift(record(), steady[:1]).ci is not None


@given(TIMES, st.integers(1, 64))
def test_shift_is_per_sample_when_all_samples_are_known(time, per_step):
    shift = baseline_shift(record(num_samples=200 * per_step), blocks(time, time, num_samples=50 * per_step))
    assert shift.ratio == pytest.approx(time)


@pytest.mark.parametrize(
    ("times", "is_shown"),
    [
        ([1.3, 1.31, 1.29, 1.3], True),
        ([0.8, 0.79, 0.81, 0.8], True),
        ([1.001, 0.999, 1.002, 1.0], False),
        ([1 + MOST_SHIFT / 2] * 4, False),  # surely there, and small
        ([1.3, 0.8, 1.4, 0.9], False),  # noise
    ],
)
def test_shift_is_shown_when_it_is_large_and_not_noise(times, is_shown):
    assert baseline_shift(record(), blocks(*times)).is_shown is is_shown


TRACE = {"event": "trace", "begin_s": 5.0}
BLOCK = {"event": "arm_block", "arm": 0, "number": 0, "order": "ABBA", "begin_s": 5.0, "end_s": 6.0}


@pytest.mark.parametrize(
    ("ratio", "pace", "is_shown"),
    [
        (1.25, 1.0, True),
        (1.25, 1.7, False),  # the host was slower by more than the steps
        (1.25, 1.1, True),
        (1.25, 0.8, True),  # the host was faster, and the steps took longer
        (0.8, 0.7, False),
        (0.8, 1.7, True),
        (1.0, 1.7, False),  # the device sets the pace of the steps
    ],
)
def test_shift_is_not_shown_when_the_host_s_own_pace_explains_it(ratio, pace, is_shown):
    times = [ratio * 0.99, ratio, ratio * 1.01, ratio]
    shift = baseline_shift(record(pace_s=1e-4), blocks(*times, pace_s=pace * 1e-4))
    assert shift.pace == pytest.approx(pace)
    assert shift.is_shown is is_shown


@pytest.mark.parametrize(("before_s", "within_s"), [(None, 1e-4), (1e-4, None), (0.0, 1e-4)])
def test_pace_is_1_when_one_of_the_two_is_unknown(before_s, within_s):
    assert baseline_shift(record(pace_s=before_s), blocks(1.0, 1.0, pace_s=within_s)).pace == 1


@pytest.mark.parametrize(
    "made",
    [
        Record(Path("x"), 1, 0.0),
        record(first_step="x"),
        record(TRACE),
        record({**BLOCK, "baseline": [], "candidate": []}),
    ],
    ids=["none", "damaged", "trace", "block"],
)
def test_shift_is_unknown_when_no_window_came_before_all_else(made):
    assert plain_window(made) is None
    assert baseline_shift(made, blocks(1.0, 1.0)) is None


def test_window_is_plain_when_the_recording_came_after_it():
    assert plain_window(record(TRACE | {"begin_s": 13.0})).num_steps == 200


def test_blocks_prove_only_when_their_baseline_is_the_plain_one():
    steady = BaselineShift(ratio=1.001, ci=(0.99, 1.01), num_blocks=4)
    assert why_not_proof(steady, "") == ""
    longer = why_not_proof(BaselineShift(ratio=1.3, ci=(1.25, 1.35), num_blocks=4), "")
    assert "took 30% longer than in the plain window" in longer
    assert "stayed attached to the process (why)" in why_not_proof(steady, "why")
    assert "No plain window" in why_not_proof(None, "")
