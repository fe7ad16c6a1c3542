"""The detector on the CPU: what it finds, in what order, and what it refuses."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from dynotune.runtime.errors import (
    ClosedError,
    DeviceError,
    ForkedError,
    InputError,
    NumericsError,
    SourceError,
    TooLargeError,
)
from dynotune.runtime.vision import detector as vision
from dynotune.runtime.vision import frame_copies, stages

from ..yolo_like import OF_A_DETECTOR, EndToEnd, YoloLike, expected, failing_to_write, frames


def detector(model=None, **options):
    return vision.Detector(
        model or YoloLike(), **{"imgsz": 64, "max_frame": (96, 128), "conf": 0.5, **options}
    )


def rows(results):
    return [result.rows.numpy() for result in results]


def equal(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("rect", [True, False])
@pytest.mark.parametrize("size", [(48, 64), (96, 128), (24, 32), (42, 128), (128, 42), (192, 256)], ids=str)
def test_detections_are_those_of_the_definition(size, rect):
    # Gains are powers of two: a resized level that lies between two is then rounded alike by all arithmetic.
    model = YoloLike()
    with detector(model, rect=rect, iou=0.2, max_frame=(192, 256)) as ours:
        for frame in frames(2, size):
            (found,) = ours.predict(frame)
            want = expected(model, frame, imgsz=64, conf=0.5, iou=0.2, rect=rect)
            assert len(found) == len(want) > 0
            assert found.num_candidates > len(found)
            np.testing.assert_allclose(found.xyxy.numpy(), want[:, :4], atol=1e-3)
            np.testing.assert_allclose(found.conf.numpy(), want[:, 4], atol=1e-5)
            assert found.cls.tolist() == want[:, 5].tolist()


@pytest.mark.parametrize("batch", [1, 3, (1, 2, 4), 8])
def test_the_batch_changes_nothing_about_the_results(batch):
    many = frames(7)
    with detector() as one, detector(batch=batch) as ours:
        alone = [one.predict(frame)[0] for frame in many]
        together = ours.predict(many)
        for a, b in zip(alone, together, strict=True):
            assert len(a) == len(b) > 0
            torch.testing.assert_close(a.rows, b.rows, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rect", [True, False])
def test_frames_of_mixed_sizes_keep_their_order(rect):
    mixed = [one for pair in zip(frames(4), frames(4, (96, 40), seed=1), strict=True) for one in pair]
    with detector(batch=4, rect=rect) as ours:
        together = ours.predict(mixed)
        for frame, found in zip(mixed, together, strict=True):
            torch.testing.assert_close(ours.predict(frame)[0].rows, found.rows, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("size", [(48, 64), (288, 384)], ids=["whole", "some rows"])
def test_frames_may_be_tensors_and_flipped_and_read_only(size):
    (frame,) = frames(1, size)
    flipped = np.ascontiguousarray(frame[..., ::-1])[..., ::-1]
    frozen = frame.copy()
    frozen.setflags(write=False)
    with detector(max_frame=size) as ours, detector(max_frame=size, color="rgb") as rgb:
        (want,) = ours.predict(frame)
        for other in (torch.from_numpy(frame), flipped, frozen, [frame]):
            assert torch.equal(ours.predict(other)[0].rows, want.rows)
        assert torch.equal(rgb.predict(frame[..., ::-1])[0].rows, want.rows)


def test_no_frames_give_no_results():
    with detector() as ours:
        assert ours.predict([]) == []
        assert list(ours.stream([])) == []


def test_end_to_end_models_are_told_by_their_output():
    with detector(EndToEnd(), conf=0.6) as ours:
        (found,) = ours.predict(frames(1)[0])
        assert 0 < len(found) == found.num_candidates < 50
        assert found.conf.min() > 0.6
        assert found.conf.tolist() == sorted(found.conf.tolist(), reverse=True)


def test_results_are_the_callers_own():
    many = frames(5)
    with detector() as ours:
        first = ours.predict(many[0])[0]
        before = first.rows.clone()
        for frame in many:
            ours.predict(frame)
        assert torch.equal(first.rows, before)
        first.rows.add_(1)
        (first.xyxy * torch.ones(1, requires_grad=True)).sum().backward()
    assert repr(first).startswith("Detections(")


@pytest.mark.parametrize(("batch", "depth"), [(1, 1), (1, 3), (4, 2)])
def test_a_stream_gives_what_predict_gives_in_order(batch, depth):
    many = [*frames(9), *frames(2, (96, 40)), *frames(3, seed=5)]
    with detector(batch=batch) as ours:
        want = rows(ours.predict([frame])[0] for frame in many)
        found = rows(ours.stream(iter(many), depth=depth))
        assert len(found) == len(want)
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


def test_a_stream_does_not_read_further_ahead_than_its_depth():
    read = []

    def source():
        for number, frame in enumerate(frames(30)):
            read.append(number)
            yield frame

    with detector() as ours:
        stream = ours.stream(source(), depth=2)
        for number in range(10):
            next(stream)
            assert len(read) <= number + 1 + 2
        stream.close()


@pytest.mark.long
def test_a_stream_that_is_closed_or_dropped_ends_its_threads_and_gives_its_buffers_back():
    def endless():
        while True:
            yield from frames(3)

    with detector() as ours:
        for end in ("close", "drop"):
            stream = ours.stream(endless(), depth=3)
            next(stream)
            if end == "close":
                stream.close()
            del stream
            gc.collect()
        assert all(network.num_lanes == len(network._free) for network in ours._lanes.networks.values())
        assert len(ours.predict(frames(1)[0])) == 1
    for thread in threading.enumerate():
        if thread.name.startswith("dynotune-") and thread.name not in OF_A_DETECTOR:
            thread.join(30)
            assert not thread.is_alive()


def test_closing_a_stream_does_not_wait_for_its_source():
    asked, release = threading.Event(), threading.Event()

    def stalls():
        yield frames(1)[0]
        asked.set()
        release.wait(60)

    with detector() as ours:
        stream = ours.stream(stalls(), depth=2)
        next(stream)
        asked.wait(30)
        stream.close()
        assert not release.is_set()
        assert len(ours.predict(frames(2))) == 2
    release.set()


def test_a_source_that_raises_is_reported_after_the_results_before_it():
    def breaks():
        yield from frames(3)
        raise OSError("the camera is gone")

    with detector(batch=2) as ours:
        stream, seen = ours.stream(breaks()), []
        with pytest.raises(SourceError, match="the camera is gone") as caught:
            seen.extend(stream)
        stream2 = ours.stream(breaks())
        assert len([next(stream2) for _ in range(3)]) == 3
        stream2.close()
        assert isinstance(caught.value.__cause__, OSError)
        assert len(ours.predict(frames(2))) == 2


def test_a_bad_frame_in_a_stream_is_reported_after_the_results_before_it():
    with detector() as ours:
        stream = ours.stream([*frames(2), np.zeros((0, 5, 3), np.uint8), *frames(1)])
        assert len([next(stream), next(stream)]) == 2
        with pytest.raises(InputError, match="is empty"):
            next(stream)


BAD = {
    "empty": (np.zeros((0, 64, 3), np.uint8), InputError, "is empty"),
    "float": (np.zeros((48, 64, 3), np.float32), InputError, "float32; frames are uint8"),
    "grey": (np.zeros((48, 64), np.uint8), InputError, "shape"),
    "alpha": (np.zeros((48, 64, 4), np.uint8), InputError, "shape"),
    "batch": (np.zeros((2, 48, 64, 3), np.uint8), InputError, "shape"),
    "none": (None, InputError, "not an array"),
    "large": (np.zeros((200, 100, 3), np.uint8), TooLargeError, r"max_frame=\(200, 100\)"),
}


class Like:
    """What looks like a frame, and is none."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_detector_refuses_objects_that_only_look_like_frames():
    with detector() as ours:
        for frame, says in (
            (Like(shape=[48, 64, 3], dtype="uint8"), "not an array on the host"),
            (None, "not an array"),
            (Like(shape=(48, 64, 3)), "not an array"),
            (Like(shape=(48, 64, 3), dtype="uint8", device=[]), "not an array on the host"),
        ):
            with pytest.raises(InputError, match=says):
                ours.predict([frame])


