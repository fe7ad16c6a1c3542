"""Rules on serving streams: each fires, is silent, and says nothing of programs that train."""

from __future__ import annotations

from typing import Any

import pytest

from dynotune.schema.host import Line, Thread
from dynotune.schema.serving import Serving
from dynotune.schema.tensor import Tensor

from .devices import CALLED, found, model, on_cpu, on_gpu, optimizer

THREADS = {"num_threads": 4, "calls_at_once": 3.2, "alone_s": 0.006, "together_s": 0.03}
IDS = (
    "model-shared-by-threads",
    "stream-per-thread",
    "model-per-request",
    "frames-queue",
    "frame-sizes-unequal",
    "frames-decoded-in-step",
    "letterbox-on-cpu",
)


def served(*, place: Any = on_cpu, trains: bool = False, shapes: int = 1, lines: Any = (), **fields: Any):
    usual = {
        "source": "threads",
        "num_streams": 4,
        "frames_per_s": 100.0,
        "num_threads": 1,
        "num_calls": 400,
        "num_models": 1,
        "call_s": 0.03,
        "call_cpu_s": 0.006,
    }
    device = "cpu" if place is on_cpu else "cuda:0"
    image = Tensor(shape=[1, 3, 640, 640], dtype="float32", device=device, num_bytes=1)
    own = model(device, training=trains, call={"inputs": [image], "num_input_shapes": shapes})
    return found(
        place(
            models=[own],
            optimizers=[optimizer(device)] if trains else [],
            threads=[Thread(of_steps=True, num=100, cpu_s=5.0, lines=list(lines))],
            serving=Serving(**{**usual, **fields}),
        )
    )


def line(text: str, num: int = 40) -> Line:
    return Line(function="serve.py(9): main", text=text, num=num)


def test_shared_model_is_found_when_calls_of_threads_take_longer_beside_others():
    finding = served(**THREADS)["model-shared-by-threads"]
    assert finding.severity == "high"
    assert "4 threads call one model at once, and each call takes 5.0 times as long" in finding.claim
    assert "a call alone takes 6 ms, one beside others 30 ms (means)" in finding.evidence
    assert finding.where == CALLED


def test_shared_model_is_judged_by_its_own_work_when_no_call_was_alone():
    assert "5.0 times" in served(**{**THREADS, "alone_s": None})["model-shared-by-threads"].claim


@pytest.mark.parametrize(
    "fields",
    [
        {"num_threads": 1},
        {"calls_at_once": 1.05},
        {"together_s": 0.007},
        {"num_calls": 8},
        {"alone_s": None, "call_cpu_s": 0.0},
        {"trains": True},
    ],
)
def test_shared_model_is_silent_when_threads_do_not_hold_each_other_up(fields):
    assert not {"model-shared-by-threads", "stream-per-thread"} & served(**{**THREADS, **fields}).keys()


def test_stream_per_thread_is_found_when_each_thread_has_a_model_and_single_frames():
    own = served(**THREADS, num_models=4)
    assert "4 threads call 4 models with one frame at a time" in own["stream-per-thread"].claim
    assert "model-shared-by-threads" not in own
    assert "stream-per-thread" not in served(**THREADS, num_models=4, samples_per_call=8.0)


def test_model_per_request_is_found_when_new_models_are_called():
    finding = served(num_models=300, models_per_call=1.0)["model-per-request"]
    assert finding.claim == "A model is made for every call."
    assert "every 4 calls" in served(num_models=90, models_per_call=0.25)["model-per-request"].claim
    assert "model-per-request" not in served(num_models=4, models_per_call=0.01)
    assert "stream-per-thread" not in served(**THREADS, num_models=300, models_per_call=1.0)


def test_frames_queue_is_found_when_latency_grows():
    finding = served(growth_s=0.1, growth_low_s=0.08)["frames-queue"]
    assert finding.claim == "The latency of frames grows by 100 ms in each second."
    assert finding.kind == "jitter"
    assert "frames-queue" not in served(growth_s=0.1, growth_low_s=-0.02)
    assert "frames-queue" not in served()


def test_frame_sizes_are_found_when_streams_give_pictures_of_several():
    assert "frames of 3 sizes" in served(source="marks", shapes=3)["frame-sizes-unequal"].claim
    assert "frame-sizes-unequal" not in served(source="marks", shapes=1)
    assert "frame-sizes-unequal" not in served(source="marks", shapes=3, samples_per_call=4.0)
    assert "frame-sizes-unequal" not in served(shapes=3)


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("ok, frame = capture.read()", "frames-decoded-in-step"),
        ("frame = cv2.imdecode(raw, cv2.IMREAD_COLOR)", "frames-decoded-in-step"),
        ("image = decode_jpeg(raw)", "frames-decoded-in-step"),
        ("frame = cv2.resize(frame, (640, 640))", "letterbox-on-cpu"),
        ("image = letterbox(frame, 640)", "letterbox-on-cpu"),
        ("text = file.read()", None),
        ("image = frame[:640]", None),
    ],
)
def test_work_beside_the_model_is_found_when_its_thread_was_seen_there(text, id_):
    of_lines = served(lines=[line(text)]).keys() & {"frames-decoded-in-step", "letterbox-on-cpu"}
    assert of_lines == ({id_} if id_ else set())


def test_work_beside_the_model_is_silent_when_it_is_rare_or_the_program_trains():
    resize = "frame = cv2.resize(frame, (640, 640))"
    assert served(lines=[line(resize)])["letterbox-on-cpu"].share == pytest.approx(0.4)
    assert "letterbox-on-cpu" not in served(lines=[line(resize, num=0)])
    assert "letterbox-on-cpu" not in served(lines=[line(resize)], trains=True)


def test_no_rule_of_serving_speaks_when_nothing_was_seen_of_it():
    assert not found(on_cpu(models=[model("cpu", training=False)], optimizers=[])).keys() & set(IDS)
    assert not found(on_gpu()).keys() & set(IDS)
