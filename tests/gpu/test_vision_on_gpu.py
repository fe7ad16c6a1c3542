"""The detector where its streams lag, what it allocates, and how often the host waits."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynotune.runtime.errors import NumericsError
from dynotune.runtime.streams import CudaStreams
from dynotune.runtime.vision import detector as vision
from dynotune.runtime.vision import network, nms
from dynotune.runtime.vision.kernels import kernels_of
from dynotune.runtime.vision.letterbox import Letterbox, place, rows_read

from ..runtime.kernel_cases import PLACES, outputs
from ..runtime.yolo_like import EndToEnd, YoloLike, frames
from .delays import CYCLES, fresh_allocator, lag, num_allocations

pytestmark = pytest.mark.gpu

SIZE = (48, 64)
LAG = CYCLES // 4


def detector(model=None, **options):
    options = {"imgsz": 64, "max_frame": (96, 128), "conf": 0.5, "iou": 0.5, "compile": False, **options}
    ours = vision.Detector((model or YoloLike()).cuda(), **options)
    ours.prepare(SIZE)
    return ours


def graphs_of(detector):
    """What the graphs of each lane begin with: the frames of a size, or None for the images."""
    networks = detector._lanes.networks.values()
    return [set(lane.graphs) for network in networks for lane in network._lanes]


def same(found, want):
    return len(found) == len(want) and all(
        torch.equal(one.rows, other.rows) for one, other in zip(found, want, strict=True)
    )


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("model", [YoloLike, EndToEnd])
def test_results_are_those_of_the_cpu(model, batch, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    many = [*frames(6), *frames(3, (96, 40), seed=4)]
    with (
        vision.Detector(model(), 64, 0.5, 0.5, max_frame=(96, 128)) as cpu,
        detector(model(), batch=batch) as gpu,
    ):
        for want, found in zip(cpu.predict(many), gpu.predict(many), strict=True):
            assert found.rows.device.type == "cpu"
            assert len(found) == len(want) > 0
            torch.testing.assert_close(found.rows, want.rows, atol=2e-3, rtol=1e-4)
        for engine in gpu.stats().engines.values():
            assert [bucket.mode for bucket in engine.buckets] == ["graph"]
        assert all(graphs & {SIZE, (96, 40)} for graphs in graphs_of(gpu))


@pytest.mark.parametrize("size", [(48, 64), (1080, 1920), (333, 517)], ids=str)
def test_the_letterbox_is_that_of_the_cpu(size):
    at = place(size, (640, 640))
    batch = torch.from_numpy(np.stack(frames(2, size)))
    made = []
    for device in ("cpu", "cuda"):
        out = torch.empty(2, 3, at.height, at.width, device=device)
        Letterbox(at, torch.device(device), swap_channels=True)(batch.to(device), out)
        made.append(out.cpu() * 255)
    # Where a level lies between two, the last bit decides.
    assert (made[0] - made[1]).abs().max() <= 1.01
    assert (made[0] - made[1]).abs().mean() <= 0.01


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 5), st.booleans())
def test_the_letterboxs_kernel_makes_the_picture_of_torchs_operations_to_the_last_bit(
    height, width, num, swap
):
    device = torch.device("cuda", 0)
    at, many = (
        place((height, width), (320, 320)),
        torch.randint(0, 256, (num, height, width, 3), dtype=torch.uint8),
    )
    rows = rows_read(at)
    of_kernel = Letterbox(at, device, swap_channels=swap, rows=rows)
    of_torch = Letterbox(at, torch.device("cpu"), swap_channels=swap, rows=rows)
    sent = many if rows is None else many[:, rows]
    assert kernels_of("letterbox_kernels", device) is not None
    assert torch.equal(of_kernel.picture(sent.to(device)).cpu(), of_torch.picture(sent))


STREAMS = {
    "before": lambda lanes: [lanes._before],
    "forward": lambda lanes: [track.stream for track in lanes._tracks],
}


def check_lagging(lagging, broken=None, num=6, given=lambda frame: frame):
    """Several batches at once, with one kind of streams far behind the host and the others."""
    fresh_allocator()
    many = [given(frame) for frame in frames(num)]
    with detector(depth=6) as ours:
        want = ours.predict(many)
        torch.cuda.synchronize()
        if broken is not None:
            broken()
        lanes = ours._lanes
        under_way = []
        for frame in many:
            for stream in STREAMS[lagging](lanes):
                lag(stream, LAG)
            under_way.append(lanes.launch(lanes.stage([frame])))
        found = [result for batch in under_way for result in lanes.collect(batch)]
        assert same(found, want)


def on_device(frame):
    """Frames on the device are put into the images on a stream of their own."""
    return torch.from_numpy(frame).cuda()


@pytest.mark.parametrize("given", [lambda frame: frame, on_device], ids=["host", "device"])
@pytest.mark.parametrize("lagging", STREAMS)
def test_batches_do_not_disturb_each_other(lagging, given):
    check_lagging(lagging, given=given)


def shared_lane(monkeypatch):
    """Breaks the rule that a lane belongs to one batch until its result is taken."""
    monkeypatch.setattr(network.Network, "free_lane", lambda built: built._free[0])


def no_waits(monkeypatch):
    """Breaks the order between streams."""
    monkeypatch.setattr(CudaStreams, "wait", lambda *arguments: None)


@pytest.mark.parametrize(
    ("rule", "lagging", "given"),
    [(shared_lane, "forward", lambda frame: frame), (no_waits, "before", on_device)],
    ids=["lane", "wait-for-images"],
)
def test_the_check_fails_without_the_rule(monkeypatch, rule, lagging, given):
    with pytest.raises(AssertionError):
        check_lagging(lagging, lambda: rule(monkeypatch), num=12, given=given)
    torch.cuda.synchronize()


def test_frames_of_a_size_without_graphs_are_resized_all_the_same(monkeypatch):
    many = [*frames(3), *frames(2, (40, 64), seed=1)]
    with detector(batch=4) as ours:
        want = ours.predict(many)
    monkeypatch.setattr(network, "MAX_CAPTURED", 0)
    with detector(batch=4) as ours:
        assert all(graphs == {None} for graphs in graphs_of(ours))
        assert same(ours.predict(many), want)


def test_only_frames_of_the_host_take_graphs():
    many = frames(3)
    with vision.Detector(YoloLike().cuda(), 64, 0.5, max_frame=(96, 128), batch=2, compile=False) as ours:
        found = ours.predict([torch.from_numpy(frame).cuda() for frame in many])
        assert all(graphs == {None} for graphs in graphs_of(ours))
        assert same(ours.predict(many), found)
        assert any(SIZE in graphs for graphs in graphs_of(ours))


@pytest.mark.parametrize(("batch", "depth"), [(1, 3), (4, 2), (16, 3)])
def test_a_stream_gives_what_predict_gives(batch, depth):
    many = [*frames(70), *frames(9, (96, 40), seed=4)]
    with detector(batch=batch) as ours:
        assert same(list(ours.stream(iter(many), depth=depth)), ours.predict(many))


def test_large_frames_give_the_same_from_the_host_where_some_rows_are_copied_and_from_the_device():
    many = frames(6, (288, 384))
    with detector(batch=4, max_frame=(288, 384)) as ours:
        want = ours.predict(many)
        assert 0 < ours.stats().num_uploaded_bytes < sum(frame.nbytes for frame in many)
        mixed = [torch.from_numpy(frame).cuda() if number % 2 else frame for number, frame in enumerate(many)]
        assert same(ours.predict(mixed), want)
        assert same(list(ours.stream(mixed)), want)
        assert all(len(found) for found in want)


def test_frames_of_sizes_of_which_as_many_rows_are_read_do_not_take_each_others_graphs():
    """2160 and 2158 rows of 3840 pixels: of both 720 are read."""
    tall, low = frames(1, (2160, 3840)), frames(1, (2158, 3840), seed=1)
    with (
        detector(imgsz=640, max_frame=(2160, 3840)) as ours,
        detector(imgsz=640, max_frame=(2160, 3840)) as other,
    ):
        (want,) = ours.predict(tall[0])
        assert same(other.predict(low[0]), ours.predict(low[0]))
        assert same(ours.predict(tall[0]), [want])
        assert same(other.predict(tall[0]), [want])


def test_frames_on_the_device_are_read_when_they_are_ready():
    many = frames(3)
    with detector() as ours:
        want = ours.predict(many)
        late = []
        for frame in many:
            source = torch.from_numpy(frame).pin_memory()
            on_device = torch.zeros(frame.shape, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            lag(cycles=LAG)
            on_device.copy_(source, non_blocking=True)
            late += ours.predict(on_device)
        assert same(late, want)


def test_nothing_is_allocated_after_the_warm_up():
    many = frames(50)
    with detector(batch=(1, 4), max_frame=SIZE) as ours:
        for _ in range(2):
            for frame in many[:8]:
                ours.predict(frame)
            ours.predict(many[:6])
            deque(ours.stream(many[:18]), maxlen=0)
        torch.cuda.synchronize()
        before, held, lanes = num_allocations(), torch.cuda.memory_reserved(), ours.stats().num_lanes
        for _ in range(4):
            for frame in many:
                ours.predict(frame)
            ours.predict(many)
            deque(ours.stream(many), maxlen=0)
        assert (num_allocations(), torch.cuda.memory_reserved(), ours.stats().num_lanes) == (
            before,
            held,
            lanes,
        )


WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")


def waits_of(work):
    """Calls that hold the host, beyond those of the profiler itself."""
    counts = []
    for job in (lambda: None, work):
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        ) as profile:
            job()
        counts.append(sum(event.count for event in profile.key_averages() if event.key in WAITS))
    return counts[1] - counts[0]


def test_the_host_waits_once_for_a_result():
    many = frames(30)
    with detector() as ours:
        for frame in many:
            ours.predict(frame)
        assert 0 < waits_of(lambda: [ours.predict(frame) for frame in many]) <= len(many)
    with detector(batch=4) as ours:
        deque(ours.stream(many), maxlen=0)
        assert waits_of(lambda: ours.predict(many[:4])) <= 1


class Chain(YoloLike):
    """Sixty boxes of which each overlaps the next: suppression needs more rounds than a graph holds."""

    def forward(self, images):
        left = torch.arange(60.0, device=images.device) * 20
        boxes = torch.stack(
            [left + 50, torch.full_like(left, 50), torch.full_like(left, 100), left * 0 + 100]
        )
        scores = torch.linspace(0.9, 0.6, 60, device=images.device)
        raw = torch.cat([boxes, scores[None], torch.zeros(2, 60, device=images.device)])
        return (raw + 0 * self.conv.bias[0]).expand(len(images), -1, -1).contiguous() + 0 * images.mean()


@pytest.mark.parametrize("kernels", [True, False])
def test_suppression_that_needs_more_rounds_is_finished_exactly(kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(nms, "kernels_of", lambda *_: None)
    with detector(Chain(), iou=0.6, batch=2) as ours:
        found = ours.predict(frames(2))
        assert [len(one) for one in found] == [30, 30]
        torch.testing.assert_close(found[0].conf, torch.linspace(0.9, 0.6, 60)[::2], atol=1e-4, rtol=0)
        assert ours.stats().num_unsettled == (0 if kernels else 1)


@settings(max_examples=80, deadline=None)
@given(outputs())
def test_kernels_give_what_torchs_operations_give_to_the_last_bit(case):
    process, raw, places = case
    device = torch.device("cuda", 0)
    assert kernels_of("nms_kernels", device) is not None
    found = process(raw.to(device), places.to(device))
    # On the CPU suppression runs to its end too, in the same precision.
    want = process(raw, places)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(found, want, strict=True))


@pytest.mark.parametrize("kernels", [True, False])
def test_detections_of_half_precision_outputs_are_those_of_the_cpu(kernels, monkeypatch):
    if not kernels:
        monkeypatch.setattr(nms, "kernels_of", lambda *_: None)
    generator = torch.Generator().manual_seed(1)
    raw = torch.rand(2, 7, 500, generator=generator)
    raw[:, :4] *= 40
    raw, places = raw.half().float(), PLACES[:2]
    process = nms.PostProcess(end_to_end=False, conf=0.25, iou=0.5, max_det=300, top_k=1024)
    packed, _ = process(raw.cuda(), places.cuda())
    torch.testing.assert_close(packed.cpu(), process(raw, places)[0], atol=1e-4, rtol=0)


class Blinding(YoloLike):
    def forward(self, images):
        out, rest = super().forward(images)
        return out / (images.amin((1, 2, 3)) < 0.99).to(out.dtype)[:, None, None], rest


def test_a_result_that_is_not_finite_is_an_error_and_the_next_call_works():
    good = frames(1, (64, 64))[0]
    with detector(Blinding()) as ours:
        with pytest.raises(NumericsError, match="not finite"):
            ours.predict([good, np.full_like(good, 255), good])
        assert len(ours.predict([good, good])) == 2


class Waits(YoloLike):
    """Looks at its own result: no graph can hold it."""

    def forward(self, images):
        out, rest = super().forward(images)
        return (out * 2 if out.sum().item() > 1e9 else out), rest


def test_a_model_that_cannot_be_captured_runs_eagerly_and_says_so(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with detector(Waits()) as ours, detector() as captured:
        (stats,) = ours.stats().engines.values()
        assert stats.buckets[0].mode == "eager"
        assert stats.buckets[0].reason
        many = frames(5)
        for found, want in zip(ours.stream(many), captured.predict(many), strict=True):
            torch.testing.assert_close(found.rows, want.rows, atol=5e-2, rtol=1e-3)


def test_many_sources_are_served_whole_and_in_order():
    sources = {str(number): frames(30 + number, seed=number) for number in range(8)}
    with detector(batch=(1, 2, 4, 8)) as ours:
        seen = {name: [] for name in sources}
        for served in ours.serve(sources, max_wait_s=0.002):
            seen[served.source].append(served)
        for name, many in sources.items():
            assert [served.index for served in seen[name]] == list(range(len(many)))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            deque(ours.serve(sources, max_wait_s=0.002), maxlen=0)
        assert torch.cuda.memory_allocated() <= before + (1 << 20)


def allocated_bytes():
    # cuBLAS keeps a workspace for each stream it was used on.
    torch._C._cuda_clearCublasWorkspaces()
    fresh_allocator()
    return torch.cuda.memory_allocated()


def test_closing_gives_the_memory_back():
    before = allocated_bytes()
    model = YoloLike().cuda()
    ours = detector(model, batch=4)
    deque(ours.stream(frames(9)), maxlen=0)
    ours.close()
    del model, ours
    assert allocated_bytes() <= before
