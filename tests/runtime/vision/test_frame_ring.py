"""The ring that frames go through: what arrives, and that a chunk in use is waited for."""

import gc
import threading
import weakref
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
import torch

from dynotune.runtime import streams
from dynotune.runtime.errors import CaptureError, InputError
from dynotune.runtime.vision import frame_ring
from dynotune.runtime.vision.frame_ring import FrameRing
from dynotune.runtime.vision.letterbox import GREY, Letterbox, place, rows_read

from ...cli.conftest import until
from ..yolo_like import failing_to_write, frames

AT = place((48, 64), (32, 32))


def ring_of(device_streams, depth=2):
    return FrameRing(device_streams, num_frames=4, frame_bytes=3 * 48 * 64, depth=depth, graphs=True)


def put(ring, many, box, out, stream=None):
    """Copies and sends."""
    ring.send(ring.copy(many), box, box.region(out), stream=stream)


def letterbox():
    return Letterbox(AT, torch.device("cpu"), swap_channels=True)


@pytest.fixture
def several(monkeypatch):
    """Threads that copy."""
    monkeypatch.setattr(frame_ring.host_threads, "num_copying", lambda: 3)


def test_frames_arrive_as_the_letterbox_alone_makes_them_in_chunks_of_any_number():
    ring, many = ring_of(streams.of("cpu")), frames(7)
    want = letterbox()(torch.from_numpy(np.stack(many)), torch.empty(7, 3, AT.height, AT.width))
    found = want.new_full(want.shape, GREY / 255)
    for start, num in ((0, 4), (4, 2), (6, 1)):
        put(ring, many[start : start + num], letterbox(), found[start : start + num])
    assert torch.equal(found, want)
    assert (ring.stats().num_puts, ring.stats().num_bytes) == (3, 7 * 3 * 48 * 64)
    ring.close()
    assert ring.stats().num_puts == 3


def test_of_large_frames_only_the_rows_that_are_read_are_copied():
    at, many = place((288, 384), (64, 64)), frames(3, (288, 384))
    device, rows = torch.device("cpu"), rows_read(at)
    ring = FrameRing(streams.of("cpu"), num_frames=2, frame_bytes=3 * 288 * 384, depth=2, graphs=True)
    box = Letterbox(at, device, swap_channels=True, rows=rows)
    want = Letterbox(at, device, swap_channels=True)(
        torch.from_numpy(np.stack(many)), torch.empty(3, 3, at.height, at.width)
    )
    found = want.new_full(want.shape, GREY / 255)
    for start, num, later in ((0, 2, False), (2, 1, True)):
        copied = ring.copy(many[start : start + num], rows=rows, later=later)
        ring.send(copied, box, box.region(found[start : start + num]), stream=None)
    assert torch.equal(found, want)
    assert ring.stats().num_bytes == 3 * 3 * 384 * len(rows) < 3 * many[0].nbytes
    ring.close()


def test_a_chunk_is_written_again_only_when_what_was_enqueued_for_it_has_ended(world):
    """In turn, so that the host waits for the oldest alone."""
    world_ring = FrameRing(world, num_frames=1, frame_bytes=3 * 48 * 64, depth=2, graphs=False)
    out = torch.empty(1, 3, AT.height, AT.width)
    for number, frame in enumerate(frames(5)):
        put(world_ring, [frame], letterbox(), out, world.main)
        # Of the two chunks one is always still to come.
        assert len(world.main.work) == min(number + 1, 2)
    assert world_ring.stats().num_waits == 3
    world_ring.close()
    assert not world.main.work


def test_a_frame_that_cannot_be_read_leaves_the_ring_usable():
    ring, (frame,) = ring_of(streams.of("cpu")), frames(1)
    out = torch.full((1, 3, AT.height, AT.width), GREY / 255)
    for _ in range(5):
        with pytest.raises(InputError, match="not an array"):
            ring.copy([object()])
    put(ring, [frame], letterbox(), out)
    assert torch.equal(out, letterbox()(torch.from_numpy(frame)[None], torch.empty_like(out)))


