"""Buffers of the pool where streams lag: no reader sees what the next holder writes."""

import pytest
import torch

from dynotune.runtime import BufferPool, CaptureError
from dynotune.runtime.transfer.pool import _Buffer

from .delays import CYCLES, fresh_allocator, lag, num_allocations

pytestmark = pytest.mark.gpu

SIZE = 1 << 20


@pytest.fixture
def seen():
    """Where readers put what they read; kernels are loaded before anything lags."""
    fresh_allocator()
    seen = torch.zeros(8, SIZE, dtype=torch.int32, device="cuda")
    seen[0].copy_(torch.zeros(SIZE, dtype=torch.int32, device="cuda").fill_(0))
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    return seen


def check_readers_are_left_alone(seen):
    """One buffer, read late on one stream, written early on another."""
    pool = BufferPool("cuda", 4 * SIZE)
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    for value in range(1, 6):
        lease = pool.get((SIZE,), torch.int32, stream=writer)
        with torch.cuda.stream(writer):
            lease.tensor.fill_(value)
        reader.wait_stream(writer)
        lag(reader)
        with torch.cuda.stream(reader):
            seen[value].copy_(lease.tensor)
        lease.release(reader)
    torch.cuda.synchronize()
    assert [int(row.min()) for row in seen[1:6]] == [int(row.max()) for row in seen[1:6]] == [1, 2, 3, 4, 5]
    return pool.stats()


def check_an_unused_lease_does_not_hide_a_reader(seen):
    """Read late on one stream; lent on a second and given back unused on a third; written on the third."""
    pool = BufferPool("cuda", 4 * SIZE)
    writer, reader, idle = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(writer):
        lease = pool.get((SIZE,), torch.int32)
        lease.tensor.fill_(1)
    reader.wait_stream(writer)
    lag(reader)
    with torch.cuda.stream(reader):
        seen[1].copy_(lease.tensor)
    lease.release(reader)
    pool.get((SIZE,), torch.int32, stream=idle).release(writer)
    writer.synchronize()
    with pool.get((SIZE,), torch.int32, stream=writer) as lease, torch.cuda.stream(writer):
        lease.tensor.fill_(2)
    torch.cuda.synchronize()
    assert (int(seen[1].min()), int(seen[1].max())) == (1, 1)


def test_readers_are_left_alone(seen):
    stats = check_readers_are_left_alone(seen)
    assert (stats.num_allocated, stats.num_ordered) == (1, 4)


def test_an_unused_lease_does_not_hide_a_reader(seen):
    check_an_unused_lease_does_not_hide_a_reader(seen)


@pytest.mark.parametrize("rule", ["asks", "waits"])
def test_the_first_check_fails_without_the_rule(seen, monkeypatch, rule):
    if rule == "asks":
        monkeypatch.setattr(_Buffer, "is_done", lambda buffer: True)
    else:
        monkeypatch.setattr(BufferPool, "_ordered", lambda pool, buffer, user: None)
    with pytest.raises(AssertionError):
        check_readers_are_left_alone(seen)
    torch.cuda.synchronize()


def test_the_second_check_fails_when_only_the_named_stream_counts(seen, monkeypatch):
    monkeypatch.setattr(
        "dynotune.runtime.transfer.pool._distinct", lambda got_on, given, pool: [given or pool.current()]
    )
    with pytest.raises(AssertionError):
        check_an_unused_lease_does_not_hide_a_reader(seen)
    torch.cuda.synchronize()


def test_nothing_waits_on_the_host_and_nothing_is_allocated_in_the_steady_state(seen):
    pool = BufferPool("cuda", 12 * SIZE)
    pool.reserve((SIZE,), torch.int32, 3)
    before = num_allocations()
    lag(cycles=5 * CYCLES)
    busy = torch.cuda.current_stream().record_event()
    for value in range(30):
        with pool.get((SIZE,), torch.int32) as lease:
            lease.tensor.fill_(value)
            seen[value % 8].copy_(lease.tensor)
    assert not busy.query()
    torch.cuda.synchronize()
    assert num_allocations() == before
    assert [int(row[0]) for row in seen] == [24, 25, 26, 27, 28, 29, 22, 23]


def test_a_buffer_whose_readers_are_done_is_preferred(seen):
    pool = BufferPool("cuda", 8 * SIZE)
    busy_stream = torch.cuda.Stream()
    busy, done = (pool.get((SIZE,), torch.int32) for _ in range(2))
    address = done.tensor.data_ptr()
    lag(busy_stream)
    busy.release(busy_stream)
    done.release()
    torch.cuda.current_stream().synchronize()
    with pool.get((SIZE,), torch.int32) as lease:
        assert lease.tensor.data_ptr() == address
    torch.cuda.synchronize()


def test_eviction_waits_for_readers_before_memory_goes_back(seen):
    pool = BufferPool("cuda", 4 * SIZE)
    reader = torch.cuda.Stream()
    lease = pool.get((SIZE,), torch.int32)
    lease.tensor.fill_(7)
    reader.wait_stream(torch.cuda.current_stream())
    lag(reader)
    with torch.cuda.stream(reader):
        seen[1].copy_(lease.tensor)
    lease.release(reader)
    with pool.get((SIZE // 2, 2), torch.int32) as other:
        other.tensor.fill_(8)
    torch.cuda.synchronize()
    assert (int(seen[1].min()), int(seen[1].max())) == (7, 7)
    assert pool.stats().num_evicted == 1


def test_leases_are_refused_inside_a_capture_and_the_capture_goes_on():
    pool = BufferPool("cuda", SIZE)
    lease = pool.get((16,), torch.int32)
    static = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(CaptureError):
            pool.get((16,), torch.int32)
        with pytest.raises(CaptureError):
            lease.release()
        static += 1
    lease.release()
    graph.replay()
    torch.cuda.synchronize()
    assert static.tolist() == [1] * 4
    assert pool.stats().num_leased == 0


def test_close_waits_for_readers(seen):
    pool = BufferPool("cuda", 4 * SIZE)
    with pool.get((SIZE,), torch.int32):
        lag()
        done = torch.cuda.current_stream().record_event()
    assert not done.query()
    pool.close()
    assert done.query()
    assert pool.stats().held_bytes == 0
