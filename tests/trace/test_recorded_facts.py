"""Facts of real traces against their raw events, read and added up one by one."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest

from dynotune.schema.trace_summary import TraceSummary
from dynotune.trace.facts import busy_time, idle, steps
from dynotune.trace.summary import summarise
from dynotune.trace.timeline import UNKNOWN, Timeline

from .recorded import NAMES, raw, timeline_of

WITH_DEVICE = [name for name in NAMES if name != "hta-cpu-only"]

Span = tuple[int, int]


@cache
def summary_of(name: str) -> TraceSummary:
    return summarise([timeline_of(name)])


@cache
def raw_device_spans(name: str) -> list[tuple[str, str, int, int]]:
    """Category, name, start and end in nanoseconds of what ran on the device, to the last digit of the
    file."""
    return [
        (event["cat"], event["name"], int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000))
        for event in raw(name)
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    ]


def union_ns(spans: list[Span], window: Span) -> int:
    """Nanoseconds of the window that the spans cover."""
    total, reached = 0, window[0]
    for start, end in sorted(spans):
        begin, stop = max(start, reached), min(end, window[1])
        if stop > begin:
            total, reached = total + stop - begin, stop
    return total


def raw_clock(name: str) -> int:
    """What the reader added to the file's times."""
    first = min(start for _, _, start, _ in raw_device_spans(name))
    return int(timeline_of(name).device.start_ns.min()) - first


def window_of(name: str) -> Span:
    timeline = timeline_of(name)
    return steps.window(timeline, steps.find(timeline))


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_busy_and_idle_time_are_those_of_the_raw_events(name: str):
    timeline, window, moved = timeline_of(name), window_of(name), raw_clock(name)
    spans = [
        (kind, kernel, start + moved, end + moved) for kind, kernel, start, end in raw_device_spans(name)
    ]
    (device,) = timeline.devices
    busy = busy_time.busy(timeline, device, window)
    copies = [(start, end) for kind, _, start, end in spans if kind == "gpu_memcpy"]
    collectives = [(start, end) for _, kernel, start, end in spans if "nccl" in kernel]
    compute = [
        (start, end) for kind, kernel, start, end in spans if kind != "gpu_memcpy" and "nccl" not in kernel
    ]
    assert busy.total_ns == union_ns(copies + collectives + compute, window)
    assert busy.any_compute_ns == union_ns(compute, window)
    assert busy.any_copy_ns == union_ns(copies, window)
    assert busy.any_communication_ns == union_ns(collectives, window)
    assert sum(dataclasses.astuple(busy)) == busy.total_ns
    idle_ns = idle.gaps(timeline, device, window).idle_ns()
    assert busy.total_ns + sum(idle_ns.values()) == window[1] - window[0]


@pytest.mark.parametrize(
    ("name", "idle_us", "kernels_us", "others_us"),
    [("h100-timesformer", 1559.3, 154855.6, 3577.6), ("hta-trace-diff-control", 76007.0, 281336.0, 107251.0)],
)
def test_over_the_devices_own_span_the_figures_are_those_found_by_hand(
    name: str, idle_us: float, kernels_us: float, others_us: float
):
    timeline = timeline_of(name)
    window = int(timeline.device.start_ns.min()), int(timeline.device.end_ns.max())
    (device,) = timeline.devices
    found = idle.gaps(timeline, device, window)
    assert round(sum(found.idle_ns().values()) / 1000, 1) == idle_us
    kernels = [
        (start, end)
        for kind, kernel, start, end in raw_device_spans(name)
        if kind == "kernel" and "nccl" not in kernel
    ]
    first = min(start for _, _, start, _ in raw_device_spans(name))
    length = window[1] - window[0]
    assert round(union_ns(kernels, (first, first + length)) / 1000, 1) == kernels_us
    busy = busy_time.busy(timeline, device, window).total_ns
    assert round(busy / 1000 - kernels_us, 1) == others_us