@pytest.mark.parametrize(("frame", "error", "says"), BAD.values(), ids=BAD.keys())
def test_a_frame_that_cannot_be_used_is_refused_and_the_next_call_works(frame, error, says):
    with detector(batch=4) as ours:
        with pytest.raises(error, match=says):
            ours.predict([*frames(2), frame])
        assert ours.stats().num_frames == 0
        assert len(ours.predict(frames(2))) == 2


class Blinding(YoloLike):
    """Gives NaN for a white picture."""

    def forward(self, images):
        out, rest = super().forward(images)
        return out / (images.amin((1, 2, 3)) < 0.99).to(out.dtype)[:, None, None] * 1.0, rest


def test_a_result_that_is_not_finite_is_an_error_and_the_next_call_works():
    white = np.full((64, 64, 3), 255, np.uint8)
    with detector(Blinding()) as ours:
        good = frames(1, (64, 64))[0]
        with pytest.raises(NumericsError, match="not finite"):
            ours.predict([good, white, good])
        assert len(ours.predict([good, good])) == 2
        stream = ours.stream([good, white, good])
        next(stream)
        with pytest.raises(NumericsError):
            next(stream)
        assert len(list(ours.stream([good] * 3))) == 3


def test_weights_that_are_not_finite_are_refused_by_name():
    model = YoloLike()
    model.conv.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(NumericsError, match=r"conv\.weight"):
        detector(model)