def test_frames_copied_later_arrive_in_the_order_of_the_calls_however_few_chunks_there_are(several):
    ring, many, box = ring_of(streams.of("cpu"), depth=1), frames(6), letterbox()
    want = box(torch.from_numpy(np.stack(many)), torch.empty(6, 3, AT.height, AT.width))
    found = want.new_full(want.shape, GREY / 255)
    copied = [ring.copy([frame], later=True) for frame in many]
    for number, one in enumerate(copied):
        ring.send(one, box, box.region(found[number : number + 1]), stream=None)
    assert torch.equal(found, want)
    ring.close()


def test_the_frames_of_a_chunk_are_copied_side_by_side(several, monkeypatch):
    ring, many, box = ring_of(streams.of("cpu")), frames(3), letterbox()
    met, plain = threading.Barrier(3), frame_ring.host_array

    def meeting(some, dtype, **options):
        found = plain(some, dtype, **options)

        def met_by(part):
            return replace(part, write=lambda into: met.wait(60) + 1 and part.write(into))

        return replace(found, parts=tuple(map(met_by, found.parts)))

    monkeypatch.setattr(frame_ring, "host_array", meeting)
    out = torch.full((3, 3, AT.height, AT.width), GREY / 255)
    ring.send(ring.copy(many, later=True), box, box.region(out), stream=None)
    assert torch.equal(out, box(torch.from_numpy(np.stack(many)), torch.empty_like(out)))
    ring.close()


def test_a_chunk_with_a_frame_that_fails_is_free_only_when_the_others_are_copied(several, monkeypatch):
    ring, plain = ring_of(streams.of("cpu"), depth=1), frame_ring.host_array
    begun, failed, go = threading.Event(), threading.Event(), threading.Event()

    def failing(some, dtype, **options):
        found = plain(some, dtype, **options)
        late = replace(found.parts[1], write=lambda into: begun.set() or go.wait(60))
        return replace(found, parts=(failing_to_write(found.parts[0]), late))

    def ended(filling, num, error=None):
        plainly(filling, num, error)
        if error:
            failed.set()

    plainly = frame_ring._Filling.ended
    monkeypatch.setattr(frame_ring._Filling, "ended", ended)

    with monkeypatch.context() as patched:
        patched.setattr(frame_ring, "host_array", failing)
        bad = ring.copy(frames(2), later=True)
    assert begun.wait(60)
    assert failed.wait(60)
    assert ring._free.empty()
    assert not bad._chunk.done()
    go.set()
    with pytest.raises(ZeroDivisionError):
        bad.wait()
    ring.copy(frames(1), later=True).drop()
    ring.close()


