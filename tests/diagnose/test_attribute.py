from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.attribute import attribute
from dynotune.diagnose.rank_attribution import attributed
from dynotune.schema.attribution import Attribution
from dynotune.schema.causes import CAUSES
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import ProcessState
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import (
    Cause,
    Copies,
    DeviceTime,
    HostTime,
    Idle,
    Overlap,
    TraceSummary,
)
from dynotune.trace.summary import summarise

from ..doctor.observations import timing
from ..trace.made import Made
from .simulated import MS, SYNC, US, copy, drawn, kernels, load, pinned, python, recorded, saved, timed

seconds = st.floats(0, 1)
RELATIVE = 0.1
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def of(acts, *, slower: float) -> Attribution:
    found = attribute(timed(acts), summarise([recorded(acts, slower=slower)]))
    assert isinstance(found, Attribution)
    return found


# The truth is known


@pytest.mark.parametrize("slower", [1, 1.5, 3, 6])
@pytest.mark.parametrize(
    "acts",
    [
        [load(20 * MS), *kernels(100, 20 * US, 100 * US), SYNC],
        [load(20 * MS), *kernels(100, 20 * US, 100 * US)],
        pytest.param([load(20 * MS), *kernels(100, 150 * US, 190 * US)], marks=pytest.mark.long),
        pytest.param([load(3 * MS), python(MS), *kernels(100, 60 * US, 20 * US)], marks=pytest.mark.long),
        pytest.param([drawn(20 * MS), *kernels(100, 20 * US, 100 * US)], marks=pytest.mark.long),
        pytest.param([drawn(20 * MS), *kernels(100, 20 * US, 100 * US), SYNC], marks=pytest.mark.long),
        pytest.param([drawn(12 * MS), *kernels(100, 60 * US, 80 * US)], marks=pytest.mark.long),
    ],
    ids=["sync", "async", "long-queue", "host-bound", "worker", "worker-sync", "worker-close"],
)
def test_the_share_of_input_is_what_a_step_without_it_saves(acts, slower):
    assert of(acts, slower=slower).shares.input == pytest.approx(saved(acts, "load", "drawn"), rel=RELATIVE)


@pytest.mark.parametrize("slower", [1, 3, 6])
def test_a_loader_that_the_device_never_waits_for_costs_nothing(slower):
    for acts in (
        [load(20 * MS), *kernels(100, 20 * US, 300 * US)],
        [drawn(5 * MS), *kernels(100, 20 * US, 100 * US)],
    ):
        assert of(acts, slower=slower).shares.input < 0.01


@pytest.mark.parametrize("slower", [1, 1.5, 3, 6])
@pytest.mark.parametrize(
    "acts",
    [
        [copy(5 * MS), *kernels(100, 20 * US, 100 * US)],
        [copy(5 * MS), *kernels(100, 20 * US, 100 * US), SYNC],
        pytest.param([copy(5 * MS), *kernels(100, 100 * US, 20 * US)], marks=pytest.mark.long),
        pytest.param([pinned(5 * MS), *kernels(100, 20 * US, 100 * US)], marks=pytest.mark.long),
    ],
)
def test_the_share_of_transfer_is_what_a_step_without_it_saves(acts, slower):
    assert of(acts, slower=slower).shares.transfer == pytest.approx(
        saved(acts, "copy", "pinned"), rel=RELATIVE
    )


@pytest.mark.parametrize("slower", [1, 1.5, 3, 6])
def test_attribution_counts_the_cost_of_a_synchronisation_as_the_hosts_share(slower):
    for acts in (
        [python(2 * MS), *kernels(100, 20 * US, 50 * US), SYNC],
        [python(300 * US), *kernels(30, 20 * US, 60 * US), SYNC] * 2,
    ):
        assert of(acts, slower=slower).shares.host == pytest.approx(saved(acts, "sync"), rel=RELATIVE)