class Lists(YoloLike):
    def forward(self, images):
        return [{"boxes": images}]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: detector(torch.nn.Conv2d(3, 3, 1)), "training mode"),
        (lambda: detector(torch.nn.Identity().eval()), "no parameters"),
        (lambda: detector(lambda images: images), "not a torch.nn.Module"),
        (lambda: detector(imgsz=100), "multiples of the stride"),
        (lambda: detector(conf=2), "between 0 and 1"),
        (lambda: detector(max_det=0), "at least 1"),
        (lambda: detector(batch=()), "at least one frame"),
        (lambda: detector(max_frame=(0, 3)), "height, width"),
        (lambda: detector(depth=0), "depth is 0"),
        (lambda: detector(color="hsv"), "'bgr' or 'rgb'"),
        (lambda: detector(Lists()).predict(frames(1)), "the network itself"),
        (lambda: detector().stream([], depth=0), "depth is 0"),
        (lambda: detector().serve([]), "no sources"),
        (lambda: detector().serve([[]], max_batch=2), "1 to 1 frames"),
        (lambda: detector().serve([[]], drop="some"), "drop is 'some'"),
        (lambda: detector().serve([[]], queue=0), "queue"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, says):
    with pytest.raises(InputError, match=says):
        make()


def test_an_output_that_can_be_read_in_two_ways_asks_which():
    from dynotune.runtime.vision.network import is_end_to_end

    assert is_end_to_end((1, 300, 6))
    assert not is_end_to_end((1, 84, 8400))
    assert not is_end_to_end((1, 6, 8400))
    for shape in ((1, 6, 6), (1, 3, 100), (1, 100, 8)):
        with pytest.raises(InputError, match="end_to_end"):
            is_end_to_end(shape)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(DeviceError, match="cuda"):
        detector(device="cuda")


