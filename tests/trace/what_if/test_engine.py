from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.trace.summary import summarise
from dynotune.trace.timeline import UNKNOWN, Timeline
from dynotune.trace.what_if.engine import WITHOUT, retimed, savings

from ...diagnose.simulated import MS, SYNC, US, copy, kernels, load, pinned, python, recorded, saved, timed
from ..made import Made

HELD_UP = {
    "sync": [python(2 * MS), *kernels(100, 20 * US, 50 * US), SYNC],
    "syncs": [python(300 * US), *kernels(30, 20 * US, 60 * US), SYNC] * 2,
    "launches": kernels(300, 20 * US, 5 * US),
    "copy": [copy(5 * MS), python(MS), *kernels(100, 30 * US, 20 * US)],
    "loader": [load(5 * MS), *kernels(100, 30 * US, 40 * US), SYNC],
}


@pytest.mark.parametrize("slower", [1.5, 3, 6])
@pytest.mark.parametrize("name", HELD_UP)
def test_retimed_finds_the_recorders_cost_and_takes_it_away(name, slower):
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


LOOPS = {
    # Behind a device with much to do, all that the host does between the waits would be hidden.
    "reads": [*kernels(40, 20 * US, 100 * US), *[*kernels(1, 10 * US, 2 * US), SYNC, python(15 * US)] * 50],
    "branches": [
        *kernels(40, 20 * US, 100 * US),
        *[python(30 * US), *kernels(2, 10 * US, 2 * US), SYNC] * 30,
    ],
    "once": [python(2 * MS), *kernels(100, 20 * US, 50 * US), SYNC],
    "for nothing": [*kernels(100, 20 * US, 500 * US), SYNC],
}


@pytest.mark.parametrize("slower", [1, 1.5, 3])
@pytest.mark.parametrize("name", LOOPS)
def test_without_waiting_a_step_saves_what_the_host_does_after_it_too(name, slower):
    acts, plain = LOOPS[name], timed(LOOPS[name])
    timeline = recorded(acts, slower=slower)
    _, factor = retimed(timeline, plain.step_s, plain.wait_s)
    told = savings(timeline, plain.wait_s, factor)
    assert told.get("sync-per-step", 0.0) == pytest.approx(saved(acts, "sync"), abs=0.03)
    assert "h2d-blocking" not in told


def test_waits_for_copies_are_told_apart():
    acts = [pinned(5 * MS), SYNC, *kernels(100, 40 * US, 45 * US)]
    told = savings(recorded(acts, slower=1), None, 1.0)
    assert [cause for cause in told if cause in WITHOUT] == ["h2d-blocking"]
    assert told["h2d-blocking"] == pytest.approx(saved(acts, "sync"), abs=0.03)


BOTH = {
    "device first": [python(MS), *kernels(100, 20 * US, 60 * US)],
    "host first": [python(MS), *kernels(100, 60 * US, 20 * US)],
    "in turns": [*kernels(50, 20 * US, 60 * US), SYNC, python(2 * MS)],
    "alike": [*kernels(100, 50 * US, 48 * US)],
    "loader": [load(4 * MS), *kernels(100, 20 * US, 50 * US)],
}


@pytest.mark.parametrize("slower", [1, 2])
@pytest.mark.parametrize("name", BOTH)
def test_a_device_or_a_host_that_takes_no_time_saves_what_the_other_leaves(name, slower):
    acts, plain = BOTH[name], timed(BOTH[name])
    timeline = recorded(acts, slower=slower)
    _, factor = retimed(timeline, plain.step_s, plain.wait_s)
    told = savings(timeline, plain.wait_s, factor)
    idle = [dataclasses.replace(act, device=0) for act in acts]
    ready = [act if act.kind == "load" else dataclasses.replace(act, host=0) for act in acts]
    for what, without in (("device", idle), ("host", ready)):
        if (name, what) == ("device first", "device") and slower > 1:
            continue  # how fast the host is, a device that it keeps busy does not show
        assert told.get(what, 0.0) == pytest.approx(1 - timed(without).step_s / plain.step_s, abs=0.06), what


