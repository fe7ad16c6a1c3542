"""An engine that is told "auto": the fastest dtype that leaves results no worse. Candidates and times are
planted."""

import importlib.util
import itertools

import pytest
import torch
from torch import nn

from dynotune.runtime import Engine, InputError
from dynotune.runtime.engine import dtypes

from ..engine_parts import Residual, seeded

EXAMPLE = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Wrong(nn.Module):
    """Finite numbers of the right shape, and wrong by 1%."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) * 1.01


@pytest.fixture
def plant(monkeypatch):
    """`plant(name=(make, times))`: what is tried, and the seconds of its rounds; the model's own takes 1."""

    def plant(**planted):
        made = {}

        def candidates(model, own, device):
            def make(name):
                one = planted[name][0](model).eval()
                made[id(one)] = name
                return one, own

            return {name: lambda name=name: make(name) for name in planted}

        times = {name: itertools.cycle(each) for name, (_, each) in planted.items()}

        def seconds(engine, cases):
            name = made.get(id(engine._model))
            return next(times[name]) if name else 1.0

        monkeypatch.setattr(dtypes, "candidates", candidates)
        monkeypatch.setattr(dtypes, "seconds", seconds)

    return plant


def another(model):
    return nn.Sequential(model)


def told(**how):
    with Engine(seeded(Residual()), EXAMPLE, "auto", fold=False, **how) as engine:
        engine(EXAMPLE)
        return engine.stats()


def test_engine_chooses_a_dtype_and_says_so_when_it_is_proved_faster_and_no_worse(plant):
    plant(half=(another, [0.5, 0.52, 0.48]), third=(another, [0.4, 0.38]))
    stats = told()
    assert stats.dtype == "third"
    assert [one.is_chosen for one in stats.tried] == [False, False, True]
    assert stats.tried[2].speedup == pytest.approx(2.5, rel=0.1)
    assert "no worse" in stats.tried[2].reason


@pytest.mark.parametrize("times", [[0.99], [0.99, 1.2, 0.8], [0.8, 1.2, 0.7, 1.3]])
def test_engine_does_not_choose_a_dtype_when_it_is_faster_by_one_per_cent_or_by_noise(plant, times):
    plant(noise=(another, times))
    stats = told()
    assert stats.dtype == "float32"
    assert "not proved to be faster" in stats.tried[1].reason


def test_finite_wrong_numbers_are_refused_however_fast_and_within_a_stated_tolerance_are_not(plant):
    plant(wrong=(Wrong, [0.1]))
    stats = told()
    assert stats.dtype == "float32"
    assert stats.tried[1].error == pytest.approx(0.01, rel=0.01)
    assert stats.tried[1].speedup is None
    assert "worse" in stats.tried[1].reason
    assert told(tolerance=0.02).dtype == "wrong"


def test_a_candidate_that_fails_is_said_and_the_model_runs_as_it_is(plant):
    def fail(model):
        raise ImportError("No module named 'torchao'")

    plant(int8=(fail, [0.1]))
    stats = told()
    assert stats.dtype == "float32"
    assert stats.tried[1].reason == "ImportError: No module named 'torchao'"


class Float32Only(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x.float())


def test_without_a_run_in_float64_nothing_else_is_tried():
    with Engine(seeded(Float32Only()), [(2, 8)], "auto") as engine:
        (only,) = engine.stats().tried
    assert only.is_chosen
    assert "no float64" in only.reason


def test_real_half_precision_of_a_float32_model_is_worse_and_results_stay_the_models_own():
    model = seeded(Residual())
    with Engine(model, EXAMPLE, "auto") as engine, torch.no_grad():
        stats = engine.stats()
        assert torch.allclose(engine(EXAMPLE), model(EXAMPLE), rtol=1e-4, atol=1e-5)
    reasons = {one.name: one.reason for one in stats.tried}
    assert stats.dtype == "float32"
    assert "worse" in reasons["bfloat16"]
    assert "worse" in reasons["float16"]


@pytest.mark.parametrize(
    ("layer", "device", "suits"),
    [
        (nn.Linear(64, 64), "cuda", True),
        (nn.Linear(64, 57), "cuda", False),
        (nn.Linear(64, 57), "cpu", True),
        (nn.MultiheadAttention(64, 4).out_proj, "cpu", False),
        (nn.ReLU(), "cpu", False),
    ],
)
def test_layers_are_quantized_that_torchao_can_multiply_on_the_engines_device(layer, device, suits):
    assert dtypes._suits(layer, torch.device(device)) is suits


@pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="torchao is not installed")
def test_the_real_torchao_is_tried_and_judged(monkeypatch):
    monkeypatch.setattr(dtypes, "seconds", lambda engine, cases: 1.0)
    model = seeded(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    with Engine(model, [(32, 64)], "auto") as engine:
        tried = {one.name: one for one in engine.stats().tried}
    assert 1e-4 < tried["int8"].error < 0.1
    assert "worse" in tried["int8"].reason
    assert type(model[0].weight) is nn.Parameter


def test_another_word_than_auto_is_refused():
    with pytest.raises(InputError, match="dtype"):
        Engine(seeded(Residual()), EXAMPLE, "fastest")


def test_an_output_that_is_infinite_either_way_hides_no_error_of_another(plant, monkeypatch):
    plant(other=(another, [0.5]))
    # The model's own errors on both inputs, and the candidate's.
    errors = iter([float("inf"), 1e-6, float("inf"), 1.0])
    monkeypatch.setattr(dtypes, "outputs_error", lambda *_: next(errors))
    tried = told().tried
    assert [one.is_chosen for one in tried] == [True, False]
    assert "worse" in tried[1].reason
