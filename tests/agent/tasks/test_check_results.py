"""Losses and outputs, as they are noted beside a program that does not see it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dynotune.agent.tasks import check_results
from dynotune.agent.tasks.check_results import CheckResults
from dynotune.agent.tasks.digests import NUM_SAMPLED

from .fake_program import fake_program

NUM = 4


class Noted:
    """The agent's part, on the torch of this process."""

    def __init__(self, *, trains=False, **plan) -> None:
        self.program = fake_program(torch, optimizers=[None] * trains)
        self.complete, self.errors = self.program.events, self.program.errors
        self.results = CheckResults(self.program, {"num_values": NUM, **plan})
        self.results.torch_is_here()
        self._around = self.results.around_calls(None)

    def call(self, module, *args, **kwargs):
        return self._around(type(module).__call__, module, args, kwargs)

    @property
    def values(self):
        if not self.complete:
            self.results.at_exit()
        assert not self.errors
        (fields,) = self.complete
        return fields["values"]

    @property
    def what(self):
        return self.complete[0]["what"]


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    scaler = torch.amp.grad_scaler.GradScaler
    monkeypatch.setattr(scaler, "scale", scaler.scale)
    region = torch.amp.autocast_mode.autocast
    monkeypatch.setattr(region, "__init__", region.__init__)


def train(net, num_steps, *, call=lambda net, x: net(x), losses=None):
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for _ in range(num_steps):
        loss = call(net, torch.randn(8, 6)).square().mean()
        if losses is not None:
            losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def net_with_dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


# Losses


def test_the_losses_that_backward_is_called_on_are_noted_and_training_is_what_it_is_without():
    trained = []
    for noted in (None, Noted(trains=True)):
        torch.manual_seed(3)
        net, losses = net_with_dropout(), []
        train(net, NUM + 2, losses=losses, **({"call": noted.call} if noted else {}))
        trained.append(
            (losses, [parameter.detach().clone() for parameter in net.parameters()], torch.rand(1))
        )
    assert noted.values == trained[0][0][:NUM]
    assert noted.what == "losses"
    assert trained[0][0] == trained[1][0]
    for before, after in zip(trained[0][1], trained[1][1]):  # noqa: B905, runs on Python 3.9
        assert torch.equal(before, after)
    # No random number was drawn for it.
    assert torch.equal(trained[0][2], trained[1][2])


def test_several_losses_that_go_backward_together_are_one_value():
    noted, weight = Noted(), torch.ones(2, requires_grad=True)
    torch.autograd.backward([weight.sum(), (3 * weight).sum()])
    torch.autograd.backward(tensors=(5 * weight).sum())
    torch.autograd.backward(weight * 2, torch.ones(2))
    assert noted.values == [8.0, 10.0, 2.0]


def test_noted_losses_leave_out_backward_calls_inside_backward():
    noted, weight = Noted(), torch.ones(2, requires_grad=True)
    checkpoint(lambda x: x * 3, weight, use_reentrant=True).sum().backward()
    assert torch.equal(weight.grad, torch.tensor([3.0, 3.0]))
    assert noted.values == [6.0]


def test_a_program_that_fails_in_backward_fails_as_it_would_and_goes_on_as_it_would():
    noted, weight = Noted(), torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="scalar"):
        (weight * 2).backward()
    (weight * 3).sum().backward()
    assert noted.values == [2.0, 6.0]


