"""The pool's promise: no buffer is written while work that reads it is still to come."""

import gc
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynotune.runtime import BufferPool, ClosedError, InputError, PoolExhausted, TooLargeError
from dynotune.runtime.transfer.pool import _Buffer

from ..delayed_streams import install


def run_leases(world, leases, max_bytes=64):
    """Leases that write on one stream and read on another while streams lag; returns (expected, read) values.

    A lease is (stream it writes on, stream it reads on, whether it is used, pieces of work that run after
    it).
    """
    streams = [world.main, world.side(), world.side()]
    pool = BufferPool("cuda", max_bytes)
    expected, read = [], []
    for index, (writer, reader, is_used, num_steps) in enumerate(leases):
        lease = pool.get((4,), torch.int32, stream=streams[writer])
        if is_used:
            tensor = lease.tensor
            world.enqueue(streams[writer], lambda tensor=tensor, index=index: tensor.fill_(index))
            world.wait(streams[reader], world.record(streams[writer]))
            world.enqueue(
                streams[reader], lambda tensor=tensor, index=index: read.append((index, tensor.tolist()))
            )
            expected.append((index, [index] * 4))
        lease.release(streams[reader])
        for step in range(num_steps):
            world.step(streams[(index + step) % 3])
    world.run_all()
    return expected, sorted(read), pool.stats()


LEASE = st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans(), st.integers(0, 5))


