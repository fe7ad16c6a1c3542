"""`optimizer.fused`."""

from __future__ import annotations

import inspect

import pytest
import torch

from dynotune.agent.sites.optimizer import OptimizerSite

from ..tasks.fake_program import fake_program

TRAIN = """
import torch
model = torch.nn.Linear(4, 2)
def step(optimizer):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def test_the_four_optimizers_and_their_subclasses_get_it_from_generators_groups_and_names(child):
    done = child(
        TRAIN
        + """
class Own(torch.optim.AdamW):
    pass
def named():
    try:
        torch.optim.Adagrad(model.named_parameters())
    except TypeError:  # before torch 2.6
        return model.parameters()
    return model.named_parameters()
weights = lambda: [{"params": (p for p in model.parameters())}]
made = [
    torch.optim.Adam(model.parameters(), 1e-3),
    torch.optim.AdamW(model.parameters(), foreach=True),
    torch.optim.SGD(weights(), lr=0.1),
    torch.optim.Adagrad(named()),
    Own(model.parameters()),
]
for optimizer in made:
    step(optimizer)
out["fused"] = [optimizer.param_groups[0]["fused"] for optimizer in made]
out["params"] = [len(optimizer.param_groups[0]["params"]) for optimizer in made]
""",
        "optimizer.fused=true",
    )
    assert done.out == {"fused": [True] * 5, "params": [2] * 5}
    assert done.readback["optimizer.fused"]["ok"] is True


def test_fused_holds_for_parameter_groups_that_choose_for_themselves(child):
    program = (
        TRAIN
        + """
groups = [
    {"params": [model.weight], "fused": False, "foreach": False, "lr": 0.1},
    {"params": [model.bias], "foreach": True},
]
optimizer = torch.optim.Adam(groups, lr=1e-3)
step(optimizer)
out["fused"] = [group["fused"] for group in optimizer.param_groups]
out["lr"] = [group["lr"] for group in optimizer.param_groups]
out["own"] = groups[0]["fused"]
"""
    )
    done = child(program, "optimizer.fused=true")
    assert done.out == {"fused": [True, True], "lr": [0.1, 1e-3], "own": False}
    assert done.readback["optimizer.fused"]["ok"] is True
    fused = program.replace('"fused": False, "foreach": False', '"fused": True').replace('"own"]', '"was"]')
    assert child(fused, "optimizer.fused=false").out["fused"] == [None, None]


def test_false_gives_back_torchs_own_choice_and_not_its_slowest_loop(child):
    done = child(
        TRAIN
        + """
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
out["fused"] = optimizer.param_groups[0]["fused"]
""",
        "optimizer.fused=false",
    )
    assert done.out == {"fused": None}
    assert done.readback["optimizer.fused"]["ok"] is True


def test_programs_own_arguments_stay_with_the_reason_when_torch_would_refuse_ours(child):
    done = child(
        TRAIN
        + """
complex_weight = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
optimizer = torch.optim.Adam(iter([complex_weight]), foreach=True)
complex_weight.grad = torch.ones_like(complex_weight)
optimizer.step()
out["group"] = [optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]]
""",
        "optimizer.fused=true",
    )
    assert done.out == {"group": [None, True]}
    assert done.readback["optimizer.fused"]["ok"] is False
    assert "complex64" in done.readback["optimizer.fused"]["detail"]


def test_fused_is_taken_back_before_the_first_step_when_gradients_will_be_sparse(child):
    done = child(
        """
        import torch
        model = torch.nn.Embedding(8, 2, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        out["moved"] = bool((model.weight.grad.to_dense() != 0).any())
        """,
        "optimizer.fused=true",
    )
    assert done.out == {"moved": True}
    assert done.readback["optimizer.fused"]["ok"] is False
    assert "sparse" in done.readback["optimizer.fused"]["detail"]


def test_a_program_with_another_optimizer_is_told_so(child):
    done = child(TRAIN + "step(torch.optim.RMSprop(model.parameters()))", "optimizer.fused=true")
    assert done.readback["optimizer.fused"]["ok"] is False
    assert "none of Adam" in done.readback["optimizer.fused"]["detail"]


def test_an_optimizer_that_has_died_is_read_back_as_it_was(child):
    done = child(
        TRAIN
        + """
def train():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(optimizer)
    settings.readback()
train()
settings.readback()
""",
        "optimizer.fused=true",
    )
    assert (done.readback["optimizer.fused"]["found"], done.readback["optimizer.fused"]["ok"]) == (
        "true",
        True,
    )


class OnCuda:
    """As much of a parameter on a GPU as the site asks of it."""

    dtype, device, is_leaf, grad = torch.float32, torch.device("cuda", 0), True, None

    def is_floating_point(self):
        return True


@pytest.mark.parametrize(
    ("name", "has_kernel", "is_refused"),
    [("Adagrad", False, True), ("Adagrad", True, False), ("AdamW", False, False), ("SGD", False, False)],
)
def test_fused_is_refused_where_torch_has_no_kernel_for_the_device(monkeypatch, name, has_kernel, is_refused):
    asked = []
    monkeypatch.setattr(
        torch._C,
        "_dispatch_has_kernel_for_dispatch_key",
        lambda operator, device: asked.append((operator, device)) or has_kernel,
    )
    targets = ["torch.optim.Adagrad", "torch.optim.AdamW", "torch.optim.SGD"]
    planned = {"knob": "optimizer.fused", "value": True, "site": {"targets": targets}}
    site = OptimizerSite([planned], fake_program(torch), True)
    assert bool(site._why_not(getattr(torch.optim, name), {"params": [OnCuda()]})) is is_refused
    assert asked == ([("aten::_fused_adagrad_", "CUDA")] if name == "Adagrad" else [])


def test_the_kernel_that_is_asked_for_is_one_of_torchs():
    site = OptimizerSite(
        [{"knob": "optimizer.fused", "value": True, "site": {"targets": []}}], fake_program(torch), True
    )
    assert site._has_kernel("_fused_adagrad_", "CPU")
    assert not site._has_kernel("_fused_of_nothing_", "CPU")


@pytest.mark.parametrize("is_theirs", [False, True])
def test_fused_is_taken_back_from_parameters_without_a_kernel_unless_the_program_set_it(
    monkeypatch, is_theirs
):
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda operator, device: False)
    model = torch.nn.Linear(2, 2)
    planned = {"knob": "optimizer.fused", "value": True, "site": {"targets": ["torch.optim.Adagrad"]}}
    site = OptimizerSite([planned], fake_program(torch), True)
    bound = inspect.signature(torch.optim.Adagrad.__init__).bind(
        None, model.parameters(), fused=is_theirs or None
    )
    reason = site._rewrite(torch.optim.Adagrad, bound)
    optimizer = torch.optim.Adagrad(model.parameters(), fused=True)
    site._remember(optimizer, reason)
    optimizer.param_groups[0]["params"] = [OnCuda()]
    site.on_root(model)
    assert optimizer.param_groups[0]["fused"] is (True if is_theirs else None)
    detail = site.read_one(planned)["detail"]
    assert ("no fused kernel" in detail) is not is_theirs