def without(timeline: Timeline, *beginnings: str) -> Timeline:
    """The timeline without the host's spans of these names."""
    gone = np.array([name.startswith(beginnings) for name in timeline.names])
    kept = ~gone[timeline.host.name]
    row = np.cumsum(kept) - 1
    host = type(timeline.host)(
        **{
            field.name: getattr(timeline.host, field.name)[kept]
            for field in dataclasses.fields(timeline.host)
        }
    )
    launch = timeline.device.launch
    device = dataclasses.replace(timeline.device, launch=np.where(launch == UNKNOWN, UNKNOWN, row[launch]))
    return dataclasses.replace(timeline, host=host, device=device)


MARKS = ("ProfilerStep", "Optimizer.", "enumerate(", "nn.Module")


@pytest.mark.parametrize("gone", [MARKS[:1], MARKS[:2], MARKS], ids=["profiler", "optimizer", "all marks"])
@pytest.mark.parametrize(
    ("name", "least"), [("hta-queue-rank0", 4), ("hta-trace-diff-control", 6), ("hta-trace-diff-test", 6)]
)
def test_without_the_profilers_marks_the_same_steps_are_found(name: str, least: int, gone: tuple[str, ...]):
    timeline = timeline_of(name)
    marked, found = steps.find(timeline), steps.find(without(timeline, *gone))
    assert found.source == "repetition"
    assert least <= len(found) <= len(marked)
    # From the start of one step to that of the next, whichever of them the first one found is.
    between, expected = np.diff(found.start_ns), np.diff(marked.start_ns)[-len(found) + 1 :]
    assert np.abs(between - expected).max() <= 0.15 * expected.mean()


@pytest.mark.parametrize("gone", [MARKS[:1], MARKS], ids=["profiler", "all marks"])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name.startswith(("h100", "hta-sampled", "hta-alexnet"))]
)
def test_one_or_two_steps_are_not_told_from_their_layers_and_so_there_are_none(
    name: str, gone: tuple[str, ...]
):
    assert steps.find(without(timeline_of(name), *gone)).source is None


def test_a_video_transformer_waits_for_the_host_that_prepares_its_pictures():
    found = summary_of("h100-timesformer")
    first = found.causes[0]
    assert (first.id, round(first.share, 3)) == ("host-bound", 0.567)
    assert (
        first.where.function
        == "moca/library/model_hub/huggingface/model/adapters/pipeline/model.py(40): run_on_input"
    )
    assert any("image_processing_videomae.py(178): _preprocess_image" in line for line in first.evidence)
    others = {"manual-attention", "gemm-misaligned", "sync-per-step"}
    assert {cause.id for cause in found.causes} == {"host-bound", *others}
    misaligned = next(cause for cause in found.causes if cause.id == "gemm-misaligned")
    assert round(misaligned.lost_s * 1e9) == 43_207_642


def test_a_language_model_on_one_gpu_is_busy_with_pointwise_kernels():
    found = summary_of("h100-qwen1.5-0.5b")
    assert found.shares is not None
    assert round(found.shares.compute, 3) == 0.919
    assert found.causes[0].id == "compile-default"


def test_graphs_whose_kernels_were_not_all_recorded_stall():
    first = summary_of("hta-queue-rank0").causes[0]
    assert (first.id, first.where.call) == ("queue-stalled", "cudaGraphLaunch")


def test_a_recommender_waits_for_its_collectives_first():
    found = summary_of("hta-trace-diff-control")
    expected = ["communication-exposed", "host-bound", "gemm-misaligned", "h2d-not-overlapped"]
    assert [cause.id for cause in found.causes[:4]] == expected
    assert found.shares is not None
    assert round(found.shares.exposed_communication, 3) == 0.188


def test_on_a_v100_its_float32_products_miss_the_tensor_cores():
    assert summary_of("hta-trace-diff-test").causes[0].id == "amp-absent"


def test_a_trace_of_the_cpu_alone_has_its_step_and_no_device():
    found = summary_of("hta-cpu-only")
    assert (found.num_steps, found.shares, found.causes) == (1, None, [])
    assert "device" in found.unknown


def test_two_ranks_are_summarised_together():
    names = ("hta-sampled-rank-0", "hta-sampled-rank-1")
    both = summarise([timeline_of(name) for name in names])
    assert both.devices == [row for name in names for row in summary_of(name).devices]
    assert both.ranks is not None
    assert len(both.ranks.ranks) == 2