@pytest.mark.parametrize("slower", [1, 2])
@pytest.mark.parametrize(
    "acts",
    [
        [load(6 * MS), *kernels(100, 40 * US, 50 * US)],
        [load(3 * MS), *kernels(20, 300 * US, 50 * US)],
        [load(MS), *kernels(50, 10 * US, 100 * US)],
    ],
)
def test_without_waiting_for_batches_what_the_host_queues_after_them_is_saved_too(acts, slower):
    plain, timeline = timed(acts), recorded(acts, slower=slower)
    _, factor = retimed(timeline, plain.step_s, plain.wait_s)
    told = savings(timeline, plain.wait_s, factor)
    assert told.get("loader-bound", 0.0) == pytest.approx(saved(acts, "load"), abs=0.04)


def copying(*before: tuple[str, int, int]) -> Timeline:
    """Steps of 1 ms: operators on the host (name, begin and end in µs), a batch copied and waited for, a
    product."""
    made = Made()
    for number in range(5):
        at = number * 1000 * US
        made.annotation(f"ProfilerStep#{number}", at, at + 1000 * US)
        for name, begin, end in before:
            made.operator(name, at + begin * US, at + end * US)
        made.operator("aten::to", at + 410 * US, at + 700 * US)
        made.launch("cudaMemcpyAsync", at + 420 * US, at + 600 * US, correlation=10 * number)
        made.copy("Memcpy HtoD (Pageable -> Device)", at + 430 * US, at + 650 * US, correlation=10 * number)
        made.call("cudaStreamSynchronize", at + 610 * US, at + 660 * US)
        made.launch("cudaLaunchKernel", at + 715 * US, at + 725 * US, correlation=10 * number + 1)
        made.kernel("gemm", at + 730 * US, at + 990 * US, correlation=10 * number + 1)
    return made.timeline()


def test_without_tensors_made_on_the_host_their_copies_and_the_waits_for_these_go_too():
    told = savings(copying(("aten::randn", 0, 350), ("aten::sigmoid", 360, 400)), None, 1.0)
    # The product's 260 µs are left of a step, and what the host does besides.
    assert told["create-on-cpu-then-move"] == pytest.approx(0.65, abs=0.08)


def test_a_copy_after_a_number_that_was_drawn_and_read_is_of_something_else():
    told = savings(copying(("aten::rand", 0, 8), ("aten::item", 9, 12)), None, 1.0)
    assert "create-on-cpu-then-move" not in told


def test_without_pinning_the_copy_behind_it_begins_earlier_too():
    made = Made()
    for number in range(5):
        at = number * 100 * US
        made.annotation(f"ProfilerStep#{number}", at, at + 100 * US)
        made.operator("aten::pin_memory", at, at + 80 * US)
        for index, (name, stream) in enumerate((("Memcpy HtoD (Pinned -> Device)", 8), ("gemm", 7))):
            correlation = 10 * number + index
            made.launch(
                "cudaMemcpyAsync",
                at + (82 + 4 * index) * US,
                at + (84 + 4 * index) * US,
                correlation=correlation,
            )
            add = made.copy if stream == 8 else made.kernel
            add(
                name,
                at + (90 + 15 * index) * US,
                at + (100 + 15 * index) * US,
                correlation=correlation,
                stream=stream,
            )
    told = savings(made.timeline(), None, 1.0)
    assert told["pin-in-hot-loop"] > 0.6
    assert [cause for cause in told if cause in WITHOUT] == ["pin-in-hot-loop"]


def test_kernels_that_end_before_their_launch_returns_are_waited_for_only_if_nearly_all_do():
    def saved_by_waiting_less(*, ends: bool) -> dict[str, float]:
        made = Made()
        for number in range(5):
            at = number * 100 * US
            made.annotation(f"ProfilerStep#{number}", at, at + 100 * US)
            for index in range(4):
                launch = at + 25 * US * index
                early = ends or index == 0
                made.launch("cudaLaunchKernel", launch, launch + 20 * US, correlation=10 * number + index)
                start = launch + (10 if early else 30) * US
                made.kernel("relu", start, start + 2 * US, correlation=10 * number + index)
        return savings(made.timeline(), None, 1.0)

    assert "sync-per-step" not in saved_by_waiting_less(ends=False)
    # Each step waits in four launches for 20 of their 25 µs.
    assert saved_by_waiting_less(ends=True)["sync-per-step"] == pytest.approx(0.8)


def test_without_steps_nothing_is_saved():
    assert savings(Made().kernel("gemm", 0, 10).timeline(), None, 1.0) == {}
