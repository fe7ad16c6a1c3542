"""A network over windows of a many-channelled series: wide layers at every position, one class a window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import loop
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = 16
CLASSES = 10


@dataclass(frozen=True, slots=True)
class Size:
    batch: int
    length: int
    width: int
    depth: int


# About 20 ms a step: two slow cores, and an H200 in bf16.
SIZES = {
    "cpu": Size(batch=32, length=8, width=512, depth=5),
    "cuda": Size(batch=64, length=256, width=4096, depth=6),
}
# About 7 ms on an H200, for faults that repeat something small.
SHORT = Size(batch=64, length=256, width=4096, depth=2)


class Net(nn.Module):
    """Windows (batch, length, CHANNELS) to scores (batch, CLASSES)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(CHANNELS, size.width), nn.ReLU()]
        for _ in range(size.depth):
            layers += [nn.Linear(size.width, size.width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(size.width, CLASSES)

    def forward(self, windows: Tensor) -> Tensor:
        return self.head(self.layers(windows)).float().mean(1)


class Series(torch.utils.data.Dataset):
    """Windows cut from one long recording, with a class each."""

    def __init__(self, size: Size, num: int = 10_000_000) -> None:
        self.recording = np.random.default_rng(0).standard_normal((16384, CHANNELS), dtype=np.float32)
        self.length = size.length
        self.num = num

    def __len__(self) -> int:
        return self.num

    def window(self, index: int) -> Tensor:
        begin = index * 37 % (len(self.recording) - self.length)
        return torch.from_numpy(self.recording[begin : begin + self.length])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.window(index), index % CLASSES


def autocast(device: str) -> torch.autocast:
    """bf16 on CUDA, nothing on the CPU."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def sgd(net: nn.Module, device: str) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=1e-3, fused=device == "cuda")


def train_step(
    net: nn.Module, optimizer: torch.optim.Optimizer, windows: Tensor, classes: Tensor, device: str
) -> Tensor:
    """One step; gives the loss, which no one waits for."""
    windows = windows.to(device, non_blocking=True)
    classes = classes.to(device, non_blocking=True)
    with autocast(device):
        loss = F.cross_entropy(net(windows), classes)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def on_device(size: Size, device: str, num: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Batches that lie on the device already."""
    return [
        (
            torch.randn(size.batch, size.length, CHANNELS, device=device),
            torch.randint(CLASSES, (size.batch,), device=device),
        )
        for _ in range(num)
    ]


def bare_step(size: Size, device: str) -> Callable[[], None]:
    """A training step of `Net` on bare tensors."""
    shapes = [(size.width, CHANNELS), *[(size.width, size.width)] * size.depth, (CLASSES, size.width)]
    weights = [(torch.randn(shape, device=device) * shape[1] ** -0.5).requires_grad_() for shape in shapes]
    windows = torch.randn(size.batch, size.length, CHANNELS, device=device)
    classes = torch.zeros(size.batch, dtype=torch.long, device=device)

    def step() -> None:
        with autocast(device):
            x = windows
            for weight in weights[:-1]:
                x = F.relu(F.linear(x, weight, weight[:, 0]))
            scores = F.linear(x, weights[-1]).float().mean(1)
            loss = F.cross_entropy(scores, classes)
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-1e-3)

    return step


def step_s(size: Size, device: str) -> float:
    """Seconds of a training step of `Net`, measured on bare tensors."""
    return loop.seconds_of(bare_step(size, device), device, budget_s=0.4 if device == "cpu" else 2.0)
