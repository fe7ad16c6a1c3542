"""Many sources at once: fair turns, order, drop policies, and sources that stall or die."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
import torch

from dynotune.runtime.errors import InputError, SourceError
from dynotune.runtime.vision import detector as vision
from dynotune.runtime.vision import serve, stages

from ..yolo_like import OF_A_DETECTOR, YoloLike, frames


@pytest.fixture(scope="module")
def ours():
    with vision.Detector(YoloLike(), 64, conf=0.5, batch=(1, 4), max_frame=(96, 128)) as detector:
        detector.prepare((48, 64))
        yield detector


def numbered(num, seed=0):
    """Frames that carry their number in the first pixel."""
    many = frames(num, seed=seed)
    for number, frame in enumerate(many):
        frame[0, 0] = number
    return many


def test_every_frame_of_every_source_comes_back_once_and_in_order(ours):
    sources = {f"camera {number}": numbered(5 + number, seed=number) for number in range(6)}
    seen = {name: [] for name in sources}
    with ours.serve(sources, max_wait_s=0.001) as server:
        for served in server:
            assert served.frame[0, 0, 0] == served.index
            assert served.latency_s >= 0
            seen[served.source].append(served)
        stats = server.stats()
    for name, many in sources.items():
        assert [served.index for served in seen[name]] == list(range(len(many)))
        alone = ours.predict(many)
        for served, want in zip(seen[name], alone, strict=True):
            torch.testing.assert_close(served.detections.rows, want.rows, atol=1e-4, rtol=1e-5)
        assert stats[name].num_served == stats[name].num_read == len(many)
        assert stats[name].ended and stats[name].error is None
        assert stats[name].num_waiting == stats[name].num_under_way == stats[name].num_dropped == 0


def test_sources_of_different_sizes_are_served_too(ours):
    sources = {"small": frames(6), "wide": frames(6, (32, 128)), "tall": frames(6, (96, 40))}
    seen = [(served.source, served.index) for served in ours.serve(sources)]
    assert sorted(seen) == sorted((name, index) for name in sources for index in range(6))
    assert all([i for n, i in seen if n == name] == list(range(6)) for name in sources)


def test_a_source_that_stalls_does_not_hold_up_the_others(ours):
    release = threading.Event()

    def stalls():
        yield frames(1)[0]
        release.wait(60)
        yield frames(1)[0]

    server = ours.serve({"stalls": stalls(), "runs": frames(20)}, max_wait_s=0.0)
    seen = []
    while seen.count("runs") < 20:
        seen.append(next(server).source)
    assert server.stats()["stalls"].num_served <= 1
    release.set()
    seen.extend(served.source for served in server)
    assert seen.count("stalls") == 2


def test_a_source_that_raises_ends_alone_and_is_reported_last(ours):
    def breaks():
        yield from frames(2)
        raise OSError("unplugged")

    server = ours.serve({"breaks": breaks(), "runs": frames(9), "odd": [np.zeros((4, 4), np.uint8)]})
    seen = []
    with pytest.raises(SourceError, match="2 of 3 sources") as caught:
        for served in server:
            seen.append(served.source)
    assert seen.count("runs") == 9
    assert seen.count("breaks") == 2
    assert "'breaks', 'odd'" in str(caught.value)
    stats = server.stats()
    assert isinstance(stats["breaks"].error, SourceError)
    assert isinstance(stats["odd"].error, InputError)
    assert stats["runs"].error is None
    assert len(list(ours.serve([frames(2)]))) == 2


def gated(num, gate, given):
    """A source that hands out frames without waiting for anybody, then says so and waits at the gate."""
    yield from numbered(num)
    given.set()
    gate.wait(60)


@pytest.mark.parametrize("drop", ["oldest", "newest"])
def test_frames_are_dropped_by_the_policy_and_counted(ours, drop):
    gate, given = threading.Event(), threading.Event()
    server = ours.serve(
        {"fast": gated(30, gate, given)}, drop=drop, queue=2, depth=1, max_wait_s=0.0, max_batch=1
    )
    # Nothing is taken until the source has given all.
    given.wait(30)
    gate.set()
    seen = [served.index for served in server]
    stats = server.stats()["fast"]
    assert stats.num_read == 30
    assert stats.num_dropped == 30 - len(seen) > 0
    assert seen == sorted(set(seen))
    assert (29 in seen) == (drop == "oldest")
    assert stats.num_waiting == stats.num_under_way == 0


def test_without_dropping_a_source_waits_for_room(ours):
    given = []

    def source():
        for number, frame in enumerate(frames(20)):
            given.append(number)
            yield frame

    server = ours.serve([source()], queue=2, depth=1, max_batch=1)
    for count in range(1, 11):
        next(server)
        # Taken, under way, in the queue, and the one that waits for room.
        assert len(given) <= count + 1 + 2 + 1
    server.close()
    assert server.stats()["0"].num_dropped == 0


def test_turns_go_round_whatever_a_source_offers(ours):
    # All queues are full when the second batch is formed: it and those behind it hold every source.
    gates = [threading.Event() for _ in range(4)]
    sources = {str(number): gated(8, gates[number], gates[number]) for number in range(4)}
    with ours.serve(sources, max_batch=4, queue=8, max_wait_s=10.0, depth=1) as server:
        for gate in gates:
            gate.wait(30)
        seen = [next(server).source for _ in range(20)]
    later = seen[4:]
    assert all(len(set(later[at : at + 4])) == 4 for at in range(0, 16, 4))


def test_a_batch_goes_when_it_is_full_or_its_oldest_frame_has_waited(ours):
    gate = threading.Event()

    def one():
        yield frames(1)[0]
        gate.wait(60)

    # One frame of two: only the wait's end can send it.
    server = ours.serve([one()], max_batch=4, max_wait_s=0.05)
    assert next(server).latency_s >= 0.05
    gate.set()
    assert list(server) == []


def test_a_full_batch_of_one_size_does_not_wait_for_a_frame_of_another(ours):
    gates = threading.Event(), threading.Event()

    def one():
        yield frames(1, (32, 128))[0]
        gates[0].set()
        gates[1].wait(60)

    def four():
        gates[0].wait(60)
        yield from frames(4)
        gates[1].wait(60)

    with ours.serve({"one": one(), "four": four()}, max_batch=4, max_wait_s=20.0) as server:
        assert [next(server).source for _ in range(4)] == ["four"] * 4
        gates[1].set()


def test_of_batches_that_are_due_the_one_with_the_oldest_frame_goes_first():
    mux = serve._Mux(
        lanes=None, sources={"a": [], "b": [], "c": []}, max_wait_s=1.0, max_batch=2, drop="never", queue=8,
    )  # fmt: skip
    now_s = time.monotonic()
    for source, size, ages_s in zip(mux.sources, (1, 2, 3), ((0.1, 0.05), (9.0,), (7.0,)), strict=True):
        for index, age_s in enumerate(ages_s):
            source.waiting.append(serve._Waiting(source, index, None, (size, size), now_s - age_s))
    mux.sources[0].waiting.append(serve._Waiting(mux.sources[0], 2, None, (1, 1), now_s + 60))
    batches = [mux._next() for _ in range(3)]
    assert [batch[0].key[0] for batch in batches] == [2, 3, 1]
    assert [len(batch) for batch in batches] == [1, 1, 2]


def queued(sizes, last, *, ended=()):
    """What would form batches of up to 16 of sources with queues of 2; `sizes` and `last` are those of each
    source."""
    mux = serve._Mux(
        lanes=None, sources={str(number): [] for number in range(len(sizes))},
        max_wait_s=1e9, max_batch=16, drop="never", queue=2,
    )  # fmt: skip
    for number, (source, waiting) in enumerate(zip(mux.sources, sizes, strict=True)):
        source.waiting.extend(
            serve._Waiting(source, index, None, (key, key), 1.0) for index, key in enumerate(waiting)
        )
        source.last_key, source.ended = (
            (last[number], last[number]) if last[number] else None,
            number in ended,
        )
    return mux


def test_a_batch_that_no_source_can_add_to_does_not_wait_for_a_source_of_another_size():
    mux = queued([(1, 1), (1, 1), (2,), ()], last=[1, 1, 2, 2])
    with mux._lock:
        assert mux._is_as_full_as_it_gets((1, 1))
        assert not mux._is_as_full_as_it_gets((2, 2)), "the third source has room"
    assert [waiting.key for waiting in mux._next()] == [(1, 1)] * 4


@pytest.mark.parametrize(
    ("sizes", "last", "ended", "full"),
    [
        ([(1, 1), (1,)], [1, 1], (), False),
        ([(1, 1), (1,)], [1, 1], (1,), True),
        ([(1, 1), ()], [1, 0], (), False),
        ([(1, 1), ()], [1, 1], (), False),
        ([(1, 1), ()], [1, 2], (), True),
        ([(1, 1), (1, 2)], [1, 2], (), True),
        ([(1, 1), (2,)], [1, 2], (), True),
    ],
    ids=[
        "room",
        "ended",
        "gave-nothing-yet",
        "comes-again",
        "another-size",
        "behind-another-size",
        "in-front",
    ],
)
def test_a_batch_waits_only_for_a_source_that_may_still_give_its_size(sizes, last, ended, full):
    mux = queued(sizes, last, ended=ended)
    with mux._lock:
        assert mux._is_as_full_as_it_gets((1, 1)) is full


def test_frames_that_closing_throws_away_are_neither_waiting_nor_under_way(ours):
    gate, given = threading.Event(), threading.Event()
    server = ours.serve({"fast": gated(20, gate, given)}, max_batch=2, queue=64, depth=1, max_wait_s=0.0)
    given.wait(30)
    next(server)
    before = server.stats()["fast"]
    assert before.num_waiting > 0 and before.num_discarded == 0
    server.close()
    gate.set()
    after = server.stats()["fast"]
    assert (after.num_waiting, after.num_under_way, after.num_dropped) == (0, 0, 0)
    assert (after.num_read, after.num_served, after.num_discarded) == (20, 1, 19)


def test_a_frame_that_waits_for_room_when_the_server_closes_is_discarded(ours):
    server = ours.serve([iter(numbered(50))], max_batch=1, queue=2, depth=1, max_wait_s=0.0)
    next(server)
    server.close()
    stats = server.stats()["0"]
    assert stats.num_waiting == stats.num_under_way == 0
    assert stats.num_read == stats.num_served + stats.num_discarded


def test_two_sources_that_bring_new_sizes_at_once_keep_to_the_limit_of_sizes(ours, monkeypatch):
    meeting = threading.Barrier(2)

    class Meeting(dict):
        def __len__(self):
            found = super().__len__()
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(0.5)  # both threads have counted before either adds its own
            return found

    monkeypatch.setattr(stages, "MAX_PLACEMENTS", 1)
    monkeypatch.setattr(ours._lanes, "_placements", Meeting())
    threads = [
        threading.Thread(target=ours._lanes.placement, args=frames(1, size)) for size in ((16, 16), (32, 32))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(1 for _ in ours._lanes._placements) == 1


def test_a_server_may_be_closed_while_another_thread_waits_for_its_next_result(ours):
    asked, release = threading.Event(), threading.Event()

    def stalls():
        yield frames(1)[0]
        asked.set()
        release.wait(60)

    server = ours.serve([stalls()], max_wait_s=0.0)
    seen = []
    waiting = threading.Thread(target=lambda: seen.extend(server))
    waiting.start()
    asked.wait(30)
    server.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert len(seen) <= 1
    release.set()


def test_closing_and_dropping_a_server_end_its_threads(ours):
    def endless():
        while True:
            yield from frames(2)

    for end in ("close", "drop"):
        server = ours.serve([endless(), endless()], queue=2)
        next(server)
        if end == "close":
            server.close()
            assert list(server) == []
        del server
    for thread in threading.enumerate():
        if thread.name.startswith("dynotune-") and thread.name not in OF_A_DETECTOR:
            thread.join(30)
            assert not thread.is_alive()
    assert len(ours.predict(frames(2))) == 2