def test_with_a_scaler_the_unscaled_loss_counts_also_when_it_is_divided_afterwards():
    noted, weight = Noted(), torch.ones(2, requires_grad=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    first, second = scaler.scale(weight.sum()), scaler.scale((2 * weight).sum())
    first.backward()
    second.backward()
    (scaler.scale((3 * weight).sum()) / 2).backward()
    (7 * weight).sum().backward()
    assert noted.values == [2.0, 4.0, 3.0, 14.0]


def test_a_loss_that_is_no_number_has_a_place_in_the_record():
    noted, weight = Noted(), torch.ones(2, requires_grad=True)
    (weight * float("nan")).sum().backward()
    (weight / 0).sum().backward()
    weight.sum().backward()
    assert noted.values == [None, None, 2.0]


# Outputs


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple
    label: str = "cat"


class Many(nn.Module):
    def forward(self, x):
        return {
            "a": Output(x, (x + 1, [x.half()])),
            "b": torch.arange(3),
            "c": x.to(torch.complex64),
            "d": x[:0],
        }


def test_every_tensor_of_floating_point_in_an_output_is_digested_and_the_output_left_alone():
    noted, given = Noted(), torch.tensor([[3.0, -4.0]])
    module = Many()
    expected = module(given)
    given_back = noted.call(module, given)
    assert given_back.keys() == expected.keys()
    assert given_back["a"].logits is given
    (call,) = noted.values
    assert [tensor["shape"] for tensor in call] == [[1, 2], [1, 2], [1, 2], [1, 2, 2], [0, 2]]
    assert call[0]["sampled"] == [3.0, -4.0]
    assert (call[0]["sum"], call[0]["magnitudes"], call[0]["root"]) == (-1.0, 7.0, 5.0)
    assert noted.what == "outputs"


def test_the_layout_in_memory_does_not_change_a_digest():
    values = torch.randn(2, 5, 7, 9)
    digests = []
    for layout in (torch.contiguous_format, torch.channels_last):
        noted = Noted()
        noted.call(nn.Identity(), values.contiguous(memory_format=layout))
        digests.append(noted.values[0][0])
    assert digests[0]["sampled"] == digests[1]["sampled"]
    assert len(digests[0]["sampled"]) == NUM_SAMPLED
    assert digests[0]["sum"] == pytest.approx(digests[1]["sum"])


def test_outputs_are_complete_after_so_many_calls_where_nothing_trains():
    noted = Noted()
    with torch.inference_mode():
        for _ in range(NUM - 1):
            noted.call(nn.Identity(), torch.ones(2))
        assert not noted.complete
        noted.call(nn.Identity(), torch.ones(2))
    assert len(noted.complete[0]["values"]) == NUM


def test_a_program_that_will_train_may_evaluate_before_and_its_losses_count():
    noted, net = Noted(trains=True), nn.Linear(6, 3)
    for _ in range(3 * NUM):
        noted.call(net, torch.ones(1, 6))
    assert not noted.complete
    train(net, NUM, call=noted.call)
    assert len(noted.values) == NUM
    assert noted.what == "losses"


def test_a_program_with_an_optimizer_that_never_goes_backward_is_known_by_its_outputs_after_a_while():
    noted = Noted(trains=True)
    for _ in range(10 * NUM):
        noted.call(nn.Identity(), torch.ones(1))
    assert len(noted.values) == NUM


# What else there is to know


def test_modules_that_draw_random_numbers_are_noticed():
    for module, draws in (
        (net_with_dropout(), ["cpu"]),
        (net_with_dropout().eval(), []),
        (nn.Linear(6, 3), []),
    ):
        noted = Noted()
        noted.call(module, torch.ones(1, 6))
        assert noted.values
        assert noted.complete[0]["draws"] == draws


def test_other_random_numbers_are_drawn_only_when_that_is_asked_for():
    drawn = []
    for plan in ({}, {}, {"other_draws": ["cpu"]}):
        torch.manual_seed(5)
        noted, net = Noted(**plan), net_with_dropout()
        drawn.append([noted.call(net, torch.ones(64, 6)) for _ in range(2)][1])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_nudge_moves_each_weight_by_its_share_once():
    noted, net = Noted(nudge=0.01), nn.Linear(300, 2)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    for _ in range(2):
        with torch.inference_mode():
            noted.call(net, torch.ones(1, 300))
    moved = torch.cat([(now / then - 1).detach().flatten() for now, then in zip(net.parameters(), before)])  # noqa: B905, runs on Python 3.9
    assert torch.allclose(moved.abs(), torch.tensor(0.01), atol=1e-5)
    assert 200 < (moved > 0).sum() < 400
    net(torch.ones(1, 300)).sum().backward()
    assert net.weight.grad is not None


@pytest.mark.parametrize(
    ("make", "precision"),
    [
        (lambda: (nn.Linear(6, 3), False), "float32"),
        (lambda: (nn.Linear(6, 3).bfloat16(), False), "bfloat16"),
        (lambda: (nn.Linear(6, 3), True), "bfloat16"),
    ],
)
def test_the_precision_that_a_module_computes_in_is_noted(make, precision):
    module, under_autocast = make()
    noted = Noted()
    with torch.autocast("cpu", torch.bfloat16, enabled=under_autocast):
        noted.call(module, torch.ones(1, 6, dtype=module.weight.dtype))
    assert noted.values
    assert noted.complete[0]["precision"] == precision


def test_a_mistake_of_ours_is_logged_and_the_program_goes_on(monkeypatch):
    noted, weight = Noted(), torch.ones(2, requires_grad=True)

    def fails(*args, **kwargs):
        raise MemoryError("no room for a digest")

    monkeypatch.setattr(check_results, "digests_of", fails)
    monkeypatch.setattr(noted.results, "_mean", fails)
    assert torch.equal(noted.call(nn.Identity(), weight), weight)
    weight.sum().backward()
    assert weight.grad is not None
    assert [str(error) for error in noted.errors] == ["no room for a digest"] * 2


def test_a_program_that_ends_early_says_what_there_is_and_nothing_is_noted_after_that():
    noted, weight = Noted(), torch.ones(2, requires_grad=True)
    weight.sum().backward()
    noted.results.at_exit()
    noted.results.at_exit()
    weight.sum().backward()
    assert [fields["values"] for fields in noted.complete] == [[2.0]]


# Reference runs


def test_a_reference_run_trains_in_float64_from_the_same_weights_and_batches_whatever_autocast_says():
    plain: list[float] = []
    torch.manual_seed(3)
    train(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), NUM, losses=plain)
    torch.manual_seed(3)
    noted = Noted(trains=True, reference="float64")
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def call(net, x):
        with torch.autocast("cpu", torch.bfloat16):
            return noted.call(net, x)

    train(net, NUM, call=call)
    assert noted.values == pytest.approx(plain, rel=1e-5)
    assert noted.values != plain
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float64}


