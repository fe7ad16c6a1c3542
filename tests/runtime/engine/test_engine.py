"""The engine: what it answers, what it refuses, and what it says of itself."""

import copy
import logging
import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynotune.runtime import (
    CaptureError,
    ClosedError,
    DynotuneRuntimeError,
    Engine,
    InputError,
    NumericsError,
)

from ..engine_parts import (
    Anchored,
    DataDependent,
    Doubled,
    EagerCapturer,
    Mean,
    Residual,
    Tokens,
    install_capturer,
    seeded,
)

SHAPES = [(4, 3, 8, 8), (1, 3, 8, 8)]


@pytest.fixture(params=["eager", "captured"])
def way(request, monkeypatch):
    """The engine as it is on the CPU, and with its static inputs and outputs."""
    if request.param == "captured":
        install_capturer(monkeypatch, EagerCapturer())
    return request.param


def images(rows, seed=0):
    return torch.rand(rows, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def close_to(found, wanted, tolerance=1e-5):
    return torch.allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_a_bucket_answers_what_the_eager_model_does(way):
    model = seeded(Residual())
    with Engine(model, SHAPES) as engine, torch.no_grad():
        for rows in (1, 4, 1):
            assert close_to(engine(images(rows, seed=rows)), model(images(rows, seed=rows)))
        stats = engine.stats()
    assert (stats.num_calls, stats.num_hits, stats.num_fallbacks) == (3, 3, 0)
    assert [bucket.num_hits for bucket in stats.buckets] == [1, 2]
    assert {bucket.mode for bucket in stats.buckets} == {"graph" if way == "captured" else "eager"}
    assert 0 < stats.p50_s <= stats.p99_s
    assert stats.num_timed == 3


def test_nested_outputs_and_integer_inputs_come_back_as_the_model_gives_them(way):
    model = seeded(Tokens())
    tokens, scale = torch.arange(12).view(2, 6), torch.full((2, 1, 1), 1.5)
    with Engine(model, (tokens, scale)) as engine, torch.no_grad():
        found, wanted = engine(tokens.flip(0), scale), model(tokens.flip(0), scale)
    assert close_to(found["hidden"], wanted["hidden"])
    assert torch.equal(found["more"][0], wanted["more"][0])
    assert found["more"][1:] == ("constant", None)


def test_numpy_arrays_are_taken_and_other_floating_dtypes_converted(way):
    model = seeded(Residual())
    with Engine(model, SHAPES) as engine, torch.no_grad():
        assert close_to(engine(images(1).double().numpy()), model(images(1)))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(1, 4), min_size=1, max_size=6), seed=st.integers(0, 99), captured=st.booleans()
)
def test_a_padded_batch_answers_as_its_rows_alone_whatever_was_there_before(rows, seed, captured):
    model = seeded(Residual())
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        if captured:
            install_capturer(patch, EagerCapturer())
        with Engine(model, [(4, 3, 8, 8), (2, 3, 8, 8)], pad="batch") as engine:
            for number, count in enumerate(rows):
                batch = images(count, seed=seed + number)
                found = engine(batch)
                assert found.shape == (count, 4)
                assert close_to(found, model(batch))
            assert engine.stats().num_padded == sum(count in (1, 3) for count in rows)
            assert engine.stats().num_fallbacks == 0


def test_filled_dimensions_hold_the_fill_value_also_after_a_larger_input(monkeypatch):
    capturer = install_capturer(monkeypatch, EagerCapturer())
    with Engine(Doubled(), (2, 3, 4), pad={1: -1.0, 2: 5.0}) as engine:
        engine(torch.ones(2, 3, 4))
        found = engine(torch.zeros(2, 2, 3))
    expected = torch.zeros(2, 3, 4)
    expected[:, 2:] = -2.0
    expected[:, :, 3:] = 10.0
    assert torch.equal(found, expected)
    assert capturer.num_captures == 1


def test_padding_a_model_whose_rows_depend_on_each_other_is_refused():
    with pytest.raises(NumericsError, match="differ from the eager model's"):
        Engine(Mean(), (4, 8), pad="batch")
    with Engine(Mean(), (4, 8)) as engine:
        assert engine.stats().buckets[0].error == 0


