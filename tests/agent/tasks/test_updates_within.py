"""Updates of parameters with an arm and without, held against copies in float64."""

from __future__ import annotations

import copy

import msgspec
import pytest
import torch
from torch import nn

from dynotune import knobs
from dynotune.agent.sites.optimizer import OptimizerSite
from dynotune.agent.tasks.updates_within import UpdatesWithin, _picked
from dynotune.measure.checks import guard
from dynotune.schema.events import ArmResults

from .fake_program import fake_program

FUSED = [knobs.parse("optimizer.fused=true")]
NUM_UPDATES = 3
MADE = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(7)), nn.Linear(6, 1))


def switched(optimizer):
    for group in optimizer.param_groups:
        group["fused"] = True
    optimizer._step_supports_amp_scaling = True
    return [(optimizer, [{"fused": None} for _ in optimizer.param_groups])]


def trained(model, optimizer, updates=None, num_steps=NUM_UPDATES + 1, scaler=None, step=None):
    for number in range(num_steps):
        optimizer.zero_grad()
        torch.manual_seed(number)
        batch = torch.randn(8, 6, device=next(model.parameters()).device)
        loss = model(batch).square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            (step or optimizer.step)()
        else:
            scaler.step(optimizer)
            scaler.update()
    return None if updates is None else updates.read()


def event_of(found):
    return msgspec.convert({"arm": 0, "what": "updates", "knobs": ["optimizer.fused"], **found}, ArmResults)


def watching(optimizer, *, compiles_itself=False):
    program = fake_program(torch)
    program.compiles_itself = compiles_itself
    updates = UpdatesWithin(program, NUM_UPDATES)
    updates.watch(switched(optimizer))
    return updates


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("num_before", [0, 2], ids=["from the first step", "within a training"])
def test_fused_updates_are_no_worse_than_the_programs_own_against_float64(name, num_before):
    model = net()
    optimizer = MADE[name](model.parameters())
    trained(model, optimizer, num_steps=num_before)
    found = event_of(trained(model, optimizer, watching(optimizer)))
    judged = guard.within(FUSED, found)
    assert (judged.ok, judged.reference, judged.what) == (True, "float64", "updates")
    assert len(found.candidate) == NUM_UPDATES * 8


def test_the_program_trains_as_without_a_comparison():
    model = net()
    alone = copy.deepcopy(model)
    optimizer, other = MADE["AdamW"](model.parameters()), MADE["AdamW"](alone.parameters())
    switched(other)
    trained(alone, other)
    assert trained(model, optimizer, watching(optimizer)) is not None
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(optimizer.state[ours]["exp_avg_sq"], other.state[theirs]["exp_avg_sq"])


