"""The guard's verdict on small real trainings: what is rounding, what is broken, what the program does to
itself."""

from __future__ import annotations

import msgspec
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dynotune import knobs
from dynotune.agent.tasks.check_results import CheckResults
from dynotune.measure.checks.guard import NUM_VALUES, Own, Reading, compared
from dynotune.schema.facts import Unknown

from ...agent.tasks.fake_program import fake_program

BF16 = [knobs.parse("precision.autocast=bf16")]
# Of effect numerics, and allowed no more than another order of sums.
ORDER = [knobs.parse("determinism.algorithms=true")]


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    scaler = torch.amp.grad_scaler.GradScaler
    monkeypatch.setattr(scaler, "scale", scaler.scale)


class Attention(nn.Module):
    """Two layers of a transformer over sequences of numbers, with dropout."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.first, self.last = nn.Linear(1, 32), nn.Linear(32, 10)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.last(self.layers(self.first(x.flatten(1).unsqueeze(-1))).mean(1))


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 10)), 0.1


def convolutions():
    parts = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *parts, nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
    ), 0.1


def attention():
    return Attention(), 0.05


PROGRAMS = [convolutions, *(pytest.param(each, marks=pytest.mark.long) for each in (perceptron, attention))]


def run(program, *, lr_times=1.0, autocast=False, broken=False, other_draws=(), seed=0) -> list[Reading]:
    """Train it under one seed, and what is noted of it."""
    watched = fake_program(torch, optimizers=[None])
    found, errors = watched.events, watched.errors
    results = CheckResults(watched, {"num_values": NUM_VALUES, "other_draws": list(other_draws)})
    # Over the original, not over the one before.
    before = torch.autograd.backward
    results.torch_is_here()
    try:
        torch.manual_seed(seed)
        net, lr = program()
        call = results.around_calls(None)
        optimizer = torch.optim.SGD(net.parameters(), lr * lr_times, momentum=0.9)
        data = torch.Generator().manual_seed(9)
        direction = torch.randn(48, 10, generator=data)
        for _ in range(NUM_VALUES):
            x = torch.randn(16, 3, 4, 4, generator=data)
            target = (x.flatten(1) @ direction).argmax(1)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = call(type(net).__call__, net, (x,), {}).float()
            loss = F.cross_entropy(y * 1.5 if broken else y, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        torch.autograd.backward = before
    assert not errors
    fields = {"losses" if name == "values" else name: value for name, value in found[0].items()}
    return [msgspec.convert(fields, Reading)]


def own(program) -> Own:
    first = run(program)
    draws = first[0].draws
    return Own(first=first, again=run(program), redrawn=run(program, other_draws=draws) if draws else None)


@pytest.mark.parametrize("program", PROGRAMS)
def test_autocast_is_rounding_and_a_learning_rate_that_is_three_times_as_high_is_not(program):
    known = own(program)
    assert bool(known.redrawn) is (program is attention)
    found = compared(BF16, known, run(program, autocast=True))
    assert found.ok, found.reason
    assert found.difference > 0
    for changed in ({"lr_times": 3.0}, {"broken": True}, {"lr_times": 3.0, "autocast": True}):
        assert not compared(BF16, known, run(program, **changed)).ok, changed


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_that_is_repeated_differs_in_nothing(program):
    known = own(program)
    found = compared(ORDER, known, run(program))
    assert (found.ok, found.difference, found.own) == (True, 0.0, 0.0)


def test_another_seed_is_not_mistaken_for_the_same_results():
    assert not compared(ORDER, own(perceptron), run(perceptron, seed=1)).ok


def test_a_program_whose_losses_vary_from_run_to_run_is_told_apart():
    drawn = iter([1.0, 1.3, 0.8])

    def vary(readings):
        (reading,) = readings
        times = next(drawn)
        return [msgspec.structs.replace(reading, losses=[loss * times for loss in reading.losses])]

    known = Own(first=vary(run(perceptron)), again=vary(run(perceptron)))
    found = compared(BF16, known, vary(run(perceptron, autocast=True)))
    assert isinstance(found, Unknown)
    assert "runs of the program itself" in found.reason
