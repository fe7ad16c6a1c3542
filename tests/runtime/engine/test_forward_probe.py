"""What a forward pass is seen to do, and which BatchNorms are folded on the strength of it."""

import copy
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynotune.runtime import Engine
from dynotune.runtime.engine.forward_probe import observe
from dynotune.runtime.engine.graphs import kept_tensors
from dynotune.runtime.engine.prepare import fold

from ..engine_parts import Anchored, Residual, Tokens, seeded


class Calls(nn.Module):
    """Runs a function of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if bool((x > 0).any()) else -x,
        lambda x: x.nonzero(),
        lambda x: x[x > 0.5],
        lambda x: torch.masked_select(x, x > 0.5),
        torch.unique,
        lambda x: torch.equal(x, x),
        lambda x: x.repeat_interleave(torch.tensor([1, 2]), 0),
    ],
)
def test_forward_probe_sees_a_wait_with_its_place_when_data_is_needed_on_the_host(function):
    waits = observe(Calls(function), (torch.rand(2, 3),)).waits
    assert waits
    assert "test_forward_probe.py:" in waits[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(-1).topk(2),
        lambda x: x[:, torch.arange(2)],
        lambda x: x[torch.tensor([1])] + x.new_zeros(1),
        lambda x: torch.where(x > 0.5, x, 0.0),
        lambda x: x.masked_fill(x > 0.5, 0.0),
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x.to(torch.float16).float().cumsum(0).sort().values,
    ],
)
def test_forward_probe_sees_no_wait_when_data_stays_on_the_device(function):
    assert observe(Calls(function), (torch.rand(2, 3),)).waits == []


def test_convolutions_whose_output_only_one_norm_reads_are_paired():
    assert observe(seeded(Residual()), (torch.rand(1, 3, 8, 8),)).pairs == [
        ("stem.0", "stem.1"),
        ("last.0", "last.1"),
    ]
    assert observe(seeded(Tokens()), (torch.zeros(1, 4, dtype=torch.int64), torch.ones(1))).pairs == []


class Shared(nn.Module):
    """One convolution before two norms, or two convolutions before one, or both alike."""

    def __init__(self, convolutions, norms):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(3, 3, 1) for _ in range(convolutions)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(3) for _ in range(norms)])

    def forward(self, x):
        for index in range(2):
            convolution = self.convolutions[index % len(self.convolutions)]
            x = self.norms[index % len(self.norms)](convolution(x))
        return x


@pytest.mark.parametrize(
    ("convolutions", "norms", "pairs"),
    [
        (1, 2, []),
        (2, 1, []),
        (1, 1, [("convolutions.0", "norms.0")]),
        (2, 2, [("convolutions.0", "norms.0"), ("convolutions.1", "norms.1")]),
    ],
)
def test_shared_modules_are_paired_only_where_they_always_meet(convolutions, norms, pairs):
    model = seeded(Shared(convolutions, norms))
    x = torch.rand(2, 3, 4, 4)
    assert observe(model, (x,)).pairs == pairs
    with Engine(model, (2, 3, 4, 4)) as engine, torch.no_grad():
        assert torch.allclose(engine(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: (lambda hidden: (self.norm(hidden), hidden))(self.conv(x)),
        lambda self, x: (lambda hidden: self.norm(hidden) + hidden.view(hidden.shape))(self.conv(x)),
        lambda self, x: (lambda hidden: self.norm(hidden) + self.norm(hidden))(self.conv(x)),
        lambda self, x: self.norm(self.conv(x).relu_()),
        lambda self, x: self.norm(self.conv(x)) + self.conv(x),
        lambda self, x: self.norm(self.conv(x)) + self.norm(x),
    ],
)
def test_a_convolution_whose_output_is_read_elsewhere_is_not_paired(forward):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    Net.forward = forward
    assert observe(seeded(Net()), (torch.rand(1, 3, 4, 4),)).pairs == []


def test_modules_with_hooks_or_parametrizations_are_not_paired():
    hooked = seeded(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    hooked[0].register_forward_hook(lambda module, inputs, output: output * 2)
    normed = seeded(
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), nn.BatchNorm2d(3))
    )
    for model in (hooked, normed):
        assert observe(model, (torch.rand(1, 3, 4, 4),)).pairs == []


def test_hooks_are_gone_after_a_pass_that_raised():
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    with pytest.raises(RuntimeError):
        observe(model, (torch.rand(1, 7, 4, 4),))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@settings(max_examples=40, deadline=None)
@given(
    dims=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    affine=st.booleans(),
    padding=st.sampled_from([0, 1]),
    seed=st.integers(0, 999),
)
def test_a_folded_convolution_equals_the_pair(dims, groups, bias, affine, padding, seed):
    torch.manual_seed(seed)
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1](
        4, 6, 3, padding=padding, groups=groups, bias=bias
    )
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 1](6, affine=affine)
    model = nn.Sequential(convolution, norm)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 3)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    model.double().eval()
    x = torch.randn(2, 4, *[5] * dims, dtype=torch.float64)
    wanted = model(x)
    folding = fold(model, [("0", "1")])
    assert isinstance(model[1], nn.Identity)
    assert torch.allclose(model(x), wanted, rtol=1e-12, atol=1e-12)
    folding.undo()
    assert model[1] is norm
    assert torch.equal(model(x), wanted)


def test_a_norm_of_the_batchs_own_statistics_or_beyond_the_dtype_is_left_alone():
    without = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)).eval()
    huge = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, eps=0)).half().eval()
    huge[1].running_var.fill_(1e-7)
    huge[1].weight.data.fill_(6e4)
    for model in (without, huge):
        assert fold(model, [("0", "1")]).names == []
        assert isinstance(model[1], nn.BatchNorm2d)


def test_the_layout_of_folded_weights_survives():
    model = seeded(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))).to(memory_format=torch.channels_last)
    fold(model, [("0", "1")])
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_folding_that_is_not_exact_enough_is_undone(monkeypatch, caplog):
    from dynotune.runtime.engine import prepare as module

    right = module._product
    monkeypatch.setattr(
        module, "_product", lambda *arguments: [1.01 * tensor for tensor in right(*arguments)]
    )
    model = seeded(Residual())
    x = torch.rand(1, 3, 8, 8)
    with caplog.at_level(logging.WARNING), Engine(model, (1, 3, 8, 8)) as engine, torch.no_grad():
        assert engine.stats().num_folded == 0
        assert torch.equal(engine(x), model(x))
    assert "BatchNorm is not folded" in caplog.text


def test_a_model_that_looks_into_its_norm_is_not_folded():
    class Looks(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * self[1].weight.sum()

    model = seeded(Looks(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)))
    x = torch.rand(1, 3, 4, 4)
    with Engine(copy.deepcopy(model), (1, 3, 4, 4)) as engine, torch.no_grad():
        assert engine.stats().num_folded == 0
        assert torch.equal(engine(x), model(x))
    with Engine(model, (1, 3, 4, 4), fold=False) as engine:
        assert engine.stats().num_folded == 0


def test_tensors_that_modules_keep_are_found_in_containers_too():
    model = Anchored()
    model(torch.zeros(1, 5))
    model.nested = {"a": [(torch.full((1,), math.pi),)]}
    values = [tensor.flatten()[-1].item() for tensor in kept_tensors(model)]
    assert values == [1.0, 4.0, pytest.approx(math.pi)]
