"""Calls of a module with an arm and without, held against copies of it."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
import torch
from torch import nn

from dynotune import knobs
from dynotune.agent.tasks.results_within import ResultsWithin
from dynotune.measure.checks import guard, rounding
from dynotune.schema.events import ArmResults

from .fake_program import fake_program

LAYOUT = [knobs.parse("layout.channels_last=true")]


def calls(net, arm, num_calls=4):
    """What is noted of calls in which `arm` makes the call; a program that does not compile itself."""
    program = fake_program(torch, compiles_itself=False)
    within = ResultsWithin(program, num_calls, rounding(LAYOUT))
    for _ in range(num_calls):
        x = torch.randn(8, 6)
        output = within.compared(
            net, (x,), {}, lambda x=x: net(x), contextlib.nullcontext, lambda x=x: arm(net, x)
        )
        assert output.requires_grad
    return msgspec.convert({"arm": 0, **within.read()}, ArmResults)


def net_of(*parts):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), *parts, nn.Linear(32, 3))


def other_order(net, x):
    """Sums in another order."""
    first, last = net[0], net[2]
    hidden = torch.relu((x.flip(1) @ first.weight.flip(1).T) + first.bias)
    return last(hidden)


def test_sums_in_another_order_are_no_worse_than_the_baselines_against_a_copy_in_float64():
    found = guard.within(LAYOUT, calls(net_of(), other_order))
    assert (found.ok, found.reference, found.what) == (True, "float64", "outputs")


@pytest.mark.parametrize(
    "arm",
    [lambda net, x: net(x.bfloat16().float()), lambda net, x: net(torch.cat([x[:-1], x[:1]]))],
    ids=["bfloat16 where float32 was promised", "a row of another batch"],
)
def test_results_within_are_worse_when_rounding_does_not_explain_them(arm):
    found = guard.within(LAYOUT, calls(net_of(), arm))
    assert (found.ok, found.reference) == (False, "float64")


def test_a_module_that_draws_has_no_copies_and_is_judged_by_fixed_tolerances():
    event = calls(net_of(nn.Dropout(0.5)), lambda net, x: net(x))
    assert event.reference == []
    assert guard.within(LAYOUT, event).reference == ""


def test_a_module_that_does_not_compute_in_float64_has_no_reference():
    class Narrow(nn.Module):
        def forward(self, x):
            assert x.dtype == torch.float32
            return x

    event = calls(net_of(Narrow()), lambda net, x: net(x))
    assert event.reference == []
    assert msgspec.json.encode(event)
    assert guard.within(LAYOUT, event).ok