def test_without_padding_a_smaller_batch_runs_eagerly_is_counted_and_logged_once(way, caplog):
    model = seeded(Residual())
    with (
        Engine(model, SHAPES) as engine,
        torch.no_grad(),
        caplog.at_level(logging.WARNING, "dynotune.runtime"),
    ):
        for _ in range(3):
            assert close_to(engine(images(2)), model(images(2)))
        stats = engine.stats()
    assert stats.fallbacks == {"no bucket has this shape": 3}
    assert stats.num_hits == 0
    assert [record.message for record in caplog.records] == [
        "runs eagerly for 2×3×8×8: no bucket has this shape"
    ]


def test_an_endless_variety_of_shapes_grows_neither_memory_nor_the_log(caplog):
    with Engine(Doubled(), (1, 2), pad="batch") as engine:
        for length in range(3, 1503):
            engine(torch.ones(1, length))
        assert len(engine._table._found) <= 1024
        assert engine.stats().num_fallbacks == 1500
    assert len(caplog.records) <= 20


def test_outputs_are_copies_and_lent_ones_are_overwritten(monkeypatch):
    install_capturer(monkeypatch, EagerCapturer())
    first, second = torch.ones(2), torch.full((2,), 3.0)
    for borrow, kept in ((False, 2.0), (True, 6.0)):
        with Engine(Doubled(), (2,), borrow=borrow) as engine:
            found = engine(first)
            engine(second)
            assert found.tolist() == [kept, kept]


def test_lent_outputs_belong_to_one_thread_for_as_long_as_it_lives(monkeypatch):
    install_capturer(monkeypatch, EagerCapturer())
    errors = []

    def call():
        try:
            engine(torch.ones(2))
        except InputError as error:
            errors.append(error.message)

    with Engine(Doubled(), (2,), borrow=True) as engine:
        first = threading.Thread(target=call)
        first.start()
        first.join()
        engine(torch.ones(2))  # the first thread is gone
        second = threading.Thread(target=call)
        second.start()
        second.join()
    assert len(errors) == 1
    assert "lends its outputs" in errors[0]


class _TellingLock:
    """Says when a second thread wants it; and may let it in, which breaks the rule."""

    def __init__(self, holds):
        self._lock = threading.Lock() if holds else None
        self._entered = False
        self.wanted = threading.Event()

    def __enter__(self):
        if self._entered:
            self.wanted.set()
        self._entered = True
        if self._lock is not None:
            self._lock.acquire()

    def __exit__(self, *_):
        if self._lock is not None:
            self._lock.release()


@pytest.mark.parametrize("holds", [True, False])
def test_a_thread_that_comes_while_another_replays_cannot_change_its_inputs(monkeypatch, holds):
    replaying, others_done = threading.Event(), threading.Event()

    def before_replay():
        if threading.current_thread() is first and not replaying.is_set():
            replaying.set()
            lock.wanted.wait()
            if not holds:
                others_done.wait()

    def first_call():
        found.append(engine(torch.ones(2)))

    found = []
    first = threading.Thread(target=first_call)
    install_capturer(monkeypatch, EagerCapturer(before_replay))
    engine = Engine(Doubled(), (2,))
    lock = engine._lock = _TellingLock(holds)
    first.start()
    replaying.wait()
    engine(torch.full((2,), 5.0))
    others_done.set()
    first.join()
    # Without the lock the first thread gets the answer to the second one's question.
    assert found[0].tolist() == ([2.0, 2.0] if holds else [10.0, 10.0])


def test_many_threads_get_each_their_own_answers(way):
    model = seeded(Residual())
    wrong = []

    def work(seed):
        with torch.no_grad():
            for number in range(20):
                batch = images(1 + (seed + number) % 4, seed=100 * seed + number)
                if not close_to(engine(batch), model(batch)):
                    wrong.append(seed)

    with Engine(model, SHAPES, pad="batch") as engine:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.stats().num_calls == 80
    assert wrong == []


def test_a_model_that_decides_by_its_data_runs_uncaptured_and_says_where_it_waits(monkeypatch, caplog):
    capturer = install_capturer(monkeypatch, EagerCapturer())
    with Engine(DataDependent(), (3,)) as engine:
        assert engine(torch.ones(3)).tolist() == [2, 2, 2]
        assert engine(-torch.ones(3)).tolist() == [-2, -2, -2]
        stats = engine.stats()
    assert capturer.num_captures == 0
    assert stats.buckets[0].mode == "eager"
    assert "the host waits for the GPU: aten::" in stats.buckets[0].reason
    assert "engine_parts.py:" in stats.buckets[0].reason
    assert stats.fallbacks == {stats.buckets[0].reason: 2}
    assert stats.buckets[0].reason in caplog.text


