"""Uploads where streams lag: readers see their array, and would not if a rule were left out."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dynotune.runtime import BufferPool, CaptureError, Stager
from dynotune.runtime.streams import CudaStreams
from dynotune.runtime.transfer.pinned import PinnedRing

from ..runtime.conftest import in_forked_child  # noqa: F401
from .delays import CYCLES, fresh_allocator, lag, num_allocations

pytestmark = pytest.mark.gpu

SIZE = 1 << 20


def filled(value):
    return np.full(SIZE, value, np.uint8)


@pytest.fixture
def stager():
    fresh_allocator()
    with Stager(SIZE, torch.uint8, "cuda", depth=3) as stager:
        # Kernels are loaded and memory is taken before anything lags: both can make the host wait for the
        # device.
        warm = [stager.put(filled(0)).clone() for _ in range(2)] + [stager.put(filled(0)) for _ in range(6)]
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        warm.clear()
        yield stager


def check_the_reader_waits_for_the_upload(stager):
    lag(stager._upload)
    seen = stager.put(filled(1)).clone()
    torch.cuda.synchronize()
    assert bool((seen == 1).all())


def check_slots_wait_for_their_upload(stager):
    lag(stager._upload)
    put = [stager.put(filled(value)) for value in range(1, 6)]
    torch.cuda.synchronize()
    assert [bool((tensor == value).all()) for value, tensor in enumerate(put, 1)] == [True] * 5


def check_memory_is_not_reused_under_the_reader(stager):
    seen = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    first = stager.put(filled(1))
    lag()
    seen.copy_(first)
    del first
    second = stager.put(filled(2))
    torch.cuda.synchronize()
    assert bool((seen == 1).all())
    assert bool((second == 2).all())


def test_the_reader_waits_for_the_upload(stager):
    check_the_reader_waits_for_the_upload(stager)


def test_slots_wait_for_their_upload(stager):
    check_slots_wait_for_their_upload(stager)


def test_memory_is_not_reused_under_the_reader(stager):
    check_memory_is_not_reused_under_the_reader(stager)


@pytest.mark.parametrize(
    ("kind", "rule", "check"),
    [
        (CudaStreams, "wait", check_the_reader_waits_for_the_upload),
        (PinnedRing, "_wait_for", check_slots_wait_for_their_upload),
        (CudaStreams, "keep", check_memory_is_not_reused_under_the_reader),
    ],
    ids=["wait", "slots", "record_stream"],
)
def test_the_check_fails_without_the_rule(stager, monkeypatch, kind, rule, check):
    monkeypatch.setattr(kind, rule, lambda *arguments: None)
    with pytest.raises(AssertionError):
        check(stager)
    torch.cuda.synchronize()


def test_an_upload_goes_on_while_the_caller_computes(stager):
    lag(cycles=5 * CYCLES)
    busy = torch.cuda.current_stream().record_event()
    stager.put(filled(3))
    stager._upload.synchronize()
    assert not busy.query()
    torch.cuda.synchronize()


def test_no_put_synchronises_with_the_device(stager):
    torch.cuda.set_sync_debug_mode("error")
    try:
        for value in range(3):
            stager.put(filled(value))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_is_allocated_after_warm_up(stager):
    def puts(num):
        for value in range(num):
            stager.put(filled(value % 256)).sum()
            if value % 4 == 3:
                torch.cuda.synchronize()

    puts(40)
    before = num_allocations()
    puts(400)
    assert num_allocations() == before


def test_lent_buffers_are_never_allocated_again_though_nobody_synchronises(stager):
    seen = torch.zeros(64, SIZE, dtype=torch.uint8, device="cuda")
    with BufferPool("cuda", 3 * SIZE) as pool:
        pool.reserve((SIZE,), torch.uint8, 3)
        before = num_allocations()
        lag()
        for value in range(64):
            with stager.lend(filled(value), pool) as lease:
                seen[value].copy_(lease.tensor)
        assert num_allocations() == before
        torch.cuda.synchronize()
        assert seen.amin(1).tolist() == seen.amax(1).tolist() == list(range(64))
        assert pool.stats().num_allocated == 3


def test_a_result_is_read_on_the_stream_that_was_current(stager):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        lag(stager._upload)
        seen = stager.put(filled(9)).clone()
        seen.record_stream(torch.cuda.current_stream())
    side.synchronize()
    assert bool((seen == 9).all())


def test_a_put_inside_a_capture_is_refused_and_the_capture_goes_on(stager):
    static = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError):
            stager.put(filled(1))
        static += 1
    graph.replay()
    torch.cuda.synchronize()
    assert static.tolist() == [1] * 4
    assert bool((stager.put(filled(5)) == 5).all())


def test_frames_keep_shape_dtype_and_values(stager):
    generator = np.random.default_rng(0)
    frame = generator.integers(0, 256, (300, 400, 3), np.uint8)
    for array in (
        frame,
        frame[:, ::2],
        frame[..., ::-1],
        np.frombuffer(frame.tobytes(), np.uint8).reshape(frame.shape),
    ):
        assert np.array_equal(stager.put(array).cpu().numpy(), array)
    assert np.array_equal(
        stager.put([frame, frame[:, ::-1]]).cpu().numpy(), np.stack([frame, frame[:, ::-1]])
    )


def test_a_forked_child_is_refused(stager, in_forked_child):  # noqa: F811
    assert in_forked_child(lambda: stager.put(filled(1))) == "ForkedError"
    assert in_forked_child(stager.close) == ""
    assert bool((stager.put(filled(4)) == 4).all())


PROGRAM = """
import torch
from dynotune.runtime import BufferPool, Prefetcher, Stager
stager, pool = Stager(1 << 20, device="cuda"), BufferPool("cuda", 1 << 20)
kept = [stager.put(bytes(1 << 20)), stager.lend(bytes(1 << 20), pool)]
batches = iter(Prefetcher([torch.full((1000,), index) for index in range(9)], "cuda"))
torch.cuda._sleep(100_000_000)
print(int(next(batches)[0]), int(next(batches)[0]))
"""


def test_a_program_that_closes_nothing_ends_silently():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "0 1\n", "")
