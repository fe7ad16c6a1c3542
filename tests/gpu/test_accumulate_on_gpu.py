"""Accumulation on the device: the large batch's gradients, and no waiting for the device."""

import copy

import pytest
import torch
from torch import nn

from dynotune.runtime import Prefetcher
from dynotune.runtime.train import accumulate

pytestmark = pytest.mark.gpu


def mean_loss(model, batch):
    x, y = batch
    with torch.autocast("cuda", torch.float16):
        return nn.functional.mse_loss(model(x).float(), y)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)).cuda()


def test_scaled_half_precision_steps_as_the_large_batch(model):
    generator = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(size, 64, generator=generator), torch.randn(size, 8, generator=generator))
        for size in (16, 7, 16, 3)
    ]
    large = copy.deepcopy(model)
    optimizer = torch.optim.SGD(large.parameters(), 0.1)
    for window in (batches[:3], batches[3:]):
        optimizer.zero_grad()
        x, y = (torch.cat(parts).cuda() for parts in zip(*window, strict=True))
        mean_loss(large, (x, y)).backward()
        optimizer.step()
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    steps = accumulate(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        Prefetcher(batches, "cuda"),
        3,
        loss=mean_loss,
        weight=lambda batch: len(batch[0]),
        scaler=scaler,
    )
    assert [step.num_micro_batches for step in steps] == [3, 1]
    for ours, theirs in zip(model.parameters(), large.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4)


def test_a_window_does_not_wait_for_the_device(model):
    batches = [(torch.randn(16, 64, device="cuda"), torch.randn(16, 8, device="cuda")) for _ in range(5)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    list(accumulate(model, optimizer, batches, 2, loss=mean_loss))
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps = list(accumulate(model, optimizer, batches, 2, loss=mean_loss))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(step.loss.isfinite() for step in steps)