@pytest.mark.parametrize("wrong", ["rate", "decay"])
def test_updates_are_worse_when_the_candidate_steps_otherwise(wrong):
    model = net()
    optimizer = MADE["AdamW"](model.parameters())
    updates = watching(optimizer)

    def before(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            group["lr" if wrong == "rate" else "weight_decay"] *= 1.02 if wrong == "rate" else 20

    optimizer.register_step_pre_hook(before)  # it runs after that of the comparison
    judged = guard.within(FUSED, event_of(trained(model, optimizer, updates)))
    assert not judged.ok


def test_a_scalers_factor_is_taken_out_of_the_gradients():
    model = net()
    optimizer, scaler = MADE["Adam"](model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
    judged = guard.within(FUSED, event_of(trained(model, optimizer, watching(optimizer), scaler=scaler)))
    assert (judged.ok, judged.reference) == (True, "float64")


def test_an_update_that_a_scaler_leaves_out_is_not_compared():
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    for parameter in model.parameters():
        parameter.data *= 100
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    assert trained(model, optimizer, watching(optimizer), num_steps=1, scaler=scaler) is None


def test_a_step_with_a_closure_is_not_compared():
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    updates = watching(optimizer)
    assert trained(model, optimizer, updates, step=lambda: optimizer.step(lambda: torch.zeros(()))) is None


def test_a_program_that_compiles_itself_is_not_watched():
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    updates = watching(optimizer, compiles_itself=True)
    assert not optimizer._optimizer_step_pre_hooks
    assert trained(model, optimizer, updates) is None


def test_a_comparison_that_fails_leaves_the_step_alone(monkeypatch):
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    updates = watching(optimizer)

    def fails(*given):
        raise torch.OutOfMemoryError("no room for copies")

    monkeypatch.setattr("dynotune.agent.tasks.updates_within._stepped", fails)
    assert trained(model, optimizer, updates) is None
    assert all(state["step"] == NUM_UPDATES + 1 for state in optimizer.state.values())


def test_nothing_is_left_on_the_optimizer_when_watching_ends():
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    updates = watching(optimizer)
    updates.unwatch()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert trained(model, optimizer, updates) is None


@pytest.mark.parametrize("what", ["zeroed", "larger", "step"])
def test_updates_are_worse_when_the_candidate_leaves_another_state(what):
    model = net()
    optimizer = MADE["AdamW"](model.parameters())
    updates = watching(optimizer)

    def after(optimizer, args, kwargs):
        for state in optimizer.state.values():
            if what == "zeroed":
                state["exp_avg"].zero_()
            elif what == "larger":
                state["exp_avg_sq"].mul_(1.02)
            else:
                state["step"].fill_(1)

    # Before the comparison's own hook, as a part of the step would be.
    optimizer._optimizer_step_post_hooks.move_to_end(optimizer.register_step_post_hook(after).id, last=False)
    assert not guard.within(FUSED, event_of(trained(model, optimizer, updates))).ok


def test_updates_that_move_nothing_are_no_evidence():
    model = net()
    optimizer = MADE["AdamW"](model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert trained(model, optimizer, watching(optimizer)) is None


def test_the_steps_that_move_something_tell_when_the_first_do_not():
    model = net()
    optimizer = MADE["AdamW"](model.parameters())
    updates = watching(optimizer)
    optimizer.param_groups[0]["lr"] = 0.0
    trained(model, optimizer, num_steps=1)
    optimizer.param_groups[0]["lr"] = 1e-2
    found = event_of(trained(model, optimizer, updates))
    assert len(found.candidate) == (NUM_UPDATES - 1) * 8
    assert guard.within(FUSED, found).ok


def test_nothing_is_told_when_one_of_two_optimizers_was_not_compared():
    one, other = net(), net()
    optimizers = [MADE["Adam"](one.parameters()), MADE["AdamW"](other.parameters())]
    program = fake_program(torch)
    updates = UpdatesWithin(program, NUM_UPDATES)
    updates.watch([owned for optimizer in optimizers for owned in switched(optimizer)])
    trained(one, optimizers[0])
    assert updates.read() is None
    trained(other, optimizers[1])
    assert updates.read() is not None


def test_a_parameter_of_another_class_leaves_the_answer_to_separate_runs():
    class Own(nn.Parameter):
        pass

    model = net()
    model[3].weight = Own(model[3].weight.detach())
    optimizer = MADE["Adam"](model.parameters())
    assert trained(model, optimizer, watching(optimizer)) is None


def test_every_group_and_type_is_among_the_parameters_that_are_compared():
    parts = [nn.Linear(4, 4).double() if at == 7 else nn.Linear(4, 4) for at in range(12)]
    optimizer = torch.optim.Adam([{"params": part.parameters(), "lr": 1e-3} for part in parts])
    for part in parts:
        part(torch.ones(2, 4, dtype=part.weight.dtype)).sum().backward()
    picked = _picked(torch, optimizer)
    assert {at for at, _ in picked} == set(range(12))
    assert torch.float64 in {parameter.dtype for _, parameter in picked}


@pytest.mark.parametrize("given", [(None,), ()])
def test_a_step_without_a_closure_may_say_so(given):
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    updates = watching(optimizer)
    assert trained(model, optimizer, updates, step=lambda: optimizer.step(*given)) is not None
    assert guard.within(FUSED, event_of(updates.read())).ok


@pytest.mark.parametrize("where", ["captured", "compiled"])
def test_a_step_that_is_captured_or_compiled_is_not_looked_at(monkeypatch, where):
    model = net()
    optimizer = MADE["Adam"](model.parameters())
    updates = watching(optimizer)
    if where == "captured":
        monkeypatch.setattr("dynotune.agent.tasks.updates_within.is_capturing", lambda torch: True)
    else:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr("dynotune.agent.tasks.updates_within._stepped", None)
    assert trained(model, optimizer, updates, num_steps=1) is None


def test_of_a_large_parameter_a_part_is_copied():
    model = nn.Embedding(4000, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    updates = watching(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(4000)).square().mean().backward()
        optimizer.step()
    found = event_of(updates.read())
    assert found.reference[0][0].shape == [1024, 64]
    assert guard.within(FUSED, found).ok


def test_no_optimizer_is_compared_where_one_has_a_class_of_its_own():
    class Own(torch.optim.Adam):
        def step(self, closure=None):
            return super().step(closure)

    program = fake_program(torch)
    kept = [Own(net().parameters()), torch.optim.Adam(net().parameters())]
    planned = {"knob": "optimizer.fused", "value": True, "site": {"targets": ["torch.optim.Adam"]}}
    for optimizers, num in ((kept, 0), (kept[1:], 1)):
        site = OptimizerSite([planned], program, False)
        for optimizer in optimizers:
            site._remember(optimizer, "")
        site.on()
        assert len(site.own_groups()) == num
