from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.schema.trace_summary import Place, Shares, TraceSummary
from dynotune.trace.summary import summarise

from .made import Made

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
GEMM, COPY, ALL_REDUCE = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
    "Memcpy HtoD (Pinned -> Device)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
)


def training(*, rank: int | None = None, slow: int = 0) -> Made:
    """Four marked steps of 1000 ns: batch, copy, two kernels, an all-reduce, a wait."""
    made, num = Made(rank=rank), 0
    for number in range(4):
        now = 1000 * number
        made.annotation(f"ProfilerStep#{number}", now, now + 1000).python(
            "train.py(31): step", now, now + 1000
        )
        made.annotation(LOADER, now, now + 100).operator("aten::to", now + 100, now + 150)
        made.launch("cudaMemcpyAsync", now + 110, now + 120, correlation=num + 1)
        made.copy(COPY, now + 130, now + 230, correlation=num + 1, num_bytes=1000)
        made.operator("aten::mm", now + 150, now + 200)
        made.launch("cudaLaunchKernel", now + 160, now + 170, correlation=num + 2)
        made.kernel(GEMM, now + 200, now + 500 + slow, correlation=num + 2)
        made.launch("cudaLaunchKernel", now + 180, now + 190, correlation=num + 3)
        made.kernel(ALL_REDUCE, now + 500 + slow, now + 700, correlation=num + 3, stream=20)
        made.call("cudaDeviceSynchronize", now + 300, now + 710)
        num += 3
    return made


def summary(*timelines: Made) -> TraceSummary:
    return summarise([made.timeline() for made in timelines])


def test_everything_about_a_training_loop_is_in_the_summary():
    found = summary(training(rank=0))
    assert (found.window_s, found.num_steps, found.step_source) == (4e-6, 4, "profiler")
    assert found.step_s == [1e-6] * 4
    assert found.shares == Shares(
        compute=0.3,
        exposed_copy=0.07,
        exposed_communication=0.2,
        # A step's gap from 700 to 1130: the loader holds 1000 to 1100, and the wait outlasts the rest.
        idle_host=0.02 / 4,
        idle_loader=0.1,
        idle_sync=(3 * 320 + 300) / 4000,
        idle_kernel=0.01,
        idle_other=0.0,
    )
    device = found.devices[0]
    assert device.busy_s + device.idle_s == pytest.approx(device.window_s, abs=1e-15)
    assert device.overlap.compute_and_copy_s == 4 * 30e-9
    assert device.idle.sync_s == 1260e-9
    assert found.causes[0].id == "sync-per-step"
    assert [row.call for row in found.syncs] == ["cudaDeviceSynchronize"]
    assert found.communication[0].exposed_s == 800e-9
    assert {row.name for row in found.operators} == {"aten::to", "aten::mm"}
    assert set(found.unknown) == {"memory"}


def test_the_verdict_is_one_sentence_that_names_the_largest_loss_and_its_place():
    assert summary(training()).verdict == (
        "The device worked for 57.0% of the time (4 steps of 1 µs); the largest loss is synchronisations "
        "that emptied "
        "the device's queue at train.py(31): step, 31.5%."
    )


def test_the_longest_gaps_come_first_with_their_place():
    found = summary(training()).gaps
    assert [gap.duration_s for gap in found] == sorted((gap.duration_s for gap in found), reverse=True)
    assert found[0].cause == "sync"
    assert (found[0].start_s, found[0].duration_s) == (700e-9, 430e-9)
    assert found[0].where == Place("train.py(31): step")


def test_ranks_are_compared_and_stand_beside_each_other():
    found = summary(training(rank=0), training(rank=1, slow=100))
    assert [(row.rank, row.device) for row in found.devices] == [(0, 0), (1, 0)]
    assert found.ranks is not None
    assert [one.rank for one in found.ranks.stragglers] == [1]
    assert {row.rank for row in found.kernels} == {0, 1}


def test_a_rank_alone_has_the_same_figures_as_among_others():
    both = summary(training(rank=0), training(rank=1, slow=100))
    alone = [summary(training(rank=0)), summary(training(rank=1, slow=100))]
    for field in ("devices", "copies", "syncs", "allocations", "kernels", "communication", "operators"):
        assert getattr(both, field) == [row for one in alone for row in getattr(one, field)]


