"""Captured graphs: what only a GPU shows. Needs torch 2.4 or newer with CUDA."""

import math
import os
import threading
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from dynotune.runtime import CaptureError, DynotuneRuntimeError, Engine, ForkedError  # noqa: E402
from dynotune.runtime.engine import engine as engine_module  # noqa: E402

from ..runtime.engine_parts import Anchored, DataDependent, Doubled, Residual, Tokens, seeded  # noqa: E402

pytestmark = pytest.mark.gpu

# About 25 ms on an H200: far longer than the host needs to enqueue what a test enqueues meanwhile.
LONG_CYCLES = 50_000_000
SHAPES = [(4, 3, 32, 32), (1, 3, 32, 32)]


def images(rows, seed=0):
    return torch.rand(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).cuda()


def error(found, wanted):
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def captured(engine):
    stats = engine.stats()
    assert [(bucket.mode, bucket.reason) for bucket in stats.buckets] == [("graph", "")] * len(
        stats.buckets
    ), stats
    return stats


class Slow(torch.nn.Module):
    """Reads its input late: whatever overwrites a static input too early is seen."""

    def forward(self, x):
        torch.cuda._sleep(LONG_CYCLES)
        return x * 2


class Waits(torch.nn.Module):
    """Waits for the GPU behind torch's back, which only the capture itself finds out."""

    def forward(self, x):
        torch.cuda.current_stream().synchronize()
        return torch.rand_like(x) * 0 + x * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_graph_answers_what_the_eager_model_does(dtype, channels_last):
    model = seeded(Residual()).cuda()
    with Engine(
        model, SHAPES, dtype=dtype, channels_last=channels_last, compile=False, pad="batch"
    ) as engine:
        stats = captured(engine)
        assert stats.num_folded == 2
        assert stats.weight_bytes > 0
        assert stats.io_bytes > 0
        assert stats.pool_bytes >= 2 << 20
        with torch.no_grad():
            for rows in (1, 4, 2, 3, 4, 1):
                assert error(engine(images(rows, rows)), model(images(rows, rows))) < stats.tolerance
        assert engine.stats().num_fallbacks == 0


def test_folding_is_judged_without_tf32_which_deep_networks_amplify():
    layers = [
        part for _ in range(40) for part in (torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.BatchNorm2d(32))
    ]
    model = seeded(torch.nn.Sequential(torch.nn.Conv2d(3, 32, 1), *layers)).cuda()
    before = torch.backends.cudnn.allow_tf32
    with Engine(model, (1, 3, 32, 32), compile=False, tolerance=math.inf) as engine:
        assert engine.stats().num_folded == 40
    assert torch.backends.cudnn.allow_tf32 == before


def test_of_several_ways_to_compile_the_fastest_is_kept():
    model = seeded(Residual()).cuda()
    ways = [True, "max-autotune-no-cudagraphs", False]
    with Engine(model, (4, 3, 32, 32), compile=ways) as engine, torch.no_grad():
        (bucket,) = captured(engine).buckets
        assert bucket.way.startswith("captured ")
        assert error(engine(images(4)), model(images(4))) < engine.stats().tolerance


def test_a_compiled_graph_answers_what_the_eager_model_does():
    model = seeded(Residual()).cuda()
    with Engine(model, SHAPES, dtype=torch.float16, channels_last=True) as engine, torch.no_grad():
        assert all(bucket.compiled for bucket in captured(engine).buckets)
        for rows in (1, 4):
            assert error(engine(images(rows, rows)), model(images(rows, rows))) < 1e-2


def test_the_faster_of_compiled_and_not_compiled_is_measured_and_kept():
    model = seeded(Residual()).cuda()
    with Engine(model, SHAPES, compile="measure") as engine, torch.no_grad():
        captured(engine)
        for rows in (1, 4):
            assert error(engine(images(rows, rows)), model(images(rows, rows))) < 5e-3


def test_nested_outputs_and_integer_inputs_are_captured():
    model = seeded(Tokens()).cuda()
    tokens, scale = torch.arange(12, device="cuda").view(2, 6), torch.full((2, 1, 1), 1.5, device="cuda")
    with Engine(model, (tokens, scale), compile=False) as engine, torch.no_grad():
        captured(engine)
        found, wanted = engine(tokens.flip(0), scale), model(tokens.flip(0), scale)
    assert error(found["hidden"], wanted["hidden"]) < 5e-3
    assert found["more"][1:] == ("constant", None)


def test_inputs_on_the_host_are_taken():
    with Engine(Doubled(), (1000,), device="cuda", compile=False) as engine:
        host = torch.rand(1000)
        for source in (host, host.numpy(), host.pin_memory()):
            found = engine(source)
            assert found.is_cuda
            assert torch.equal(found.cpu(), host * 2)