def test_use_after_close_and_in_a_forked_child_is_refused():
    ours = detector()
    stream = ours.stream(frames(3))
    assert len(ours.predict(frames(1))) == 1
    child = os.fork()
    if not child:
        code = 1
        try:
            ours.predict(frames(1))
        except ForkedError:
            ours.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(ours.predict(frames(1))) == 1
    ours.close()
    ours.close()
    for use in (
        lambda: ours.predict(frames(1)),
        lambda: ours.stream([]),
        lambda: ours.serve([[]]),
        ours.prepare,
    ):
        with pytest.raises(ClosedError):
            use()
    with pytest.raises(ClosedError):
        next(stream)
    assert ours.stats().num_frames == 2


def test_threads_share_a_detector():
    many = frames(12)
    with detector(batch=2) as ours:
        want = rows(ours.predict(many))
        found = {}

        def work(number):
            found[number] = rows(ours.predict(many))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(equal(found[number], want) for number in range(4))


def test_a_detector_serves_predict_while_a_stream_is_paused():
    with detector() as ours:
        stream = ours.stream(iter(frames(8)), depth=2)
        next(stream)
        for _ in range(6):
            assert len(ours.predict(frames(2))) == 2
        assert len(list(stream)) == 7


def test_buffers_are_made_once():
    with detector(batch=(1, 4)) as ours:
        ours.prepare((48, 64))
        before = ours.stats()
        assert before.num_frames == 0
        for _ in range(20):
            ours.predict(frames(5))
        after = ours.stats()
        assert (after.num_frames, after.num_batches) == (100, 40)
        assert after.num_lanes == before.num_lanes
        assert list(after.engines) == ["1x48x64", "4x48x64"] or set(after.engines) == set(before.engines)


@pytest.mark.long
def test_a_detector_that_is_closed_frees_its_model():
    model = YoloLike()
    ours = detector(model)
    ours.predict(frames(1))
    seen = weakref.ref(model)
    ours.close()
    del ours, model
    gc.collect()
    assert seen() is None