def test_a_trace_of_the_cpu_alone_has_no_device_and_says_so():
    made = (
        Made().annotation("ProfilerStep#1", 0, 1000).annotation(LOADER, 0, 400).operator("aten::mm", 400, 900)
    )
    found = summary(made)
    assert (found.shares, found.devices, found.gaps, found.kernels) == (None, [], [], [])
    assert set(found.unknown) == {"device", "memory", "stacks"}
    assert [(cause.id, cause.share) for cause in found.causes] == [("loader-bound", 0.4)]
    assert found.verdict == (
        "No device work was recorded: 1 step of 1 µs on the host; the longest operator is aten::mm, 50.0%."
    )


def test_a_loader_that_takes_longer_than_any_operator_stands_in_the_cpus_verdict():
    made = (
        Made().annotation("ProfilerStep#1", 0, 1000).annotation(LOADER, 0, 600).operator("aten::mm", 600, 900)
    )
    assert summary(made).verdict == (
        "No device work was recorded: 1 step of 1 µs on the host; the largest loss is waiting for the data "
        "loader at "
        f"{LOADER}, 60.0%."
    )


def test_a_loader_in_the_background_of_the_cpu_costs_what_the_working_thread_does_not_cover():
    made = Made().annotation("ProfilerStep#1", 0, 1000).operator("aten::mm", 0, 700)
    (cause,) = summary(made.annotation(LOADER, 100, 900, thread="prefetch")).causes
    assert (cause.id, cause.share) == ("loader-bound", 0.2)


def test_without_causes_the_cpus_verdict_names_the_longest_operator():
    found = summary(Made().annotation("ProfilerStep#1", 0, 1000).operator("aten::mm", 400, 900))
    assert found.verdict.endswith("the longest operator is aten::mm, 50.0%.")


def test_a_cpus_step_without_operators_is_told_by_its_longest_annotation():
    made = (
        Made().annotation("ProfilerStep#1", 0, 1000).annotation("gloo:all_reduce", 100, 600, thread="first")
    )
    made.annotation("gloo:all_reduce", 500, 950, thread="second").annotation("gloo:all_reduce", 2000, 9000)
    assert summary(made).verdict == (
        "No device work was recorded: 1 step of 1 µs on the host, with no operator recorded; "
        "gloo:all_reduce takes 85.0% of it."
    )
    found = summary(made.operator("aten::empty", 3000, 3001))
    assert "in which no operator ran; gloo:all_reduce" in found.verdict


def test_a_cpus_step_with_nothing_inside_says_so():
    made = Made().annotation("ProfilerStep#1", 0, 1000).operator("aten::empty", 3000, 3001)
    assert summary(made).verdict == (
        "No device work was recorded: 1 step of 1 µs on the host, in which no operator ran."
    )


def test_a_trace_in_which_nothing_happened_says_so():
    found = summary(Made().annotation("nothing", 0, 100))
    assert (found.window_s, found.num_steps, found.shares) == (None, None, None)
    assert found.verdict == "The trace holds no work: no operator, no call and no device activity."
    assert {"device", "steps"} <= set(found.unknown)


def test_idle_time_without_recorded_launches_is_noted():
    found = summary(Made().kernel(GEMM, 0, 10).kernel(GEMM, 50, 100))
    assert "launches" in found.unknown
    assert found.notes == ["40.0% of the window is idle, and the work that ended it has no recorded launch"]


def test_summary_keeps_the_readers_notes():
    timeline = dataclasses.replace(
        training().timeline(), notes=("cut short",), missing={"memory": "not asked for"}
    )
    found = summarise([timeline])
    assert found.notes == ["cut short"]
    assert found.unknown["memory"].reason == "not asked for"


def test_the_summary_survives_the_way_through_json():
    found = summary(training(rank=0), training(rank=1, slow=100))
    assert msgspec.json.decode(msgspec.json.encode(found), type=TraceSummary) == found


