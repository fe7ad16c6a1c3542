"""Frames of streams in records: who gave them, from when on, and what they took."""

import pytest

from dynotune.launch.records import streams
from dynotune.launch.records.streams import observed_serving
from dynotune.schema.events import FramesDone, Window

from ...stream_frames import camera, record

WINDOW = 10.0, 20.0


def test_streams_are_threads_when_as_many_call_the_model_as_there_are_to_be():
    events = camera("1", source="call"), camera("2", source="call")
    assert streams.seen([record(*events)], 2).source == "threads"
    assert streams.seen([record(*events)], 3).source == "samples"
    assert streams.seen([record(*events), record(camera("1", source="call"), pid=2)], 3).source == "threads"


def test_streams_are_the_threads_of_the_window_when_another_warms_the_model_up():
    warming = camera("main", source="call", until_s=6.0)
    seen = streams.seen([record(warming, camera("1", source="call"), camera("2", source="call"))], 2, WINDOW)
    assert (seen.source, len(seen.names)) == ("threads", 2)


def test_streams_are_counted_by_samples_when_one_thread_serves_all_and_another_warmed_the_model_up():
    warming = camera("main", source="call", until_s=6.0)
    serving = camera("worker", source="call", from_s=6.5)
    assert streams.seen([record(warming, serving)], 2, WINDOW).source == "samples"


def test_streams_are_threads_when_one_starves_before_the_window():
    starved = camera("1", source="call", until_s=6.0)
    seen = streams.seen([record(starved, camera("2", source="call"))], 2, WINDOW)
    assert (seen.source, len(seen.names)) == ("threads", 2)


def test_streams_are_counted_by_samples_when_threads_of_a_pool_call_the_model():
    pool = [camera(str(number), source="call", pooled=True) for number in range(2)]
    assert streams.seen([record(*pool)], 2, WINDOW).source == "samples"


def test_marks_count_when_there_are_calls_too():
    seen = streams.seen([record(camera("1", source="call"), camera("a"), camera("b"))], 2)
    assert (seen.source, seen.names, len(set(seen.calls.stream))) == ("marks", ["a", "b"], 1)


def test_device_memory_is_that_of_all_processes_when_each_has_some():
    calls = [camera(str(pid), source="call", device_bytes=100 * pid) for pid in (1, 2)]
    assert streams.device_bytes([record(calls[0]), record(calls[1], pid=2)]) == 300
    assert streams.device_bytes([record(camera("a"))]) is None


def test_nothing_is_seen_when_no_frame_was_recorded():
    assert streams.seen([record()], 1) is None
    assert streams.begin_s([record()], 1, patience_s=5.0) is None


def test_window_begins_when_the_last_stream_gave_a_frame_or_is_not_waited_for():
    late = camera("b", until_s=6.0)
    begun = record(camera("a", until_s=8.0), late)
    assert streams.begin_s([begun], 2, patience_s=5.0) == pytest.approx(5.02)
    assert streams.begin_s([begun], 3, patience_s=5.0) is None
    assert streams.begin_s([begun], 3, patience_s=1.0) == pytest.approx(5.02)


def test_serving_divides_the_threads_time_when_calls_are_known():
    seen = streams.seen([record(camera("1", source="call"), camera("2", source="call"))], 2)
    serving = streams.serving(seen, WINDOW)
    assert serving.frames_per_s == pytest.approx(20.0)
    assert serving.num_threads == 2
    assert serving.call_s == pytest.approx(0.02)
    assert serving.call_cpu_s == pytest.approx(0.005)
    assert serving.between_cpu_s == pytest.approx(0.005, rel=0.05)
    assert serving.calls_at_once == pytest.approx(2.0)
    assert serving.call_share == pytest.approx(0.2)
    assert serving.further_sample_s is None
    assert streams.weights_bytes([record(camera("1", source="call"))]) == 100


def test_further_sample_costs_the_slope_when_calls_have_several_sizes():
    one, two = camera("1", source="call"), camera("1", source="call", samples=3, latency_s=0.04)
    serving = streams.serving(streams.seen([record(one, two)], 4), WINDOW)
    assert serving.further_sample_s == pytest.approx(0.01)


def window(end_s):
    return Window(
        task=1, first_step=0, num_steps=1, begin_s=end_s - 1, end_s=end_s, num_samples=None, wait_s=None
    )


def test_observed_serving_is_of_the_later_half_when_a_process_called_models():
    serving = observed_serving(record(camera("1", source="call"), camera("2", source="call")))
    assert (serving.source, serving.num_threads, serving.num_streams) == ("threads", 2, 2)
    assert serving.num_calls == pytest.approx(200, abs=2)
    assert serving.together_s == pytest.approx(0.02)
    assert (serving.alone_s, serving.growth_s) == (None, None)


def test_observed_latency_grows_when_marked_frames_come_later_and_later():
    late = camera("a", growth=0.01)
    assert observed_serving(record(late, window(20.0))).growth_low_s == pytest.approx(0.01, rel=0.1)
    assert observed_serving(record(camera("a"), window(20.0))).growth_s == pytest.approx(0.0, abs=1e-6)


def test_observed_latency_is_that_before_a_recording_when_later_frames_are_slow():
    later = FramesDone(source="marked", streams=["a"], stream=[0], begin_s=[25.0], end_s=[40.0])
    assert observed_serving(record(camera("a"), later, window(20.0))).growth_s == pytest.approx(0.0, abs=1e-6)


def test_nothing_is_observed_of_serving_when_few_frames_were_done():
    assert observed_serving(record(camera("a", until_s=6.0))) is None
    assert observed_serving(record()) is None


def test_new_models_are_counted_for_each_call_when_a_process_makes_them():
    calls = [
        FramesDone(
            source="call", streams=["1"], models=["Net"], stream=[0], model=[0], begin_s=[10.0 + number],
            end_s=[10.5 + number], begin_cpu_s=[0.0], end_cpu_s=[0.1], num_models=number,
        )
        for number in range(40)
    ]  # fmt: skip
    serving = observed_serving(record(*calls))
    assert serving.num_models == 39
    assert serving.models_per_call == pytest.approx(1.0, abs=0.1)