@pytest.mark.parametrize("what", ["start", "use_one_thread"])
def test_frames_that_no_thread_can_copy_are_reported_and_the_next_are_copied(what, several, monkeypatch):
    ring = ring_of(streams.of("cpu"), depth=1)

    def fail(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(
            *((ring._copiers, "start") if what == "start" else (frame_ring.host_threads, "use_one_thread")),
            fail,
        )
        with pytest.raises(RuntimeError, match="can't start"):
            ring.copy(frames(2), later=True).wait()
    ring.copy(frames(2), later=True).wait()
    ring.close()


def test_frame_ring_says_so_and_goes_on_when_no_thread_can_be_started(monkeypatch):
    ring = ring_of(streams.of("cpu"), depth=1)

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            ring.copy(frames(2), later=True)
    copied = ring.copy(frames(1))
    assert not isinstance(copied._chunk, Future), "it was left to a thread, behind what never ends"
    copied.drop()
    ring.close()


def test_a_copy_that_failed_keeps_nothing_of_its_frames(several, monkeypatch):
    ring, (frame,) = ring_of(streams.of("cpu"), depth=1), frames(1)
    seen = weakref.ref(frame)
    gc.collect()
    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(frame_ring.host_threads, "use_one_thread", lambda: 1 / 0)
            copied = ring.copy([frame], later=True)
            assert isinstance(copied._chunk.exception(60), ZeroDivisionError)
        del copied, frame
        ring.copy(frames(1), later=True).wait()
        # The thread that failed may not have gone on yet.
        until(lambda: seen() is None, "the frame is let go")
    finally:
        gc.enable()
    ring.close()


def test_frames_do_not_take_the_chunk_of_others_that_wait_to_be_copied_and_are_sent_before_them():
    ring, many, box = ring_of(streams.of("cpu"), depth=1), frames(3), letterbox()
    copied = [ring.copy([frame], later=number < 2) for number, frame in enumerate(many)]
    out = torch.full((1, 3, AT.height, AT.width), GREY / 255)
    for frame, one in zip(many, copied, strict=True):
        ring.send(one, box, box.region(out), stream=None)
        assert torch.equal(out, box(torch.from_numpy(frame)[None], torch.empty_like(out)))
    ring.close()


def test_closing_gives_memory_back_though_the_ring_and_a_copy_that_was_not_sent_are_kept():
    ring = ring_of(streams.of("cpu"), depth=2)
    held = [weakref.ref(chunk._host) for chunk in ring._chunks]
    copied = ring.copy(frames(1))
    ring.close()
    copied.drop()
    gc.collect()
    assert [one() for one in held] == [None, None]


def test_a_chunk_is_free_again_also_where_the_end_of_its_upload_cannot_be_recorded(monkeypatch):
    """As after an error of the GPU, which every later call repeats: those must fail, not wait."""
    ring, (frame,) = ring_of(streams.of("cpu"), depth=1), frames(1)
    monkeypatch.setattr(ring._chunks[0], "free", None)
    out = torch.empty(1, 3, AT.height, AT.width)
    for _ in range(2):
        ring._chunks[0].is_used = False
        with pytest.raises(AttributeError):
            put(ring, [frame], letterbox(), out)


@pytest.mark.parametrize("later", [False, True])
def test_frames_that_are_dropped_or_fail_to_copy_free_their_chunk(later, monkeypatch):
    ring, (frame,) = ring_of(streams.of("cpu"), depth=1), frames(1)
    for _ in range(3):
        ring.copy([frame], later=later).drop()
        abandoned = ring.copy([frame], later=later)
        del abandoned
    plain = frame_ring.host_array

    def failing(frames, dtype, **options):
        return failing_to_write(plain(frames, dtype, **options))

    monkeypatch.setattr(frame_ring, "host_array", failing)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            ring.copy([frame], later=later).take()
    ring.copy([frame], later=True).drop()
    monkeypatch.undo()
    out = torch.full((1, 3, AT.height, AT.width), GREY / 255)
    put(ring, [frame], letterbox(), out)
    assert ring.stats().num_puts == 1
    ring.close()


def test_a_chunk_whose_frames_could_not_be_placed_is_waited_for_all_the_same(world):
    """Its upload may be under way."""
    ring, (frame,) = FrameRing(world, num_frames=1, frame_bytes=3 * 48 * 64, depth=1, graphs=False), frames(1)
    with pytest.raises(RuntimeError):
        put(ring, [frame], letterbox(), torch.empty(1, 3, 1, 1), world.main)
    assert ring.stats().num_puts == 0
    put(ring, [frame], letterbox(), torch.empty(1, 3, AT.height, AT.width), world.main)
    assert (ring.stats().num_puts, ring.stats().num_waits) == (1, 1)


class Replayed:
    """As a captured graph: it computes anew what was captured, into the same memory."""

    def __init__(self, forward, inputs):
        self.outputs = forward(*inputs)
        self._work = lambda: self.outputs.copy_(forward(*inputs))
        self.num_replays = 0

    def replay(self):
        self.num_replays += 1
        self._work()

    def reset(self):
        self.outputs = None


class Capturing:
    """Instead of a `Capturer`, for the CPU."""

    def __init__(self, fails_at=None):
        self.captured, self.fails_at = [], fails_at

    def __call__(self, forward, inputs, kept):
        if len(self.captured) == self.fails_at:
            raise CaptureError("it cannot be")
        assert all(isinstance(tensor, torch.Tensor) for tensor in kept())
        self.captured.append(Replayed(forward, inputs))
        return self.captured[-1]


def put_sizes(ring, world, sizes):
    """Two frames and one of each size; whether they arrived as the letterbox alone makes them."""
    for seed, size in enumerate(sizes):
        at = place(size, (32, 32))
        box = Letterbox(at, torch.device("cpu"), swap_channels=True)
        many = frames(3, size, seed=seed)
        want = box(torch.from_numpy(np.stack(many)), torch.empty(3, 3, at.height, at.width))
        found = want.new_full(want.shape, GREY / 255)
        put(ring, many[:2], box, found[:2], world.main)
        put(ring, many[2:], box, found[2:], world.main)
        assert torch.equal(found, want)


SIZES = [(48, 64), (64, 48), (32, 32), (40, 64), (24, 64), (20, 20)]


@pytest.fixture
def capturing(monkeypatch):
    made = Capturing()
    monkeypatch.setattr(frame_ring, "Capturer", lambda device: made)
    return made


def test_sizes_of_which_as_many_rows_are_read_have_graphs_of_their_own(world, capturing):
    sizes = [(height, 384) for height in range(280, 300)]
    by_rows = {}
    for size in sizes:
        rows = rows_read(place(size, (64, 64)))
        by_rows.setdefault(None if rows is None else len(rows), []).append(size)
    one, other = max((pair for num, pair in by_rows.items() if num), key=len)[:2]
    ring = FrameRing(world, num_frames=1, frame_bytes=3 * 300 * 384, depth=1, graphs=True)
    for size in (one, other, one):
        at = place(size, (64, 64))
        box = Letterbox(at, torch.device("cpu"), swap_channels=True, rows=rows_read(at))
        (frame,) = frames(1, size)
        found = torch.full((1, 3, at.height, at.width), GREY / 255)
        ring.send(ring.copy([frame], rows=rows_read(at)), box, box.region(found), stream=world.main)
        want = Letterbox(at, torch.device("cpu"), swap_channels=True)(
            torch.from_numpy(frame)[None], found.clone()
        )
        assert torch.equal(found, want)
    assert len(capturing.captured) == 2


def test_the_first_few_sizes_that_come_are_captured_once_and_others_go_without(world, capturing):
    ring = ring_of(world)
    assert not capturing.captured
    put_sizes(ring, world, SIZES)
    # For each size and chunk: four frames, two and one.
    assert len(capturing.captured) == frame_ring.MAX_PREPARED * 2 * 3
    put_sizes(ring, world, reversed(SIZES))
    assert len(capturing.captured) == frame_ring.MAX_PREPARED * 2 * 3
    assert sum(graph.num_replays for graph in capturing.captured) == 2 * 2 * frame_ring.MAX_PREPARED
    assert ring.stats().pinned_bytes == 2 * 4 * 3 * 48 * 64
    ring.close()
    assert all(graph.outputs is None for graph in capturing.captured)
    assert ring.stats().pinned_bytes == 0


def test_a_size_that_cannot_be_captured_is_tried_once_and_goes_without(world, capturing, caplog):
    capturing.fails_at = 4
    put_sizes(ring_of(world), world, SIZES[:1] * 3)
    assert len(capturing.captured) == 4
    (record,) = caplog.records
    assert record.message == "upload and resize of 48 by 64 are not captured: it cannot be"
