"""Copies of frames: what arrives, which thread copies, and what a copy that fails leaves behind."""

import gc
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from dynotune.runtime.errors import InputError
from dynotune.runtime.vision import frame_copies
from dynotune.runtime.vision.frame_copies import FrameCopier
from dynotune.runtime.vision.letterbox import place, rows_read

from ...cli.conftest import until
from ..yolo_like import failing_to_write, frames

FRAME_BYTES = 3 * 48 * 64


@pytest.fixture
def several(monkeypatch):
    """Threads that copy."""
    monkeypatch.setattr(frame_copies.host_threads, "num_copying", lambda: 3)


def memory(num=4):
    return torch.zeros(num * FRAME_BYTES, dtype=torch.uint8)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("num", [1, 3])
def test_copier_writes_frames_one_after_the_other_when_there_are_some(num, later, several):
    copier, into, many = FrameCopier(), memory(), frames(num)
    copied = copier.copy(many, into, later=later)
    copied.wait()
    assert copied.num_bytes == num * FRAME_BYTES
    assert torch.equal(into[: copied.num_bytes].view(num, 48, 64, 3), torch.from_numpy(np.stack(many)))
    assert not into[copied.num_bytes :].any()
    copier.stop()


@pytest.mark.parametrize("later", [False, True])
def test_copier_writes_only_the_rows_that_are_read_when_frames_are_large(later, several):
    copier, many = FrameCopier(), frames(2, (288, 384))
    rows = rows_read(place((288, 384), (64, 64)))
    into = torch.empty(2 * 3 * 384 * len(rows), dtype=torch.uint8)
    copier.copy(many, into, rows=rows, later=later).wait()
    assert torch.equal(into.view(2, len(rows), 384, 3), torch.from_numpy(np.stack(many))[:, rows])
    assert len(into) < sum(frame.nbytes for frame in many)
    copier.stop()


def test_copier_stays_usable_when_a_frame_cannot_be_read():
    copier, into, (frame,) = FrameCopier(), memory(1), frames(1)
    with pytest.raises(InputError, match="not an array"):
        copier.copy([object()], into)
    copier.copy([frame], into).wait()
    assert torch.equal(into.view(48, 64, 3), torch.from_numpy(frame))
    copier.stop()


def test_frames_are_copied_side_by_side_when_threads_copy(several, monkeypatch):
    copier, met, plain = FrameCopier(), threading.Barrier(3), frame_copies.host_array

    def meeting(some, dtype, **options):
        found = plain(some, dtype, **options)

        def met_by(part):
            return replace(part, write=lambda into: met.wait(60) + 1 and part.write(into))

        return replace(found, parts=tuple(map(met_by, found.parts)))

    monkeypatch.setattr(frame_copies, "host_array", meeting)
    into, many = memory(3), frames(3)
    copier.copy(many, into, later=True).wait()
    assert torch.equal(into.view(3, 48, 64, 3), torch.from_numpy(np.stack(many)))
    copier.stop()


def test_copy_ends_only_when_the_other_frames_are_copied_after_one_that_fails(several, monkeypatch):
    copier, plain = FrameCopier(), frame_copies.host_array
    begun, failed, go = threading.Event(), threading.Event(), threading.Event()

    def failing(some, dtype, **options):
        found = plain(some, dtype, **options)
        late = replace(found.parts[1], write=lambda into: begun.set() or go.wait(60))
        return replace(found, parts=(failing_to_write(found.parts[0]), late))

    def ended(copying, num, error=None):
        plainly(copying, num, error)
        if error:
            failed.set()

    plainly = frame_copies._Copying.ended
    monkeypatch.setattr(frame_copies._Copying, "ended", ended)
    with monkeypatch.context() as patched:
        patched.setattr(frame_copies, "host_array", failing)
        bad = copier.copy(frames(2), memory(), later=True)
    assert begun.wait(60)
    assert failed.wait(60)
    assert not bad.done.done()
    go.set()
    with pytest.raises(ZeroDivisionError):
        bad.wait()
    bad.ended()
    copier.stop()


@pytest.mark.parametrize("what", ["start", "use_one_thread"])
def test_copy_raises_and_the_next_works_when_no_thread_can_copy(what, several, monkeypatch):
    copier = FrameCopier()

    def fail(*_):
        raise RuntimeError("can't start new thread")

    owner = copier._workers if what == "start" else frame_copies.host_threads
    with monkeypatch.context() as patched:
        patched.setattr(owner, what, fail)
        with pytest.raises(RuntimeError, match="can't start"):
            copier.copy(frames(2), memory(), later=True).wait()
    copier.copy(frames(2), memory(), later=True).wait()
    copier.stop()


def test_copy_keeps_nothing_of_its_frames_when_it_failed(several, monkeypatch):
    copier, (frame,) = FrameCopier(), frames(1)
    seen = weakref.ref(frame)
    gc.collect()
    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(frame_copies.host_threads, "use_one_thread", lambda: 1 / 0)
            copied = copier.copy([frame], memory(), later=True)
            assert isinstance(copied.done.exception(60), ZeroDivisionError)
        del copied, frame
        copier.copy(frames(1), memory(), later=True).wait()
        # The thread that failed may not have gone on yet.
        until(lambda: seen() is None, "the frame is let go")
    finally:
        gc.enable()
    copier.stop()
