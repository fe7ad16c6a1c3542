"""The ring that frames go through: what arrives, and that a chunk in use is waited for."""

import numpy as np
import torch

from dynotune.runtime import streams
from dynotune.runtime.frame_ring import FrameRing
from dynotune.runtime.letterbox import Letterbox, place

from .yolo_like import frames

AT = place((48, 64), (32, 32))


def ring_of(device_streams, depth=2):
    return FrameRing(device_streams, num_frames=4, frame_bytes=3 * 48 * 64, depth=depth, graphs=True)


def letterbox():
    return Letterbox(AT, torch.device("cpu"), swap_channels=True)


def test_frames_arrive_as_the_letterbox_alone_makes_them_in_chunks_of_any_number():
    ring, many = ring_of(streams.of("cpu")), frames(7)
    ring.prepare(letterbox())
    want = letterbox()(torch.from_numpy(np.stack(many)), torch.empty(7, 3, AT.height, AT.width))
    found = torch.empty_like(want)
    for start, num in ((0, 4), (4, 2), (6, 1)):
        ring.put(many[start : start + num], letterbox(), found[start : start + num], pads=True, stream=None)
    assert torch.equal(found, want)
    assert (ring.stats().num_puts, ring.stats().num_bytes) == (3, 7 * 3 * 48 * 64)
    ring.close()
    assert ring.stats().num_puts == 3


def test_a_chunk_is_written_again_only_when_what_was_enqueued_for_it_has_ended(world):
    """In turn, so that the host waits for the oldest alone."""
    world_ring = FrameRing(world, num_frames=1, frame_bytes=3 * 48 * 64, depth=2, graphs=False)
    out = torch.empty(1, 3, AT.height, AT.width)
    for number, frame in enumerate(frames(5)):
        world_ring.put([frame], letterbox(), out, pads=True, stream=world.main)
        # Of the two chunks one is always still to come.
        assert len(world.main.work) == min(number + 1, 2)
    assert world_ring.stats().num_waits == 3
    world_ring.close()
    assert not world.main.work


def test_a_frame_that_cannot_be_read_leaves_the_ring_usable():
    ring, (frame,) = ring_of(streams.of("cpu")), frames(1)
    out = torch.empty(1, 3, AT.height, AT.width)
    for _ in range(5):
        try:
            ring.put([object()], letterbox(), out, pads=True, stream=None)
        except Exception as error:
            assert "not an array" in str(error)
    ring.put([frame], letterbox(), out, pads=True, stream=None)
    assert torch.equal(out, letterbox()(torch.from_numpy(frame)[None], torch.empty_like(out)))