@given(leases=st.lists(LEASE, max_size=20), max_bytes=st.sampled_from([16, 32, 64]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_reader_sees_its_own_lease_however_streams_lag(monkeypatch, leases, max_bytes):
    with monkeypatch.context() as patched:
        expected, read, stats = run_leases(install(patched), leases, max_bytes)
    assert read == expected
    assert stats.held_bytes <= max_bytes
    assert stats.num_gets == stats.num_reused + stats.num_ordered + stats.num_allocated == len(leases)


# One buffer, lent three times: read on another stream, taken and given back unused, written again.
IN_FLIGHT = [(0, 1, True, 0), (2, 2, False, 0), (2, 0, True, 5), (0, 0, True, 0)]


def test_a_buffer_in_flight_is_lent_behind_its_readers(world):
    expected, read, stats = run_leases(world, IN_FLIGHT, max_bytes=16)
    assert read == expected
    assert (stats.num_allocated, stats.num_ordered) == (1, 3)


@pytest.mark.parametrize(
    "rule", ["ends are asked", "the next stream waits", "the stream it was got on counts"]
)
def test_pool_check_fails_when_a_rule_is_broken(world, monkeypatch, rule):
    if rule == "ends are asked":
        monkeypatch.setattr(_Buffer, "is_done", lambda buffer: True)
    elif rule == "the next stream waits":
        monkeypatch.setattr(BufferPool, "_ordered", lambda pool, buffer, user: None)
    else:
        monkeypatch.setattr("dynotune.runtime.transfer.pool._distinct", lambda got_on, given, pool: [given])
        # Got on a stream that waits, given back on one that does not: its readers' end is forgotten.
        expected, read, _ = run_leases(
            world, [(0, 1, True, 0), (2, 0, False, 9), (0, 0, True, 0)], max_bytes=16
        )
        assert read != expected
        return
    expected, read, _ = run_leases(world, IN_FLIGHT, max_bytes=16)
    assert read != expected


def test_buffers_are_kept_by_shape_and_dtype():
    pool = BufferPool("cpu", 1000)
    for shape, dtype in [((4, 2), torch.float32), ((8,), torch.float32), ((4, 2), torch.int32)] * 3:
        with pool.get(shape, dtype) as lease:
            assert (tuple(lease.tensor.shape), lease.tensor.dtype) == (shape, dtype)
    assert (pool.stats().num_allocated, pool.stats().num_reused) == (3, 6)


def test_idle_buffers_of_other_shapes_make_room():
    pool = BufferPool("cpu", 100)
    pool.get((60,), torch.uint8).release()
    pool.get((40,), torch.uint8).release()
    with pool.get((50,), torch.uint8):
        stats = pool.stats()
    assert (stats.num_evicted, stats.held_bytes) == (1, 90)


def test_an_evicted_buffers_readers_are_waited_for(world):
    pool, read = BufferPool("cuda", 16), []
    lease = pool.get((16,), torch.uint8)
    world.enqueue(world.main, lambda: read.append(True))
    lease.release()
    pool.get((15,), torch.uint8)
    assert read == [True]


def test_two_shapes_in_turn_do_not_evict_each_other(world):
    pool = BufferPool("cuda", 24)
    for _ in range(5):
        for size in (8, 16):
            pool.get((size,), torch.uint8).release()
    assert (pool.stats().num_allocated, pool.stats().num_evicted) == (2, 0)


def test_a_full_pool_says_what_is_lent_and_goes_on_after_a_release():
    pool = BufferPool("cpu", 100)
    lease = pool.get((80,), torch.uint8)
    with pytest.raises(PoolExhausted, match="80 of at most 100"):
        pool.get((80,), torch.uint8)
    lease.release()
    pool.get((80,), torch.uint8).release()
    assert pool.stats().num_gets == 2


def test_a_getter_can_wait_for_another_threads_release():
    pool = BufferPool("cpu", 8)
    lease = pool.get((8,), torch.uint8)
    got = []
    waiting = threading.Thread(target=lambda: got.append(pool.get((8,), torch.uint8, timeout_s=60)))
    waiting.start()
    lease.release()
    waiting.join()
    assert got[0].tensor.shape == (8,)
    got[0].release()


def test_reserved_buffers_are_all_that_is_allocated():
    pool = BufferPool("cpu", 1000)
    pool.reserve((10,), torch.float32, 3)
    leases = [pool.get((10,), torch.float32) for _ in range(3)]
    assert pool.stats().num_allocated == 3
    for lease in leases:
        lease.release()


def test_a_reserve_that_does_not_fit_gives_back_what_it_took():
    pool = BufferPool("cpu", 80)
    with pytest.raises(PoolExhausted):
        pool.reserve((10,), torch.float32, 3)
    assert pool.stats().num_leased == 0


@pytest.mark.parametrize(
    ("shape", "error"),
    [((0, 3), InputError), ((1000,), TooLargeError), ((-1,), InputError)],
    ids=["0", "1000", "-1"],
)
def test_shapes_that_cannot_be_had_are_refused(shape, error):
    with pytest.raises(error):
        BufferPool("cpu", 100).get(shape, torch.uint8)


def test_a_bound_below_a_byte_is_refused():
    with pytest.raises(InputError, match="max_bytes is 0"):
        BufferPool("cpu", 0)


def test_a_released_lease_shows_nothing_and_is_not_released_again():
    pool = BufferPool("cpu", 100)
    lease = pool.get((4,), torch.uint8)
    lease.release()
    with pytest.raises(InputError, match="released"):
        _ = lease.tensor
    with pytest.raises(InputError, match="twice"):
        lease.release()
    assert pool.stats().num_leased == 0


def test_an_error_in_the_block_gives_the_buffer_back():
    pool = BufferPool("cpu", 8)
    with pytest.raises(ZeroDivisionError), pool.get((8,), torch.uint8):
        _ = 1 / 0
    with pool.get((8,), torch.uint8):
        pass


def test_a_forgotten_leases_buffer_is_never_lent_again():
    pool = BufferPool("cpu", 8)
    with pytest.warns(ResourceWarning, match="without release"):
        tensor = pool.get((8,), torch.uint8).tensor
        gc.collect()
    with pool.get((8,), torch.uint8) as lease:
        assert lease.tensor.data_ptr() != tensor.data_ptr()
    assert (pool.stats().num_forgotten, pool.stats().num_leased, pool.stats().held_bytes) == (1, 0, 8)


def test_after_close_nothing_is_lent_and_late_releases_free_their_buffer(world):
    pool, read = BufferPool("cuda", 100), []
    late = pool.get((8,), torch.uint8)
    with pool.get((8,), torch.uint8):
        world.enqueue(world.main, lambda: read.append("idle"))
    pool.close()
    pool.close()
    assert read == ["idle"]
    with pytest.raises(ClosedError, match="BufferPool"):
        pool.get((8,), torch.uint8)
    late.release()
    assert (pool.stats().held_bytes, pool.stats().num_leased) == (0, 0)


def test_close_wakes_who_waits_for_a_buffer():
    pool = BufferPool("cpu", 8)
    lease = pool.get((8,), torch.uint8)
    errors = []

    def wait():
        try:
            pool.get((8,), torch.uint8, timeout_s=60)
        except ClosedError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    pool.close()
    waiting.join()
    assert len(errors) == 1
    lease.release()


def test_use_in_a_forked_child_is_refused_and_a_release_there_changes_nothing(in_forked_child):
    pool = BufferPool("cpu", 100)
    lease = pool.get((8,), torch.uint8)
    assert in_forked_child(lambda: pool.get((8,), torch.uint8)) == "ForkedError"
    assert in_forked_child(lease.release) == ""
    lease.release()


def test_memory_is_flat_over_many_leases():
    pool = BufferPool("cpu", 1 << 20)
    for index in range(2000):
        with pool.get((64, 1 + index % 3), torch.float32):
            pass
    assert (pool.stats().num_allocated, pool.stats().held_bytes) == (3, 64 * 6 * 4)
