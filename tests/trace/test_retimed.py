from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.retimed import retimed
from dynotune.trace.summarise import summarise
from dynotune.trace.timeline import UNKNOWN

from ..diagnose.simulated import MS, SYNC, US, copy, kernels, load, pinned, python, recorded, timed
from .made import Made

HELD_UP = {
    "sync": [python(2 * MS), *kernels(100, 20 * US, 50 * US), SYNC],
    "syncs": [python(300 * US), *kernels(30, 20 * US, 60 * US), SYNC] * 2,
    "launches": kernels(300, 20 * US, 5 * US),
    "copy": [copy(5 * MS), python(MS), *kernels(100, 30 * US, 20 * US)],
    "loader": [load(5 * MS), *kernels(100, 30 * US, 40 * US), SYNC],
}


@pytest.mark.parametrize("slower", [1.5, 3, 6])
@pytest.mark.parametrize("name", HELD_UP)
def test_what_the_recorder_cost_is_found_and_taken_away(name, slower):
    acts = HELD_UP[name]
    plain = timed(acts)
    found, factor = retimed(recorded(acts, slower=slower), plain.step_s, plain.wait_s)
    # Of a device that hardly waits for its host, any host that is fast enough will do.
    assert factor == pytest.approx(slower, rel=0.1) or name == "loader"
    expected, told = (summarise([timeline]).shares for timeline in (recorded(acts, slower=1), found))
    for part in told.__struct_fields__:
        assert getattr(told, part) == pytest.approx(getattr(expected, part), abs=0.02)


def test_a_step_that_is_short_enough_already_is_left_as_it_is():
    acts = HELD_UP["sync"]
    timeline = recorded(acts, slower=1)
    found, factor = retimed(timeline, 1.0, None)
    assert factor == 1
    assert np.abs(found.device.start_ns - timeline.device.start_ns).max() < 2 * US
    assert np.abs(found.host.end_ns - timeline.host.end_ns).max() < 2 * US


def test_a_device_that_always_works_needs_no_faster_host():
    acts = [python(MS), *kernels(100, 20 * US, 100 * US)]
    _, factor = retimed(recorded(acts, slower=2), 0.0001, None)
    assert factor < 2.5


def test_without_steps_or_launches_nothing_changes():
    for made in (Made(), Made().operator("aten::mm", 0, 10), Made().kernel("gemm", 0, 10)):
        timeline = made.timeline()
        assert retimed(timeline, 1.0, None) == (timeline, 1.0)


acts = st.lists(
    st.one_of(
        st.integers(1, 500).map(lambda us: python(us * US)),
        st.integers(1, 500).map(lambda us: load(us * US)),
        st.integers(1, 500).map(lambda us: copy(us * US)),
        st.integers(1, 500).map(lambda us: pinned(us * US)),
        st.tuples(st.integers(1, 50), st.integers(1, 200)).map(lambda t: kernels(1, t[0] * US, t[1] * US)[0]),
        st.just(SYNC),
    ),
    min_size=1,
    max_size=8,
)


@given(acts, st.sampled_from([1, 2, 5]), st.floats(1e-5, 1e-2))
def test_work_keeps_its_length_follows_its_launch_and_does_not_overlap_on_a_stream(steps, slower, step_s):
    before = recorded(steps, slower=slower)
    after, factor = retimed(before, step_s, None)
    assert factor >= 1
    assert len(after.device) == len(before.device)
    if not len(before.device):
        return
    length = after.device.end_ns - after.device.start_ns
    assert sorted(length) == pytest.approx(sorted(before.device.end_ns - before.device.start_ns), abs=2)
    assert (after.device.start_ns[1:] >= after.device.end_ns[:-1] - 2).all()
    launched = after.device.launch != UNKNOWN
    assert (after.device.start_ns[launched] >= after.host.start_ns[after.device.launch[launched]] - 2).all()
    assert (after.host.end_ns >= after.host.start_ns).all()
    assert (np.diff(after.host.start_ns) >= 0).all()