@contextmanager
def _unordered(self):
    yield


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_on_two_streams_do_not_see_each_others_inputs(monkeypatch, ordered):
    with Engine(Slow(), (1000,), device="cuda", compile=False) as engine:
        captured(engine)
        if not ordered:
            monkeypatch.setattr(engine_module.Engine, "_ordered", _unordered)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        ones, fives = torch.ones(1000, device="cuda"), torch.full((1000,), 5.0, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            of_ones = engine(ones)
        with torch.cuda.stream(second):
            of_fives = engine(fives)
        torch.cuda.synchronize()
        assert bool((of_fives == 10).all())
        # Broken on purpose, the second call's input is copied in before the first call's graph has read its
        # own.
        assert bool((of_ones == 2).all()) == ordered


def test_threads_on_streams_of_their_own_get_their_own_answers():
    model = seeded(Residual()).cuda()
    wrong = []
    engine = Engine(model, SHAPES, compile=False, pad="batch")
    batches = {
        seed: [images(1 + number % 4, 100 * seed + number) for number in range(30)] for seed in range(4)
    }
    with torch.no_grad():
        wanted = {seed: [model(batch) for batch in made] for seed, made in batches.items()}
    torch.cuda.synchronize()

    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            found = [engine(batch) for batch in batches[seed]]
            torch.cuda.current_stream().synchronize()
        wrong.extend(seed for f, w in zip(found, wanted[seed], strict=True) if error(f, w) > 5e-3)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.stats().num_calls == 120
    engine.close()
    assert wrong == []


def test_outputs_are_copies_and_lent_ones_are_overwritten():
    for borrow, kept in ((False, 2.0), (True, 6.0)):
        with Engine(Doubled(), (2,), device="cuda", compile=False, borrow=borrow) as engine:
            found = engine(torch.ones(2, device="cuda"))
            engine(torch.full((2,), 3.0, device="cuda"))
            assert found.tolist() == [kept, kept]


def test_calls_neither_wait_for_the_gpu_nor_allocate_on_it():
    model = seeded(Residual()).cuda()
    with Engine(model, SHAPES, compile=False, pad="batch", time_every=2) as engine:
        batches = [images(rows) for rows in (1, 2, 3, 4)]

        def calls(num):
            for number in range(num):
                engine(batches[number % 4])

        calls(20)
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()
        torch.cuda.set_sync_debug_mode("error")
        try:
            calls(400)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        after = torch.cuda.memory_stats()
        for name in (
            "num_device_alloc",
            "num_device_free",
            "reserved_bytes.all.current",
            "allocated_bytes.all.current",
        ):
            assert after[name] == before[name], name
        stats = engine.stats()
        assert stats.num_timed > 100
        assert 0 < stats.p50_s <= stats.p99_s < 1


def test_a_call_returns_before_the_gpu_has_done_it():
    with Engine(Slow(), (10,), device="cuda", compile=False) as engine:
        ones = torch.ones(10, device="cuda")
        engine(ones)
        torch.cuda.synchronize()
        engine(ones)
        done = torch.cuda.Event()
        done.record()
        assert not done.query()
        done.synchronize()


def test_tensors_that_a_model_keeps_by_shape_live_as_long_as_the_graph():
    lengths = (4, 60_000, 90_000)
    with Engine(Anchored().cuda(), [(2, length) for length in lengths], compile=False) as engine:
        captured(engine)
        # Whatever was freed is now handed out and overwritten.
        fillers = [torch.full((length,), -7.0, device="cuda") for length in lengths for _ in range(50)]
        for length in (*lengths, *reversed(lengths)):
            found = engine(torch.zeros(2, length, device="cuda"))
            assert torch.equal(found[0], torch.arange(length, device="cuda").float())
        del fillers


def test_a_model_that_decides_by_its_data_runs_eagerly_and_says_where_it_waits():
    with Engine(DataDependent(), (3,), device="cuda", compile=False) as engine:
        assert engine(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
        assert engine(-torch.ones(3, device="cuda")).tolist() == [-2, -2, -2]
        bucket = engine.stats().buckets[0]
        assert bucket.mode == "eager"
        assert "the host waits for the GPU: aten::" in bucket.reason
        assert engine.stats().num_fallbacks == 2


def test_a_capture_that_fails_leaves_torch_sound():
    before = torch.cuda.current_stream()
    with Engine(Waits(), (3,), device="cuda", compile=False) as engine:
        bucket = engine.stats().buckets[0]
        assert bucket.mode == "eager"
        assert "cannot be captured" in bucket.reason
        assert engine(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
    assert torch.cuda.current_stream() == before
    # All of these fail where the allocator or the generator still believes in the capture.
    torch.rand(3, device="cuda")
    torch.cuda.empty_cache()
    side = torch.cuda.Stream()
    used = torch.ones(1 << 20, device="cuda")
    used.record_stream(side)
    del used
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for _ in range(3):  # more failures, and a success after each
        Engine(Waits(), (3,), device="cuda", compile=False).close()
        with Engine(seeded(Residual()).cuda(), SHAPES, compile=False) as engine:
            captured(engine)


def test_a_python_error_while_capturing_leaves_torch_sound_too():
    class Moody(torch.nn.Module):
        def forward(self, x):
            if torch.cuda.is_current_stream_capturing():
                raise KeyError("planted")
            return x * 2

    with Engine(Moody(), (3,), device="cuda", compile=False) as engine:
        assert "KeyError: 'planted'" in engine.stats().buckets[0].reason
        assert engine(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]
    torch.cuda.empty_cache()
    torch.rand(1, device="cuda")


def test_running_out_of_memory_while_capturing_leaves_that_bucket_out_and_gives_its_memory_back():
    class Greedy(torch.nn.Module):
        def forward(self, x):
            if torch.cuda.is_current_stream_capturing() and x.shape[0] > 1:
                self.hoard = [torch.empty(1 << 40, dtype=torch.uint8, device="cuda")]
            return x * 2

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with Engine(Greedy(), [(1, 8), (4, 8)], device="cuda", compile=False) as engine:
        stats = captured(engine)
        assert [bucket.shapes for bucket in stats.buckets] == [((1, 8),)]
        assert "out of memory" in stats.left_out["4×8"]
        assert engine(torch.ones(4, 8, device="cuda")).sum() == 64
        assert engine.stats().num_fallbacks == 1
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (64 << 20)


def test_running_out_of_memory_before_capturing_leaves_that_bucket_out():
    class Wide(torch.nn.Module):
        def forward(self, x):
            return x.repeat(1, 1 << 28).sum(1)

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (4 << 30)) / total)
    try:
        with Engine(Wide(), [(1, 1), (64, 1)], device="cuda", compile=False) as engine:
            assert list(engine.stats().left_out) == ["64×1"]
            captured(engine)
            assert float(engine(torch.ones(1, 1, device="cuda"))) == 1 << 28
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_closing_frees_the_graphs_memory():
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        engine = Engine(Doubled(), [(1 << 24,), (1 << 23,)], device="cuda", compile=False)
        assert engine.stats().pool_bytes >= 64 << 20
        engine.close()
        del engine
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (64 << 20)


def test_buckets_share_one_pool():
    shapes = [(1 << 22,), (1 << 21,), (1 << 20,)]

    class Deep(torch.nn.Module):
        def forward(self, x):
            for _ in range(4):
                x = torch.cat([x, x])[: x.shape[0]].clone() + 1
            return x.mean()

    alone = []
    for shape in shapes:
        with Engine(Deep(), shape, device="cuda", compile=False) as engine:
            alone.append(engine.stats().pool_bytes)
    with Engine(Deep(), shapes, device="cuda", compile=False) as engine:
        captured(engine)
        assert engine.stats().pool_bytes < sum(alone)
        for shape in shapes:
            assert float(engine(torch.ones(shape, device="cuda"))) == 5


def test_other_threads_may_allocate_while_graphs_are_captured():
    stop, failures = threading.Event(), []

    def allocate():
        try:
            held = []
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    held.append(torch.ones(1 << 20, device="cuda") * 2)
                    if len(held) > 20:
                        held.clear()
        except RuntimeError as raised:
            failures.append(str(raised))

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        with Engine(seeded(Residual()).cuda(), SHAPES, compile=False) as engine:
            captured(engine)
    finally:
        stop.set()
        thread.join()
    assert failures == []


def test_a_call_inside_a_capture_is_refused_and_the_next_call_works():
    with Engine(Doubled(), (3,), device="cuda", compile=False) as engine:
        ones = torch.ones(3, device="cuda")
        with pytest.raises(CaptureError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros(1, device="cuda").add_(1)
            engine(ones)
        assert engine(ones).tolist() == [2, 2, 2]


def test_a_forked_child_is_refused_and_leaves_the_parents_graphs_alone():
    with Engine(Doubled(), (3,), device="cuda", compile=False) as engine:
        ones = torch.ones(3, device="cuda")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                engine(ones)
            except ForkedError:
                engine.close()
                code = 0
            except BaseException:
                code = 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert engine(ones).tolist() == [2, 2, 2]


def test_an_input_on_another_device_is_refused_and_the_engine_runs_on_its_own():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    model = seeded(Residual())
    with Engine(model, SHAPES, device="cuda:1", compile=False) as engine, torch.no_grad():
        captured(engine)
        with pytest.raises(DynotuneRuntimeError):
            engine(images(1))
        found = engine(images(1).to("cuda:1"))
        assert found.device == torch.device("cuda", 1)
        assert error(found, model.to("cuda:1")(images(1).to("cuda:1"))) < 5e-3
        assert torch.cuda.current_device() == 0
