"""A network over short clips of images, and ways to bring clips from the host's memory to the device (CUDA
only)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import loop
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
SIDE = 256
PATCH = 8
POSITIONS = (SIDE // PATCH) ** 2
FEATURES = 3 * PATCH**2
WIDTH = 4096
CLASSES = 10
FRAME_BYTES = BATCH * 3 * SIDE**2


def patches(frames: Tensor) -> Tensor:
    """Clips (batch, frames, 3, side, side) to the mean frame's patches (batch, positions, features) in
    bf16."""
    image = frames.to(torch.bfloat16).mean(1)
    if frames.dtype == torch.uint8:
        image = image / 255
    cut = image.view(len(image), 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(len(image), POSITIONS, FEATURES)


class Net(nn.Module):
    """Clips to scores (batch, CLASSES); about 8 ms a step on an H200 for each wide layer."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.layers(patches(frames)).mean(1)).float()


def host_clips(frames: int, pinned: bool, num: int = 2) -> list[Tensor]:
    """Batches of uint8 clips in the host's memory, every page of them written."""
    clips = [torch.full((BATCH, frames, 3, SIDE, SIDE), 40 * n + 40, dtype=torch.uint8) for n in range(num)]
    return [clip.pin_memory() for clip in clips] if pinned else clips


def copied_in_line(host: list[Tensor]) -> Iterator[Tensor]:
    """Each batch copied on the stream that computes."""
    buffer = torch.empty_like(host[0], device="cuda")
    for batch in itertools.cycle(host):
        yield buffer.copy_(batch, non_blocking=True)


def copied_ahead(host: list[Tensor], pin_each: bool = False) -> Iterator[Tensor]:
    """Each batch copied on a stream of its own into one of two buffers while the batch before is computed
    on."""
    copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    buffers = [torch.empty_like(host[0], device="cuda") for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]
    for number, batch in enumerate(itertools.cycle(host)):
        turn = number % 2
        source = batch.pin_memory() if pin_each else batch
        copies.wait_event(used[turn])
        with torch.cuda.stream(copies):
            buffers[turn].copy_(source, non_blocking=True)
        compute.wait_stream(copies)
        yield buffers[turn]
        used[turn].record()


def train_step(net: nn.Module, optimizer: torch.optim.Optimizer, frames: Tensor, classes: Tensor) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(frames), classes)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def step_s(depth: int) -> float:
    """Seconds of a training step, measured on bare tensors."""
    shapes = [(WIDTH, FEATURES), *[(WIDTH, WIDTH)] * depth, (CLASSES, WIDTH)]
    weights = [(torch.randn(shape, device="cuda") * shape[1] ** -0.5).requires_grad_() for shape in shapes]
    frames = torch.zeros(BATCH, 2, 3, SIDE, SIDE, dtype=torch.uint8, device="cuda")
    classes = torch.zeros(BATCH, dtype=torch.long, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = patches(frames)
            for weight in weights[:-1]:
                x = F.relu(F.linear(x, weight, weight[:, 0]))
            loss = F.cross_entropy(F.linear(x.mean(1), weights[-1]).float(), classes)
        grads = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, grads, alpha=-1e-3)

    return loop.seconds_of(step, "cuda", budget_s=2.0)


def copy_bytes_a_s(pinned: bool) -> float:
    """How fast this machine copies from the host to the device."""
    (clip,) = host_clips(16, pinned, num=1)
    buffer = torch.empty_like(clip, device="cuda")
    return clip.nbytes / loop.seconds_of(lambda: buffer.copy_(clip, non_blocking=True), "cuda")


def frames_of(num_bytes: float) -> int:
    return max(1, round(num_bytes / FRAME_BYTES))