def test_bucket_runs_without_a_graph_and_says_why_when_a_capture_fails(monkeypatch):
    def fails(inputs):
        raise CaptureError("The model cannot be captured: planted")

    install_capturer(monkeypatch, EagerCapturer(fails=fails))
    with Engine(Doubled(), (2,)) as engine:
        assert engine(torch.ones(2)).tolist() == [2, 2]
        assert engine.stats().buckets[0].reason == "captured eager: The model cannot be captured: planted"


def test_a_graph_that_answers_wrongly_is_not_used(monkeypatch):
    capturer = install_capturer(monkeypatch, EagerCapturer(stale=True))
    with Engine(Doubled(), (2,)) as engine:
        assert engine(torch.full((2,), 4.0)).tolist() == [8, 8]
        assert "outputs differ from the eager model's" in engine.stats().buckets[0].reason
    assert not capturer.graphs[0].is_alive


def test_an_output_that_a_replay_cannot_make_anew_is_not_captured(monkeypatch):
    class Opaque(nn.Module):
        def forward(self, x):
            return x, slice(1)

    capturer = install_capturer(monkeypatch, EagerCapturer())
    with Engine(Opaque(), (2,)) as engine:
        assert "an output is a slice" in engine.stats().buckets[0].reason
        assert engine(torch.ones(2))[1] == slice(1)
    assert not capturer.graphs[0].is_alive


def test_buckets_that_do_not_fit_into_memory_are_left_out_and_their_calls_still_answered(monkeypatch, caplog):
    def fails(inputs):
        if inputs[0].shape[0] > 2:
            raise torch.cuda.OutOfMemoryError("planted\nmore")

    install_capturer(monkeypatch, EagerCapturer(fails=fails))
    with Engine(Doubled(), [(1, 2), (2, 2), (8, 2)]) as engine:
        stats = engine.stats()
        assert [bucket.shapes for bucket in stats.buckets] == [((2, 2),), ((1, 2),)]
        assert stats.left_out == {"8×2": "out of memory: planted"}
        assert "bucket 8×2 is left out" in caplog.text
        assert engine(torch.ones(8, 2)).sum() == 32


def test_no_bucket_at_all_is_an_out_of_memory_error(monkeypatch):
    class Huge(nn.Module):
        def forward(self, x):
            raise torch.cuda.OutOfMemoryError("planted")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="Not one bucket"):
        Engine(Huge(), (1, 2))


def test_the_faster_of_compiled_and_not_compiled_is_kept(monkeypatch):
    for seconds, compiled in (((2.0, 1.0), False), ((1.0, 2.0), True)):
        capturer = install_capturer(monkeypatch, EagerCapturer(seconds=seconds))
        monkeypatch.setattr(torch, "compile", lambda model, **arguments: model)
        with Engine(Doubled(), (2,), compile="measure") as engine:
            assert engine.stats().buckets[0].compiled is compiled
            assert engine.stats().buckets[0].reason == ""
            assert [graph.is_alive for graph in capturer.graphs] == [compiled, not compiled]


@pytest.mark.parametrize("fastest", range(3))
def test_of_several_ways_to_compile_the_fastest_is_kept_and_named(monkeypatch, fastest):
    seconds = tuple(1.0 if index == fastest else 2.0 for index in range(3))
    capturer = install_capturer(monkeypatch, EagerCapturer(seconds=seconds))
    seen = []
    monkeypatch.setattr(torch, "compile", lambda model, **arguments: seen.append(arguments) or model)
    with Engine(Doubled(), (2,), compile=[True, "max-autotune-no-cudagraphs", False]) as engine:
        ways = ["captured compiled", "captured compiled (max-autotune-no-cudagraphs)", "captured eager"]
        assert engine.stats().buckets[0].way == ways[fastest]
        assert engine.stats().buckets[0].reason == ""
    assert seen == [{"dynamic": False}, {"dynamic": False, "mode": "max-autotune-no-cudagraphs"}]
    assert len(capturer.graphs) == 3