@st.composite
def anything(draw: st.DrawFn) -> Made:
    """Spans of all kinds at random."""
    made = Made(rank=draw(st.none() | st.integers(0, 3)))
    names = {
        "operator": ["aten::mm", "Optimizer.step#Adam.step", "DistributedDataParallel.forward"],
        "annotation": ["ProfilerStep#1", "ProfilerStep#2", LOADER, "forward"],
        "python": ["train.py(3): step", "torch/nn/x.py(4): f", "nn.Module: Net_0"],
        "call": [
            "cudaLaunchKernel",
            "cudaMalloc",
            "cudaFree",
            "cudaStreamSynchronize",
            "cudaHostAlloc",
            "cudaGraphLaunch",
        ],
        "kernel": [GEMM, ALL_REDUCE, "ampere_sgemm_128x64_tn", "nchwToNhwcKernel"],
        "copy": [COPY, "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"],
    }
    for _ in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(list(names)))
        start = draw(st.integers(0, 200))
        fields: dict[str, Any] = {"start": start, "end": start + draw(st.integers(0, 100))}
        if kind in ("call", "kernel", "copy"):
            fields["correlation"] = draw(st.integers(-1, 8))
        if kind in ("kernel", "copy"):
            fields["device"] = draw(st.integers(0, 1))
        else:
            fields["thread"] = draw(st.sampled_from("ab"))
        getattr(made, kind)(draw(st.sampled_from(names[kind])), **fields)
    return made


@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(anything(), min_size=1, max_size=2))
def test_summary_shares_sum_to_one_and_nothing_is_negative(ranks: list[Made]):
    found = summary(*ranks)
    if found.shares is not None:
        parts = msgspec.structs.astuple(found.shares)
        assert all(part >= 0 for part in parts)
        assert sum(parts) == pytest.approx(1, abs=1e-9)
    for device in found.devices:
        assert device.busy_s + device.idle_s == pytest.approx(device.window_s, abs=1e-12)
        assert sum(msgspec.structs.astuple(device.overlap)) == pytest.approx(device.busy_s, abs=1e-12)
        assert sum(msgspec.structs.astuple(device.idle)) == pytest.approx(device.idle_s, abs=1e-12)
    assert all(cause.share >= 0.01 and cause.lost_s >= 0 for cause in found.causes)
    assert found.verdict.endswith(".")
    assert len(found.verdict.splitlines()) == 1


@pytest.mark.long
@settings(max_examples=40)
@given(anything(), st.integers(0, 10**18))
def test_the_clocks_zero_does_not_matter(made: Made, later: int):
    timeline = made.timeline()
    host, device = timeline.host, timeline.device
    moved = dataclasses.replace(
        timeline,
        host=dataclasses.replace(host, start_ns=host.start_ns + later, end_ns=host.end_ns + later),
        device=dataclasses.replace(device, start_ns=device.start_ns + later, end_ns=device.end_ns + later),
    )
    assert summarise([moved]) == summarise([timeline])


def test_work_that_was_queued_before_the_recording_began_is_said_to_lengthen_the_step():
    made = Made().annotation("ProfilerStep#1", 0, 1000).kernel("before", 0, 300)
    made.launch("cudaLaunchKernel", 290, 310, correlation=1).kernel("own", 320, 1000, correlation=1)
    (note,) = summarise([made.timeline()]).notes
    assert note.startswith(
        "the first 300 ns of the window went to work that was queued before the recording began"
    )


def test_work_without_a_recorded_launch_after_the_first_that_has_one_is_not_left_over():
    made = Made().annotation("ProfilerStep#1", 0, 1000).launch("cudaLaunchKernel", 0, 5, correlation=1)
    made.kernel("own", 5, 300, correlation=1).kernel("unlaunched", 300, 1000)
    assert summarise([made.timeline()]).notes == []


@pytest.mark.parametrize("index", [-1, 2**31 - 1])
def test_work_on_a_device_whose_index_is_odd_or_not_told_is_counted_all_the_same(index: int):
    timeline = Made().kernel(GEMM, 0, 10).kernel(GEMM, 50, 100).timeline()
    device = dataclasses.replace(timeline.device, device=np.full(2, index, dtype=np.int32))
    (row,) = summarise([dataclasses.replace(timeline, device=device)]).devices
    assert (row.device, row.busy_s) == (index, 60e-9)