@pytest.mark.parametrize("slower", [1, 1.5, 3, 6])
@pytest.mark.parametrize(
    "acts",
    [
        [python(2 * MS), *kernels(100, 20 * US, 50 * US), SYNC],
        [python(500 * US), *kernels(100, 80 * US, 100 * US), SYNC],
        pytest.param([python(300 * US), *kernels(30, 20 * US, 60 * US), SYNC] * 2, marks=pytest.mark.long),
        pytest.param([python(5 * MS), *kernels(50, 20 * US, 100 * US), SYNC], marks=pytest.mark.long),
        pytest.param(
            [*kernels(50, 20 * US, 100 * US), SYNC, python(MS), *kernels(50, 20 * US, 100 * US)],
            marks=pytest.mark.long,
        ),
    ],
)
def test_of_the_timeline_brought_to_the_step_a_synchronisation_costs_what_a_step_without_it_saves(
    acts, slower
):
    timeline = recorded(acts, slower=slower)
    found = attributed([ProcessState(pid=1, timing=timed(acts))], summarise([timeline]), [timeline])
    assert isinstance(found, Attribution)
    told = sum(loss.share for loss in found.lost_time if loss.id == "sync-per-step")
    assert told == pytest.approx(saved(acts, "sync"), rel=RELATIVE)
    assert found.slowed == pytest.approx(summarise([timeline]).window_s / 10 / timed(acts).step_s)


def test_waiting_for_kernels_that_had_to_run_costs_nothing():
    acts = [*kernels(100, 20 * US, 500 * US), SYNC]
    found = of(acts, slower=2)
    assert found.shares.device > 0.99
    assert sum(loss.share for loss in found.lost_time if loss.id == "sync-per-step") < 0.01


def test_a_device_that_starves_for_launches_waits_for_the_host():
    found = of(kernels(300, 20 * US, 5 * US), slower=3)
    assert found.shares.host == pytest.approx(0.75, abs=0.01)
    assert found.busy_share == pytest.approx(0.25, abs=0.01)
    assert found.slowed == pytest.approx(3, rel=0.05)


# Arithmetic


def summary(device: DeviceTime, causes: list[Cause], host: HostTime, copies: list[Copies], num_steps=10):
    return TraceSummary(
        files=["a"],
        recorder="torch.profiler",
        verdict="",
        window_s=device.window_s,
        num_steps=num_steps,
        step_source="profiler",
        shares=None,
        causes=causes,
        devices=[device],
        gaps=[],
        copies=copies,
        syncs=[],
        allocations=[],
        kernels=[],
        communication=[],
        ranks=None,
        operators=[],
        hosts=[host],
    )


@st.composite
def traces(draw) -> TraceSummary:
    overlap = Overlap(*(draw(seconds) for _ in range(7)))
    idle = Idle(*(draw(seconds) for _ in range(5)))
    busy_s, idle_s = sum(msgspec.structs.astuple(overlap)), sum(msgspec.structs.astuple(idle))
    window_s = busy_s + idle_s or 1.0
    device = DeviceTime(
        rank=None,
        device=0,
        window_s=window_s,
        busy_s=busy_s,
        compute_s=0.0,
        copy_s=0.0,
        communication_s=0.0,
        idle_s=idle_s,
        overlap=overlap,
        idle=idle,
        late_s=draw(st.floats(0, 1)) * idle.kernel_s,
    )
    causes = [
        Cause(
            id=id_,
            lost_s=share * window_s,
            share=share,
            claim="",
            work_s=draw(st.floats(0, 1)) * share * window_s,
        )
        for id_ in draw(st.lists(st.sampled_from([*CAUSES, "not-known-yet"]), max_size=5))
        for share in [draw(st.floats(0.01, 1))]
    ]
    kinds = draw(st.lists(st.sampled_from(["HtoD", "DtoH", "DtoD", "PtoP"]), max_size=3))
    copies = [
        Copies(
            rank=None,
            kind=kind,
            pinned=None,
            num=1,
            num_bytes=None,
            total_s=1,
            bytes_per_s=None,
            exposed_s=0.1,
        )
        for kind in kinds
    ]
    host = HostTime(
        rank=None,
        window_s=window_s,
        loader_s=idle.loader_s + draw(seconds),
        operator_s=draw(seconds),
        communication_s=draw(seconds),
        loader_in_background=draw(st.booleans()),
    )
    return summary(device, causes, host, copies)


@st.composite
def timings(draw) -> Timing:
    step_s = draw(st.floats(1e-6, 1))
    return timing(step_s=step_s, wait_s=draw(st.none() | st.floats(0, 1).map(lambda part: part * step_s)))


@given(timings(), traces())
def test_shares_sum_to_one_and_no_loss_exceeds_its_step(timed_, trace):
    found = attribute(timed_, trace)
    assert isinstance(found, Attribution)
    shares = msgspec.structs.astuple(found.shares)
    assert all(share >= 0 for share in shares)
    assert sum(shares) == pytest.approx(1)
    assert all(0 < loss.share <= 1 + 1e-9 for loss in found.lost_time)
    assert found.busy_share is not None
    assert 0 <= found.busy_share <= 1