def test_a_list_of_compiled_ways_stands_on_the_eager_model_where_none_works(monkeypatch):
    def fails(model, **arguments):
        def call(*inputs):
            raise ValueError("planted")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    with Engine(Doubled(), (2,), compile=[True, "max-autotune-no-cudagraphs"]) as engine:
        assert engine(torch.ones(2)).tolist() == [2, 2]
        built = engine.stats().buckets[0]
    assert (built.mode, built.way) == ("eager", "eager")
    assert built.reason == (
        "compiled: ValueError: planted; compiled (max-autotune-no-cudagraphs): ValueError: planted"
    )


def test_every_bucket_is_compiled_once_however_many_there_are():
    compiled = []

    def backend(graph, inputs):
        compiled.append(tuple(inputs[0].shape))
        return graph.forward

    shapes = [(rows, 2) for rows in range(1, 13)]
    with Engine(Doubled(), shapes, compile={"backend": backend}) as engine:
        for shape in shapes:
            assert engine(torch.ones(shape)).sum() == 4 * shape[0]
        assert {bucket.mode for bucket in engine.stats().buckets} == {"compiled"}
        engine(torch.ones(20, 2))  # no bucket: eager, not compiled
    assert sorted(compiled) == shapes


def test_bucket_runs_uncompiled_and_says_why_when_compiling_fails():
    def backend(graph, inputs):
        raise ValueError("planted")

    with Engine(Doubled(), (2,), compile={"backend": backend}) as engine:
        assert engine(torch.ones(2)).tolist() == [2, 2]
        stats = engine.stats()
    assert stats.buckets[0].mode == "eager"
    assert stats.buckets[0].reason.startswith("compiled: BackendCompilerFailed")


@pytest.mark.parametrize(
    "mode", ["reduce-overhead", "max-autotune", "no such mode", [], [True, "max-autotune"]]
)
def test_compile_modes_with_graphs_of_their_own_and_unknown_ones_are_refused(mode):
    with pytest.raises(InputError):
        Engine(Doubled(), (2,), compile=mode)


def test_the_users_model_is_left_as_it_was():
    twin = seeded(Residual())
    model = copy.deepcopy(twin).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with Engine(model, SHAPES, dtype=torch.bfloat16, channels_last=True) as engine, torch.no_grad():
        assert engine.stats().num_folded == 2
        assert engine(images(1)).dtype == torch.bfloat16
        assert close_to(engine(images(1)).float(), twin(images(1)), 0.1)
    assert model.training
    assert isinstance(model.stem[1], nn.BatchNorm2d)
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == {
        name: tensor.dtype for name, tensor in before.items()
    }
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_dtype_that_is_too_narrow_is_refused_unless_the_error_is_accepted():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((1,), 300.0))

        def forward(self, x):
            return (x + 1) * self.weight * self.weight  # beyond 65504

    with pytest.raises(NumericsError, match="In float16 the outputs for the bucket 2×2 differ"):
        Engine(Wide(), (2, 2), dtype=torch.float16)
    with Engine(Wide(), (2, 2), dtype=torch.float16, tolerance=math.inf) as engine:
        assert engine.stats().buckets[0].error == math.inf
    with Engine(Wide(), (2, 2), dtype=torch.bfloat16) as engine:
        assert 0 < engine.stats().buckets[0].error <= engine.stats().tolerance


def test_an_error_measure_of_ones_own_decides():
    with pytest.raises(NumericsError):
        Engine(Doubled(), (2,), error=lambda wanted, found: 1.0)
    with Engine(Doubled(), (2,), tolerance=2.0, error=lambda wanted, found: 1.0) as engine:
        assert engine.stats().buckets[0].error == 1.0


def test_nan_weights_are_refused_by_name():
    model = seeded(Residual())
    with torch.no_grad():
        model.last[0].weight[0, 0] = math.nan
    with pytest.raises(NumericsError, match=r"NaN .* last\.0\.weight"):
        Engine(model, SHAPES)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((torch.zeros(1, 3, 8, 8, dtype=torch.uint8),), "uint8, where the engine was built for float32"),
        ((torch.zeros(0, 3, 8, 8),), "empty"),
        ((torch.zeros(1, 3, 8, 8), torch.zeros(1)), "2 inputs were given"),
        ((), "0 inputs were given"),
        (("an image",), "is a str"),
        ((np.array([["a"]]),), "cannot become a tensor"),
        ((torch.zeros(1, 3, 8, 8, device="meta"),), "on meta"),
    ],
)
def test_inputs_that_cannot_be_used_are_refused_and_the_next_call_works(way, inputs, says):
    model = seeded(Residual())
    with Engine(model, SHAPES) as engine, torch.no_grad():
        with pytest.raises(InputError, match=says):
            engine(*inputs)
        assert close_to(engine(images(1)), model(images(1)))


