"""Batches that are captured as a whole: which graph a batch gets, and that boxes stay what they are."""

import logging
import threading

import pytest
import torch

from dynotune.runtime import streams
from dynotune.runtime.engine.engine import Engine
from dynotune.runtime.errors import CaptureError
from dynotune.runtime.vision import detector as vision
from dynotune.runtime.vision import network

from ..yolo_like import YoloLike, frames

SIZE, OTHER = (48, 64), (96, 40)


class Replayed:
    """As a captured graph: it computes anew what was captured, into the same memory."""

    def __init__(self, work, forward, inputs):
        self._work = lambda: work(forward, *inputs)
        self.outputs = self._work()
        self.num_replays = 0

    def replay(self):
        self.num_replays += 1
        self.outputs.copy_(self._work())

    def reset(self):
        self.outputs = None


class Capturing:
    """Captures for the CPU, in place of an engine's way to do it."""

    def __init__(self):
        self.graphs, self.fails, self.threads = [], False, set()

    def capture(self, engine, work, inputs, *, capturer, kept):
        self.threads.add(threading.get_ident())
        if self.fails:
            raise CaptureError("it cannot be")
        assert all(isinstance(tensor, torch.Tensor) for tensor in kept())
        self.graphs.append(Replayed(work, engine._model, inputs))
        return self.graphs[-1]


@pytest.fixture
def capturing(monkeypatch):
    """Make a detector on the CPU upload, and capture its batches."""
    made = Capturing()
    monkeypatch.setattr(streams.Streams, "pins", True)
    monkeypatch.setattr(network, "Capturer", lambda device: object())

    def captured_apart(engine, work, inputs, **options):
        return made.capture(engine, work, inputs, **options)

    monkeypatch.setattr(Engine, "captured_apart", captured_apart)
    return made


def detector(**options):
    return vision.Detector(YoloLike(), 64, 0.5, 0.5, max_frame=(96, 128), **options)


@pytest.fixture(scope="module")
def plain():
    """A detector that captures nothing."""
    with detector(batch=4) as plain:
        yield plain


def check(ours, plain, *many):
    """Compare the boxes of several calls, one after the other."""
    for some in many:
        for found, want in zip(ours.predict(some), plain.predict(some), strict=True):
            assert len(want) > 0
            assert torch.equal(found.rows, want.rows)


def test_detector_replays_one_graph_for_a_batch_when_its_frames_have_one_size(plain, capturing):
    with detector(batch=4, depth=2) as ours:
        ours.prepare(SIZE)
        prepared = [graph.num_replays for graph in capturing.graphs]
        assert prepared == [1, 1]
        # Also a batch that is not full, after a full one.
        check(ours, plain, frames(4), frames(3, seed=2))
        assert sum(graph.num_replays for graph in capturing.graphs) == sum(prepared) + 2
        assert len(capturing.graphs) == 2


def test_detector_puts_frames_into_the_images_without_the_whole_graph_when_their_sizes_differ(
    plain, capturing
):
    mixed = [*frames(2), *frames(2, (40, 64), seed=1)]
    with detector(batch=4, rect=False) as ours, detector(batch=4, rect=False) as other:
        other._lanes._tracks[0].capturer = other._lanes._tracks[1].capturer = None
        check(ours, other, mixed, frames(4), mixed)
        (lane,) = next(iter(ours._lanes.networks.values()))._lanes
        assert set(lane.graphs) == {None, SIZE}


def test_detector_keeps_graphs_of_a_few_sizes_when_more_come(plain, capturing):
    sizes = [(48, 64), (44, 64), (40, 64), (36, 64), (47, 64), (46, 64), (45, 64)]
    with detector(batch=4, rect=False) as ours, detector(batch=4, rect=False) as other:
        other._lanes._tracks[0].capturer = other._lanes._tracks[1].capturer = None
        check(ours, other, *(frames(2, size) for size in [*sizes, *sizes]))
        (lane,) = next(iter(ours._lanes.networks.values()))._lanes
        assert set(lane.graphs) == {*sizes[: network.MAX_CAPTURED], None}


def test_lane_captures_anew_when_larger_frames_need_more_memory(plain, capturing):
    with detector(batch=4, rect=False) as ours, detector(batch=4, rect=False) as other:
        other._lanes._tracks[0].capturer = other._lanes._tracks[1].capturer = None
        check(ours, other, frames(2, (24, 32)), frames(4), frames(2, (24, 32), seed=3))
        assert len(capturing.graphs) == 3
        assert ours.stats().pinned_bytes == 4 * 3 * 48 * 64


def test_detector_says_once_that_it_captures_nothing_when_a_capture_fails(plain, capturing, caplog):
    capturing.fails = True
    with caplog.at_level(logging.WARNING), detector(batch=4) as ours:
        check(ours, plain, frames(4), frames(2, OTHER), frames(8))
    assert sum("not captured as a whole" in record.message for record in caplog.records) == 2


def test_detector_captures_all_lanes_in_one_thread_when_a_stream_needs_more_than_were_prepared(
    plain, capturing
):
    """cuDNN chooses its algorithms by thread: lanes would find other boxes."""
    with detector(batch=4, depth=1) as ours:
        ours.prepare(SIZE)
        many = frames(24)
        for found, want in zip(ours.stream(many, depth=4), plain.predict(many), strict=True):
            assert torch.equal(found.rows, want.rows)
        assert ours.stats().num_lanes > 1
        assert len(capturing.threads) == 1
        assert capturing.threads != {threading.get_ident()}


def test_lanes_take_the_tracks_in_turn_when_batches_come_one_after_the_other(capturing):
    with detector(batch=1, depth=4, tracks=2) as ours:
        ours.prepare(SIZE)
        lanes, taken = ours._lanes, []
        for _ in range(8):
            batch = lanes.launch(lanes.stage(frames(1)))
            taken.append(lanes._tracks.index(batch.lane.track))
            lanes.collect(batch)
        assert taken == [taken[0], 1 - taken[0]] * 4


def test_detector_waits_for_copies_before_a_lane_is_used_again_when_a_batch_is_abandoned(monkeypatch):
    with detector(batch=8) as ours:
        lanes, begun = ours._lanes, []
        batch = lanes.stage(frames(8))

        def ended(copied):
            begun.append(copied)

        monkeypatch.setattr(type(batch.parts[0].copied), "ended", ended)
        lanes.discard(batch)
        assert begun == [part.copied for part in batch.parts]