PROGRAM = """
import os
import sys
from dynotune.runtime.vision import frame_copies, detector as vision
from yolo_like import YoloLike, frames

def endless():
    while True:
        yield from frames(2)

detector = vision.Detector(YoloLike(), 64, batch=(2, 16), max_frame=(48, 64))
stream, server = detector.stream(endless()), detector.serve([endless(), endless()])
print(len([next(stream), next(server)]), flush=True)
child = os.fork()
if not child:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""


@pytest.mark.long
def test_a_program_and_its_forked_child_may_end_with_streams_and_servers_open():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    assert done.stderr == ""


@pytest.fixture(scope="module")
def wide():
    """Batches of four chunks each, more than there are."""
    with vision.Detector(YoloLike(), 64, conf=0.5, batch=16, max_frame=(96, 128)) as detector:
        detector.prepare((48, 64))
        yield detector


def test_many_threads_use_one_detector_whose_batches_need_more_chunks_than_there_are(wide):
    many = [*frames(24), *frames(10, (96, 40), seed=2)]
    want = [found.rows for found in wide.predict(many)]
    results = {}

    def work(number):
        found = wide.predict(many) if number % 2 else list(wide.stream(many))
        results[number] = all(torch.equal(one.rows, rows) for one, rows in zip(found, want, strict=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == dict.fromkeys(range(6), True)


def test_a_stream_that_its_reader_pauses_leaves_room_for_others(wide):
    def endless():
        while True:
            yield from frames(4)

    paused = wide.stream(endless())
    next(paused)
    assert len(wide.predict(frames(40))) == 40
    next(paused)
    paused.close()


def test_frames_may_be_views_of_tensors_when_a_decoder_gives_channels_first(wide):
    many = frames(6)
    planes = [torch.from_numpy(frame).permute(2, 0, 1).contiguous() for frame in many]
    found = wide.predict([plane.permute(1, 2, 0) for plane in planes])
    assert all(torch.equal(one.rows, want.rows) for one, want in zip(found, wide.predict(many), strict=True))


def test_frames_that_fail_to_be_copied_are_reported_and_the_next_call_works(wide, monkeypatch):
    many = [torch.from_numpy(frame) for frame in frames(16)]
    want = wide.predict(many)
    plain, calls = frame_copies.host_array, []

    def failing(some, dtype, **options):
        calls.append(1)
        found = plain(some, dtype, **options)
        return failing_to_write(found) if len(calls) == 2 else found

    monkeypatch.setattr(frame_copies, "host_array", failing)
    with pytest.raises(ZeroDivisionError):
        wide.predict(many)
    with pytest.raises(ZeroDivisionError):
        calls.clear()
        list(wide.stream(many))
    assert all(torch.equal(a.rows, b.rows) for a, b in zip(wide.predict(many), want, strict=True))


def test_a_stream_of_large_and_small_batches_ends_however_few_chunks_there_are():
    mixed = [
        *frames(16),
        *frames(1, (96, 40)),
        *frames(1, (64, 64)),
        *frames(1, (96, 40)),
        *frames(1, (64, 64)),
    ]
    with detector(batch=(1, 16), depth=1) as ours:
        want = ours.predict(mixed)
        for _ in range(5):
            found = list(ours.stream(mixed, depth=5))
            for a, b in zip(found, want, strict=True):
                torch.testing.assert_close(a.rows, b.rows, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("num", [1, 16])
def test_frames_that_cannot_be_placed_give_their_chunks_back(num, monkeypatch):
    with detector(batch=16, depth=1) as ours:
        want = ours.predict(frames(num))
        with monkeypatch.context() as patch:
            patch.setattr(stages, "Letterbox", lambda *arguments, **options: 1 / 0)
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    ours.predict(frames(num, (96, 40)))
        assert all(torch.equal(a.rows, b.rows) for a, b in zip(ours.predict(frames(num)), want, strict=True))


def test_a_detector_works_inside_inference_mode_and_outside_whichever_it_was_made_in():
    many = frames(9)
    with torch.inference_mode():
        ours = detector(batch=8)
        want = ours.predict([torch.from_numpy(frame).clone() for frame in many])
        found = [list(ours.stream(many))]
    found += [ours.predict(many), list(ours.stream(many))]
    for results in found:
        assert all(torch.equal(a.rows, b.rows) for a, b in zip(results, want, strict=True))
    ours.close()


ENDED = """
import threading
from dynotune.runtime.vision import frame_copies, detector as vision
from yolo_like import YoloLike, frames

detector = vision.Detector(YoloLike(), 64, batch=16, max_frame=(48, 64))

def work():
    threading.main_thread().join()
    print(len(detector.predict(frames(16))), len(list(detector.stream(frames(20)))))

threading.Thread(target=work).start()
"""


@pytest.mark.long
def test_a_thread_may_use_a_detector_when_the_main_thread_has_ended():
    done = subprocess.run(
        [sys.executable, "-c", ENDED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "16 20\n", "")


def test_closing_a_detector_ends_its_threads():
    def ours():
        return {thread for thread in threading.enumerate() if thread.name.startswith("dynotune-")}

    before = ours()
    detector = vision.Detector(YoloLike(), 64, conf=0.5, batch=16, max_frame=(96, 128))
    detector.predict(frames(16))
    assert ours() - before
    detector.close()
    assert not ours() - before


def test_a_detector_that_is_closed_under_streams_ends_them():
    detector = vision.Detector(YoloLike(), 64, conf=0.5, batch=16, max_frame=(96, 128))
    detector.prepare((48, 64))
    taken, ends = threading.Semaphore(0), []

    def endless():
        while True:
            yield from frames(4)

    def work():
        try:
            for _ in detector.stream(endless()):
                taken.release()
        except ClosedError as error:
            ends.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        taken.acquire()
    detector.close()
    for thread in threads:
        thread.join(60)
    assert len(ends) == 3
