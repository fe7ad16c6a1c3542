"""Fused updates on the GPU, held against float64 as a live run does."""

import pytest
import torch

from dynotune.agent.tasks.updates_within import UpdatesWithin
from dynotune.measure.checks import guard

from ..agent.tasks.fake_program import fake_program
from ..agent.tasks.test_updates_within import FUSED, MADE, NUM_UPDATES, event_of, net, switched, trained

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", MADE)
def test_fused_updates_on_the_gpu_are_no_worse_than_the_programs_own(name, scaled):
    model = net().cuda()
    optimizer = MADE[name](model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0) if scaled else None
    updates = UpdatesWithin(fake_program(torch), NUM_UPDATES)
    updates.watch(switched(optimizer))
    judged = guard.within(FUSED, event_of(trained(model, optimizer, updates, scaler=scaler)))
    assert (judged.ok, judged.reference, judged.num_values) == (True, "float64", NUM_UPDATES * 8)
