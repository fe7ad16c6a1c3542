"""Fused updates on the GPU, held against the program's own as a live run does."""

import pytest
import torch

from dynotune import knobs
from dynotune.agent.sites.optimizer import OptimizerSite
from dynotune.agent.tasks.updates_within import UpdatesWithin
from dynotune.measure.checks import guard

from ..agent.tasks.fake_program import fake_program
from ..agent.tasks.test_updates_within import FUSED, MADE, NUM_UPDATES, event_of, net, switched, trained

pytestmark = pytest.mark.gpu


def site_of(optimizer):
    targets = knobs.get("optimizer.fused").site.targets
    planned = {"knob": "optimizer.fused", "value": True, "site": {"targets": targets}}
    site = OptimizerSite([planned], fake_program(torch), False)
    site._remember(optimizer, "")
    return site


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("is_right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_fused_updates_on_the_gpu_are_right_when_the_rate_is(name, is_right, scaled):
    model = net().cuda()
    optimizer = MADE[name](model.parameters())
    assert site_of(optimizer).cannot() == ""
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0) if scaled else None
    updates = UpdatesWithin(fake_program(torch), NUM_UPDATES)
    updates.watch(switched(optimizer))

    def faster(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            group["lr"] *= 1.02

    if not is_right:
        optimizer.register_step_pre_hook(faster)  # it runs after that of the comparison
    judged = guard.within(FUSED, event_of(trained(model, optimizer, updates, scaler=scaler)))
    assert (judged.ok, judged.num_values) == (is_right, NUM_UPDATES * 8)


def test_fused_is_refused_where_torch_has_no_kernel_and_works_where_it_has_one():
    model = net().cuda()
    optimizer = MADE["Adagrad"](model.parameters())
    if reason := site_of(optimizer).cannot():
        assert "Adagrad has no fused kernel" in reason
    else:
        switched(optimizer)
        trained(model, optimizer, num_steps=1)