@given(timings(), traces())
def test_a_loss_is_at_most_the_part_that_it_lies_in(timed_, trace):
    found = attribute(timed_, trace)
    most = {"loader": found.shares.input, "communication": found.shares.communication, "host": 1.0}
    for loss in found.lost_time:
        part = CAUSES[loss.id].part if loss.id in CAUSES else "compute"
        only_idle = not any(cause.work_s for cause in trace.causes if cause.id == loss.id)
        if part in ("loader", "communication") and only_idle:
            assert loss.share <= most[part] + 1e-9 or any(row.kind == "PtoP" for row in trace.copies)


@given(timings(), traces(), st.floats(0, 0.5))
def test_more_waiting_for_batches_is_never_a_smaller_share(timed_, trace, more):
    if timed_.wait_s is None:
        return
    longer = msgspec.structs.replace(timed_, wait_s=timed_.wait_s + more)
    assert attribute(longer, trace).shares.input >= attribute(timed_, trace).shares.input - 1e-12


# Special cases


def test_a_step_shorter_than_the_devices_recorded_work_is_noted_and_shared_in_proportion():
    acts = [*kernels(100, 20 * US, 100 * US)]
    trace = summarise([recorded(acts, slower=1)])
    found = attribute(timing(step_s=0.005), trace)
    assert found.shares.device == pytest.approx(1)
    assert any("clocks changed" in note for note in found.notes)
    assert not attribute(timing(step_s=0.0099), trace).notes


def test_attribution_lays_time_to_nobody_when_no_recorded_step_had_it():
    """Now and then a step is slow: the window holds some, the ten that were recorded none."""
    acts = [python(MS), *kernels(100, 20 * US, 100 * US)]
    recording, plain = summarise([recorded(acts, slower=1)]), timed(acts)
    longer = msgspec.structs.replace(plain, step_s=1.5 * plain.step_s, wait_s=None)
    found = attribute(longer, recording)
    assert found.shares.host == pytest.approx(0, abs=0.01)
    assert found.shares.other == pytest.approx(1 / 3, abs=0.02)
    assert any("not in the recorded steps" in note for note in found.notes)
    waited = attribute(msgspec.structs.replace(longer, wait_s=1.0), recording)
    assert waited.shares.input == pytest.approx(1 / 3, abs=0.02)
    assert not waited.notes
    collected = attribute(longer, recording, garbage_s=0.2 * longer.step_s)
    assert collected.shares.host == pytest.approx(0.2, abs=0.02)
    assert not [loss for loss in collected.lost_time if loss.id == "host-bound" and loss.share > 0.02]


def test_counterfactual_savings_are_shares_of_the_plain_step():
    acts = [python(MS), *kernels(100, 20 * US, 100 * US)]
    recording, plain = summarise([recorded(acts, slower=1)]), timed(acts)
    assert attribute(
        plain, recording, without={"sync-per-step": 0.3}
    ).counterfactual_savings == pytest.approx({"sync-per-step": 0.3}, rel=0.02)
    longer = msgspec.structs.replace(plain, step_s=2 * plain.step_s)
    assert (
        attribute(longer, recording, without={"sync-per-step": 0.3}).counterfactual_savings["sync-per-step"]
        < 0.16
    )


def test_copies_within_the_device_are_its_work_and_those_between_devices_communication():
    made = Made()
    for number in range(3):
        at = number * 100
        made.annotation(f"ProfilerStep#{number}", at, at + 100)
        for index, (name, length) in enumerate(
            [("Memcpy DtoD (Device -> Device)", 20), ("Memcpy PtoP (Device -> Device)", 30), ("gemm", 40)]
        ):
            start = at + 5 + (0, 20, 50)[index]
            made.launch("cudaMemcpyAsync", at + index, at + index + 1, correlation=10 * number + index)
            add = made.kernel if name == "gemm" else made.copy
            add(name, start, start + length, correlation=10 * number + index)
    found = attribute(timing(step_s=100e-9), summarise([made.timeline()]))
    assert found.shares.device == pytest.approx(0.6)
    assert found.shares.communication == pytest.approx(0.3)
    assert found.shares.transfer == 0