def test_a_model_that_raises_for_one_shape_leaves_the_engine_usable(way):
    model = seeded(Residual())
    with Engine(model, SHAPES) as engine, torch.no_grad():
        with pytest.raises(RuntimeError):
            engine(torch.rand(1, 5, 8, 8))
        assert close_to(engine(images(1)), model(images(1)))
        assert engine.stats().num_calls == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": lambda x: x},
        {"shapes": []},
        {"shapes": [(1, 3, 8, 8), (1, 3, 8, 8)]},
        {"shapes": (0, 3)},
        {"shapes": "large"},
        {"shapes": [torch.zeros(1, 0)]},
        {"shapes": [((1, 2), torch.zeros(1))]},
        {"shapes": [(1, 3, 8, 8), ((1, 3, 8, 8), (1, 2))]},
        {"shapes": (1, 7, 8, 8)},
        {"dtype": torch.int8},
        {"tolerance": -1},
        {"tolerance": math.nan},
        {"pad": "height"},
        {"pad": {-1: 0}},
        {"device": "cuda:99"},
        {"time_every": 0},
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments):
    with pytest.raises(DynotuneRuntimeError):
        Engine(**{"model": seeded(Residual()), "shapes": SHAPES, **arguments})


def test_building_under_autocast_is_refused_and_calling_under_it_changes_nothing():
    model = seeded(Residual())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InputError, match="autocast"):
        Engine(model, SHAPES)
    with Engine(model, SHAPES) as engine, torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            found = engine(images(1))
        assert found.dtype == torch.float32
        assert close_to(found, model(images(1)))


def test_a_closed_engine_refuses_calls_and_still_tells_what_it_did(way):
    engine = Engine(seeded(Residual()), SHAPES)
    engine(images(1))
    engine.close()
    engine.close()
    with pytest.raises(ClosedError):
        engine(images(1))
    with pytest.raises(ClosedError), engine:
        pass
    assert engine.stats().num_calls == 1
    assert len(engine.stats().buckets) == 2


def test_an_engine_refuses_calls_in_a_forked_child_and_closes_there_without_touching_graphs(
    monkeypatch, in_forked_child
):
    capturer = install_capturer(monkeypatch, EagerCapturer())

    def close():
        engine.close()
        assert capturer.graphs[0].is_alive

    with Engine(Doubled(), (2,)) as engine:
        assert in_forked_child(lambda: engine(torch.ones(2))) == "ForkedError"
        assert in_forked_child(close) == ""
        assert engine(torch.ones(2)).tolist() == [2, 2]


def test_engine_is_right_when_buckets_of_a_model_that_keeps_tensors_by_shape_take_turns(way):
    with Engine(Anchored(), [(2, 4), (2, 6)]) as engine:
        for length in (4, 6, 4, 6):
            assert engine(torch.zeros(2, length))[0].tolist() == list(range(length))


def test_gradients_are_not_recorded_whatever_the_input_asks_for(way):
    with Engine(seeded(Residual()), SHAPES) as engine:
        assert not engine(images(1).requires_grad_()).requires_grad


def test_engine_captures_work_around_the_model_when_it_has_a_graph_for_the_shapes(monkeypatch):
    capturer, apart = install_capturer(monkeypatch, EagerCapturer()), EagerCapturer()
    engine, x = Engine(seeded(Residual()), SHAPES), images(4)

    def work(forward, inputs):
        return forward(inputs * 2)

    graph = engine.captured_apart(work, (x,), capturer=apart)
    x.copy_(images(4, seed=1))
    graph.replay()
    assert close_to(graph.outputs, engine(images(4, seed=1) * 2))
    assert (capturer.num_captures, apart.num_captures) == (len(SHAPES), 1)
    assert engine.captured_apart(work, (images(3),), capturer=apart) is None
    engine.close()
    with pytest.raises(ClosedError):
        engine.captured_apart(work, (x,), capturer=apart)


def test_engine_captures_nothing_around_the_model_when_it_runs_without_a_graph():
    engine = Engine(seeded(Residual()), SHAPES)
    assert (
        engine.captured_apart(lambda forward, x: forward(x), (images(4),), capturer=EagerCapturer()) is None
    )