def test_a_module_that_cannot_be_widened_gives_no_value_that_would_pass_for_one_in_float64():
    class Narrow(nn.Linear):
        def _apply(self, function, recurse=True):
            raise TypeError("is of float32, whatever is said")

    noted, x = Noted(reference="float64"), torch.ones(2, 6)
    net = Narrow(6, 3)
    for _ in range(NUM + 1):
        noted.call(net, x)
    (fields,) = noted.complete
    assert fields["values"] == []
    assert "whatever is said" in str(noted.errors)


def test_dropout_is_off_where_results_have_to_be_still():
    noted, net = Noted(still=True), net_with_dropout()
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert torch.equal(noted.call(net, x), noted.call(net, x))
    noted.results.at_exit()
    assert noted.complete[0]["draws"] == []


def test_modules_inside_say_what_they_gave_in_the_first_call_and_keep_no_hooks():
    noted, net = Noted(still=True), net_with_dropout()
    for _ in range(2):
        noted.call(net, torch.randn(4, 6))
    noted.results.at_exit()
    assert [name for name, _ in noted.complete[0]["parts"]] == ["0", "1", "2", "3"]
    assert not any(part._forward_hooks for part in net.modules())


def test_nudge_moves_weights_and_innermost_modules_results_by_rounding():
    noted, net = Noted(nudge=2**-9), nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    with torch.no_grad():
        plain = net(x)
        moved = noted.call(net, x)
    error = (moved - plain).norm() / plain.norm()
    assert 2**-11 < error < 2**-6
