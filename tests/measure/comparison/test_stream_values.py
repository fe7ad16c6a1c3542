"""Rates and latencies of the worst stream, from frames whose times are known."""

import pytest

from dynotune.launch.records import streams
from dynotune.measure.comparison import stream_values
from dynotune.schema.largest import Limit

from ...stream_frames import camera, record

LIMITS = [Limit("frame-rate", 9.8), Limit("frame-latency-p99", 0.05), Limit("latency-growth", 0.05)]
WINDOW = 10.0, 20.0


def measured(value, *events, fps=10.0):
    found, notes = stream_values.measured(streams.seen([record(*events)], value), LIMITS, value, fps, WINDOW)
    return {one.quantity: one for one in found}, notes


def test_worst_stream_counts_when_streams_differ():
    found, notes = measured(2, camera("a"), camera("b", fps=8.0, latency_s=0.03))
    assert found["frame-rate"].value == 8.0
    assert (found["frame-rate"].low, found["frame-rate"].high) == (pytest.approx(7.9), pytest.approx(8.1))
    assert found["frame-rate"].worst == found["frame-latency-p99"].worst == "b"
    assert found["frame-latency-p99"].value == pytest.approx(0.03)
    assert not notes


def test_missing_stream_has_no_rate_when_fewer_gave_frames_than_there_are_to_be():
    found, notes = measured(3, camera("a"), camera("b"))
    assert found["frame-rate"].value == 0.0
    assert notes == ["1 of 3 streams gave no frame."]


def test_stalled_stream_is_named_when_it_gives_nothing_at_the_windows_end():
    found, notes = measured(2, camera("a"), camera("b", until_s=15.0))
    assert found["frame-rate"].value == pytest.approx(5.0)
    assert len(notes) == 1
    assert "Stream b gave no frame in the last 5.1 s" in notes[0]


def test_growth_is_seen_when_frames_queue():
    found, _ = measured(1, camera("a", growth=0.01))
    assert found["latency-growth"].value == pytest.approx(0.6, rel=0.02)
    assert found["latency-growth"].low > 0.5
    assert measured(1, camera("a"))[0]["latency-growth"].value == pytest.approx(0.0, abs=1e-6)


def test_latency_is_that_of_the_window_when_no_frame_comes_in_it():
    found, _ = measured(1, camera("a", until_s=9.0))
    assert found["frame-rate"].value == 0.0
    assert found["frame-latency-p99"].value == 10.0


def test_rate_is_the_share_of_all_samples_when_streams_share_calls():
    found, _ = measured(4, camera("1", source="call", samples=4))
    assert found["frame-rate"].value == pytest.approx(10.0)
    assert found["frame-rate"].worst == ""


def test_growth_is_that_of_the_worst_stream_when_most_do_not_grow():
    events = [camera(name) for name in "abcdef"]
    found, _ = measured(7, *events, camera("late", growth=0.01))
    assert found["latency-growth"].worst == "late"
    assert found["latency-growth"].low > 0.5


def test_growth_is_not_known_when_a_stream_has_few_blocks():
    found, _ = measured(2, camera("a"), camera("b", until_s=13.0))
    assert "latency-growth" not in found
    found, _ = measured(2, camera("a", growth=0.01), camera("b", until_s=13.0))
    assert found["latency-growth"].worst == "a"


def test_old_name_does_not_count_when_a_camera_connected_anew_before_the_window():
    found, notes = measured(2, camera("a"), camera("b", until_s=9.0), camera("b again", latency_s=0.03))
    assert found["frame-rate"].value == 10.0
    assert not notes


def test_silent_stream_counts_when_no_other_took_its_place():
    found, notes = measured(2, camera("a"), camera("b", until_s=9.0))
    assert (found["frame-rate"].value, found["frame-rate"].worst) == (0.0, "b")
    assert "Stream b gave no frame" in notes[0]