@pytest.mark.parametrize(("joined", "waits"), [((60, 90), 0.3), ((90, 60), 0.3), ((90, 90), None)])
def test_rank_imbalance_is_no_less_when_the_slowest_rank_is_the_busiest(joined, waits):
    timelines = []
    for rank, at in enumerate(joined):
        made = Made(rank=rank)
        for number in range(3):
            begin = number * 100 * MS
            made.annotation(f"ProfilerStep#{number}", begin, begin + 100 * MS)
            for index, (name, start, end) in enumerate([("gemm", 0, at), (ALL_REDUCE, at, 100)]):
                made.launch(
                    "cudaLaunchKernel", begin + index, begin + index + 1, correlation=10 * number + index
                )
                made.kernel(name, begin + start * MS + 5, begin + end * MS, correlation=10 * number + index)
        # That collectives end together is believed only of clocks that agree.
        timelines.append(dataclasses.replace(made.timeline(), clock_base_ns=0))
    found = attribute(timing(step_s=0.1), summarise(timelines))
    lost = {loss.id: loss.share for loss in found.lost_time}
    assert lost.get("rank-imbalance") == (None if waits is None else pytest.approx(waits, abs=0.01))


def on_the_host(*, operator=40, loader=30, gloo=0, python=30, background=False) -> TraceSummary:
    """Three steps of 100 ns on the CPU."""
    made = Made()
    step = operator + loader + gloo + python
    for number in range(3):
        at = number * step
        made.annotation(f"ProfilerStep#{number}", at, at + step)
        made.annotation(
            "enumerate(DataLoader)#_Iter.__next__", at, at + loader, thread="other" if background else "main"
        )
        # An operator inside the loader is the loader's.
        made.operator("aten::stack", at, at + loader // 2, thread="other" if background else "main")
        made.operator("aten::linear", at + loader, at + loader + operator)
        made.operator("aten::addmm", at + loader, at + loader + operator // 2)
        if gloo:
            made.operator(
                "gloo:all_reduce", at + loader + operator - 5, at + loader + operator + gloo, thread="gloo"
            )
    return summarise([made.timeline()])


def test_without_a_device_operators_keep_their_time_and_python_gets_the_rest():
    found = attribute(timing(step_s=80e-9, wait_s=30e-9), on_the_host())
    assert found.shares.input == pytest.approx(30 / 80)
    assert found.shares.device == pytest.approx(40 / 80)
    assert found.shares.host == pytest.approx(10 / 80)
    assert found.busy_share is None
    assert (found.shares.transfer, found.shares.communication) == (0, 0)


def test_without_a_device_python_gets_no_more_than_was_recorded():
    found = attribute(timing(step_s=200e-9, wait_s=30e-9), on_the_host(), garbage_s=20e-9)
    assert found.shares.host == pytest.approx((30 + 20) / 200)
    assert found.shares.other == pytest.approx(80 / 200)
    assert found.notes


def test_without_a_device_what_the_loader_costs_is_its_wait_in_the_plain_run():
    found = attribute(timing(step_s=100e-9, wait_s=60e-9), on_the_host())
    (loss,) = [loss for loss in found.lost_time if loss.id == "loader-bound"]
    assert loss.share == pytest.approx(found.shares.input) == pytest.approx(0.6)


def test_collectives_of_the_cpu_count_where_no_operator_runs():
    found = attribute(timing(step_s=120e-9, wait_s=30e-9), on_the_host(gloo=20))
    assert found.shares.communication == pytest.approx(20 / 120)
    assert found.shares.device == pytest.approx(40 / 120)


def test_a_loader_on_another_thread_counts_by_what_the_trace_saw_of_it():
    plain = timing(step_s=100e-9, wait_s=99e-9)
    assert attribute(plain, on_the_host(background=True)).shares.input == pytest.approx(0.3)


def test_attribution_is_unknown_with_the_reason_when_facts_are_missing():
    trace = on_the_host()
    known = timing(step_s=1.0)
    for told, reason in (
        (attribute(known, msgspec.structs.replace(trace, window_s=None)), "no work"),
        (attribute(known, msgspec.structs.replace(trace, num_steps=None)), "steps"),
        (attribute(known, msgspec.structs.replace(trace, hosts=[])), "host"),
        (attribute(known, trace, uses_device=True), "device"),
        (attribute(timing(step_s=0.0), trace), "length"),
    ):
        assert isinstance(told, Unknown)
        assert reason in told.reason
