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


def tensors(num):
    """Frames that torch copies, not numpy."""
    return [torch.from_numpy(frame) for frame in frames(num)]


@pytest.fixture
def several(monkeypatch):
    """Threads that copy."""
    monkeypatch.setattr(frame_copies.host_threads, "num_copying", lambda: 3)


def memory(num=4):
    return torch.zeros(num * FRAME_BYTES, dtype=torch.uint8)


@pytest.mark.parametrize("make", [frames, tensors])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("num", [1, 3])
def test_copier_writes_frames_one_after_the_other_when_there_are_some(num, later, make, several):
    copier, into, many = FrameCopier(), memory(), make(num)
    copied = copier.copy(many, into, later=later)
    copied.wait()
    assert copied.num_bytes == num * FRAME_BYTES
    assert torch.equal(into[: copied.num_bytes].view(num, 48, 64, 3), torch.from_numpy(np.stack(frames(num))))
    assert not into[copied.num_bytes :].any()
    copier.stop()


@pytest.mark.parametrize(("height", "is_regular"), [(288, False), (480, True)])
@pytest.mark.parametrize("later", [False, True])
def test_copier_writes_only_the_rows_that_are_read_when_frames_are_large(height, is_regular, later, several):
    copier, many = FrameCopier(), frames(2, (height, 384))
    rows = rows_read(place((height, 384), (96, 96) if is_regular else (64, 64)))
    assert isinstance(frame_copies._numpys_rows(rows), slice) is is_regular
    into = torch.empty(2 * 3 * 384 * len(rows), dtype=torch.uint8)
    copier.copy(many, into, rows=rows, later=later).wait()
    assert torch.equal(into.view(2, len(rows), 384, 3), torch.from_numpy(np.stack(many))[:, rows])
    assert len(into) < sum(frame.nbytes for frame in many)
    copier.stop()


def test_copier_stays_usable_when_a_frame_cannot_be_read():
    copier, into, (frame,) = FrameCopier(), memory(1), frames(1)
    with pytest.raises(InputError, match="only dense ones"):
        copier.copy([torch.from_numpy(frame).to_sparse()], into)
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
    into = memory(3)
    copier.copy(tensors(3), into, later=True).wait()
    assert torch.equal(into.view(3, 48, 64, 3), torch.from_numpy(np.stack(frames(3))))
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

    plainly = frame_copies._Copying._ended
    monkeypatch.setattr(frame_copies._Copying, "_ended", ended)
    with monkeypatch.context() as patched:
        patched.setattr(frame_copies, "host_array", failing)
        bad = copier.copy(tensors(2), memory(), later=True)
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
            copier.copy(tensors(2), memory(), later=True).wait()
    copier.copy(tensors(2), memory(), later=True).wait()
    copier.stop()


def test_copy_keeps_nothing_of_its_frames_when_it_failed(several, monkeypatch):
    copier, (frame,) = FrameCopier(), frames(1)
    seen = weakref.ref(frame)
    gc.collect()
    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(frame_copies.host_threads, "use_one_thread", lambda: 1 / 0)
            copied = copier.copy([torch.from_numpy(frame)], memory(), later=True)
            assert isinstance(copied.done.exception(60), ZeroDivisionError)
        del copied, frame
        copier.copy(frames(1), memory(), later=True).wait()
        # The thread that failed may not have gone on yet.
        until(lambda: seen() is None, "the frame is let go")
    finally:
        gc.enable()
    copier.stop()


def test_pace_lets_one_thread_copy_alone_for_longer_each_time_when_several_are_slow():
    pace, alone = frame_copies._Pace(), []
    for _ in range(3):
        for _ in range(2):
            assert not pace.is_alone()
            pace.took(1.0, 1000)
        alone.append(next(number for number in range(10_000) if not pace.is_alone()))
    assert alone == [255, 511, 1023]


@pytest.mark.parametrize("slow", [[False], [True], [True, False], [True, False, True]])
def test_pace_lets_several_threads_copy_when_they_are_not_slow_twice_in_a_row(slow):
    pace = frame_copies._Pace()
    for is_slow in slow:
        pace.took(1.0 if is_slow else 1e-4, 2_000_000)
    assert not pace.is_alone()


def test_copier_copies_alone_when_several_threads_were_slow(monkeypatch):
    copier, into, (frame,) = FrameCopier(), memory(1), frames(1)
    for _ in range(2):
        copier._pace.took(1.0, 1)
    monkeypatch.setattr(frame_copies, "host_array", None)
    copier.copy([frame], into).wait()
    assert torch.equal(into.view(48, 64, 3), torch.from_numpy(frame))
    copier.stop()
