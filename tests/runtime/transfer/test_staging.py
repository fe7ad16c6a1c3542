"""Uploads through the ring: what arrives, in which order, and what is refused."""

import gc
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynotune.runtime import (
    BufferPool,
    ClosedError,
    DeviceError,
    InputError,
    PoolExhausted,
    Stager,
    TooLargeError,
)
from dynotune.runtime.transfer.host_arrays import host_array
from dynotune.runtime.transfer.pinned import PinnedRing

FRAME = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        FRAME,
        FRAME[:, ::2],
        FRAME[..., ::-1],
        FRAME.transpose(2, 0, 1),
        read_only(FRAME),
        read_only(FRAME)[:, ::2],
        FRAME.astype(np.float16),
        FRAME.astype(np.int64),
        FRAME > 5,
        np.float32(3) * np.ones((2, 2), np.float32),
        np.broadcast_to(np.uint8(7), (3, 5)),
    ],
    ids=[
        "plain",
        "gaps",
        "flipped",
        "transposed",
        "read-only",
        "read-only gaps",
        "half",
        "int64",
        "bool",
        "f4",
        "bc",
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_numpy_array_arrives_with_its_shape_and_dtype(array):
    with Stager(4096, device="cpu") as stager:
        put = stager.put(array)
    assert put.shape == array.shape
    assert np.array_equal(put.numpy(), array)
    assert put.numpy().dtype == array.dtype


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
@pytest.mark.filterwarnings("error")
def test_a_buffer_arrives_as_bytes_or_as_the_stagers_dtype(kind):
    content = np.arange(10, dtype=np.float32)
    with Stager(64, device="cpu") as stager:
        assert stager.put(kind(content.tobytes())).numpy().tobytes() == content.tobytes()
    with Stager((16,), torch.float32, "cpu") as stager:
        assert stager.put(kind(content.tobytes())).tolist() == content.tolist()


def test_a_list_arrives_stacked():
    frames = [FRAME, torch.from_numpy(FRAME + 1), FRAME[..., ::-1]]
    with Stager((3, 4, 6, 3), torch.uint8, "cpu") as stager:
        put = stager.put(frames)
    assert np.array_equal(put.numpy(), np.stack([np.asarray(frame) for frame in frames]))


@pytest.mark.parametrize(
    "frame",
    [
        FRAME,
        FRAME[:, ::2],
        FRAME[..., ::-1],
        read_only(FRAME),
        read_only(FRAME)[:, ::2],
        np.broadcast_to(FRAME[:1], FRAME.shape),
        torch.from_numpy(FRAME).permute(1, 0, 2),
    ],
    ids=["plain", "gaps", "flipped", "read-only", "read-only gaps", "broadcast", "tensor"],
)
@pytest.mark.filterwarnings("error")
def test_rows_of_arrays_are_written_alone(frame):
    rows = torch.tensor([0, 2, 3])
    want = np.asarray(frame)[rows.numpy()]
    for what, wanted in ((frame, want), ([frame, frame], np.stack([want, want]))):
        array = host_array(what, rows=rows)
        into = torch.full(array.shape, 99, dtype=torch.uint8)
        array.write(into)
        assert np.array_equal(into.numpy(), wanted)


def test_bytes_have_no_rows():
    with pytest.raises(InputError, match="bytes is not an array"):
        host_array(b"1234", rows=torch.tensor([0]))


def test_a_read_only_array_is_kept_as_long_as_its_memory_is_seen():
    array = read_only(np.arange(1 << 20, dtype=np.uint8))
    held, want = host_array(array), array.copy()
    del array
    gc.collect()
    into = torch.empty(1 << 20, dtype=torch.uint8)
    held.write(into)
    assert np.array_equal(into.numpy(), want)


def test_tensors_with_strides_arrive_with_their_values():
    tensor = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    with Stager(1024, device="cpu") as stager:
        assert torch.equal(stager.put(tensor), tensor)
        assert torch.equal(stager.put(tensor.requires_grad_()), tensor)


def test_the_result_is_not_the_callers_memory():
    array = FRAME.copy()
    with Stager(4096, device="cpu") as stager:
        put = stager.put(array)
        array[:] = 0
        stager.put(array)
        stager.put(array)
        stager.put(array)
    assert np.array_equal(put.numpy(), FRAME)


@pytest.mark.parametrize(
    ("array", "error", "says"),
    [
        (np.empty((0, 4, 3), np.uint8), InputError, "empty array"),
        ([], InputError, "empty list"),
        (b"", InputError, "empty array"),
        (FRAME.astype(np.float32), InputError, "float32"),
        ([FRAME, FRAME[:2]], InputError, "(2, 6, 3)"),
        (np.zeros((9, 9, 9), np.uint8), TooLargeError, "729"),
        ("frame.png", InputError, "str"),
        (None, InputError, "NoneType"),
        ([[1, 2], [3, 4]], InputError, "list"),
        (np.array(["a"], dtype=object), InputError, "dtype"),
        (np.zeros(3, ">f4"), InputError, "byte order"),
        (torch.zeros(3, device="meta", dtype=torch.uint8), InputError, "meta"),
        (torch.zeros(3, dtype=torch.uint8).to_sparse(), InputError, "layout"),
    ],
)
def test_stager_refuses_arrays_that_it_cannot_stage_and_the_next_put_works(array, error, says):
    with Stager(FRAME.shape, torch.uint8, "cpu", depth=1) as stager:
        for _ in range(3):
            with pytest.raises(error) as caught:
                stager.put(array)
            assert says in str(caught.value)
        assert np.array_equal(stager.put(FRAME).numpy(), FRAME)
        assert stager.stats().num_puts == 1


@pytest.mark.parametrize(
    "arguments", [((4, 4), None, "cpu"), (0, None, "cpu"), ((0, 4), torch.uint8, "cpu"), (8,)]
)
def test_sizes_and_devices_that_make_no_sense_are_refused(arguments):
    with pytest.raises(InputError):
        Stager(*arguments)


def test_a_ring_without_buffers_is_refused():
    with pytest.raises(InputError, match="depth is 0"):
        Stager(8, device="cpu", depth=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_error_says_so():
    with pytest.raises(DeviceError, match="cannot be used"):
        Stager(8, device="cuda")


def test_other_devices_are_refused():
    with pytest.raises(InputError, match="not supported"):
        Stager(8, device="meta")
    with pytest.raises(InputError, match="not a device"):
        Stager(8, device="gpu")


def test_use_after_close_is_refused_and_what_was_put_stays():
    stager = Stager(4096, device="cpu")
    put = stager.put(FRAME)
    stager.close()
    stager.close()
    with pytest.raises(ClosedError, match="Stager"):
        stager.put(FRAME)
    with pytest.raises(ClosedError), stager:
        pass
    assert np.array_equal(put.numpy(), FRAME)
    assert stager.stats().num_puts == 1


def test_use_in_a_forked_child_is_refused_and_closing_there_does_nothing(in_forked_child):
    stager = Stager(4096, device="cpu")
    assert in_forked_child(lambda: stager.put(FRAME)) == "ForkedError"
    assert in_forked_child(stager.close) == ""
    assert np.array_equal(stager.put(FRAME).numpy(), FRAME)


def test_threads_may_share_a_stager():
    stager = Stager(4096, device="cpu", depth=2)
    wrong, start = [], threading.Barrier(4)

    def put_many(value):
        start.wait()
        for _ in range(50):
            if not bool((stager.put(np.full((40, 40), value, np.uint8)) == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=put_many, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert stager.stats().num_puts == 200


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_is_flat_over_ten_thousand_frames():
    frame, pool = np.zeros((128, 256, 3), np.uint8), BufferPool("cpu", 4 * 128 * 256 * 3)

    def frames(num):
        for index in range(num):
            frame[0, 0, 0] = index % 256
            assert stager.put(frame)[0, 0, 0] == index % 256
            with stager.lend(frame, pool) as lease:
                assert lease.tensor[0, 0, 0] == index % 256

    with Stager(frame.shape, torch.uint8, "cpu") as stager:
        frames(500)
        before = resident_bytes()
        frames(10_000)
        assert resident_bytes() - before < 40 * frame.nbytes  # of ten thousand
    assert pool.stats().num_allocated == 1


def check_uploads(world, depth, steps):
    """Puts arrays while the upload stream lags as `steps` say; every reader sees what was put for it."""
    stager = Stager(16, device="cuda", depth=depth)
    upload = world.all[-1]
    seen = {}
    for index, num_steps in enumerate(steps):
        tensor = stager.put(np.full(16, index, np.uint8))
        world.enqueue(world.main, lambda tensor=tensor, index=index: seen.update({index: tensor.tolist()}))
        for _ in range(num_steps):
            world.step(upload)
            world.step(world.main)
    world.run_all()
    assert seen == {index: [index] * 16 for index in range(len(steps))}
    assert world.num_pinned == depth


@given(depth=st.integers(1, 4), steps=st.lists(st.integers(0, 4), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_readers_see_their_array_however_late_uploads_are(monkeypatch, depth, steps):
    with monkeypatch.context() as patched:
        from ..delayed_streams import install

        check_uploads(install(patched), depth, steps)


def test_stager_check_fails_when_slots_are_reused_early(world, monkeypatch):
    monkeypatch.setattr(PinnedRing, "_wait_for", lambda ring, slot: None)
    with pytest.raises(AssertionError):
        check_uploads(world, 2, [0] * 5)


def test_stager_check_fails_when_the_reader_does_not_wait(world, monkeypatch):
    monkeypatch.setattr(world, "wait", lambda stream, event: None)
    monkeypatch.setattr(world, "all", world.all[:])
    world.step = lambda stream, step=world.step: stream is world.main and step(stream)
    with pytest.raises(AssertionError):
        check_uploads(world, 3, [0, 2])


def test_the_allocator_is_told_who_reads(world):
    stager = Stager(16, device="cuda")
    put = stager.put(FRAME[0, 0])
    assert [(kept is put, stream) for kept, stream in world.kept] == [(True, world.main)]


def test_a_full_ring_holds_the_host_until_the_oldest_upload_has_ended(world):
    stager = Stager(16, device="cuda", depth=2)
    upload = world.all[-1]
    stager.put(b"a" * 16)
    stager.put(b"b" * 16)
    assert (stager.stats().num_waits, len(upload.work)) == (0, 4)
    stager.put(b"c" * 16)
    assert stager.stats().num_waits == 1
    assert len(upload.work) == 4  # the first copy and its event ran; the second's are still to come


def test_lent_buffers_are_bounded_and_come_back(world):
    stager, pool = Stager(16, device="cuda", depth=2), BufferPool("cuda", 32)
    seen = []
    for index in range(6):
        with stager.lend(np.full(16, index, np.uint8), pool) as lease:
            world.enqueue(world.main, lambda tensor=lease.tensor: seen.append(tensor.tolist()))
    world.run_all()
    assert seen == [[index] * 16 for index in range(6)]
    assert (pool.stats().num_allocated, pool.stats().num_leased) == (2, 0)


def test_a_refused_loan_leaves_pool_and_ring_as_they_were():
    pool = BufferPool("cpu", 32)
    with Stager(64, device="cpu") as stager:
        held = stager.lend(bytes(32), pool)
        with pytest.raises(PoolExhausted):
            stager.lend(bytes(32), pool)
        with pytest.raises(TooLargeError):
            stager.lend(bytes(64), pool)
        held.release()
        with stager.lend(b"x" * 32, pool) as lease:
            assert lease.tensor.tolist() == [ord("x")] * 32
    assert pool.stats().num_leased == 0


def test_an_error_during_the_copy_gives_the_buffer_back(world, monkeypatch):
    stager, pool = Stager(16, device="cuda"), BufferPool("cuda", 16)
    with monkeypatch.context() as patched:
        patched.setattr(world, "copy", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stager.lend(bytes(16), pool)
    assert pool.stats().num_leased == 0
    stager.lend(bytes(16), pool).release()
