"""Models that benchmarks/engine.py runs: large ones for a GPU, small ones for the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn


class Blocks(nn.Module):
    """A small decoder: tokens to logits.

    Args:
        width: of the hidden state.
        depth: number of blocks.
        length: tokens a row.
    """

    def __init__(self, width: int, depth: int, length: int, num_words: int = 8192) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(num_words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "between": nn.LayerNorm(width),
                    "mlp": nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
                }
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows, length = tokens.shape
        hidden = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            q, k, v = (
                block["qkv"](block["before"](hidden)).view(rows, length, 3, -1, 64).permute(2, 0, 3, 1, 4)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            hidden = hidden + block["out"](mixed.transpose(1, 2).reshape(rows, length, -1))
            hidden = hidden + block["mlp"](block["between"](hidden))
        return self.head(self.norm(hidden))


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.patch(images).flatten(2).transpose(1, 2)).mean(1))


class FirstOutput(nn.Module):
    """The detections of a YOLO model, without its feature maps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.model(images)
        return found if self.training else found[0]


def convolutions(width: int = 32, depth: int = 6) -> nn.Module:
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [
            nn.Conv2d(width if index else 3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def resnet50() -> nn.Module:
    from torchvision.models import resnet50

    return resnet50()


def vit() -> nn.Module:
    from torchvision.models import vit_b_16

    model = vit_b_16()
    nn.init.normal_(model.heads.head.weight, std=0.02)  # zero as it comes: all its answers would be equal
    return model


def yolo11n() -> nn.Module:
    os.environ.update(YOLO_OFFLINE="true", YOLO_AUTOINSTALL="false", YOLO_CONFIG_DIR="/tmp")
    # AGPL-3.0: of this repository only benchmarks, tests and examples that say so may import it.
    from ultralytics.nn.tasks import DetectionModel

    return FirstOutput(DetectionModel("yolo11n.yaml", verbose=False))


@dataclass(frozen=True)
class Model:
    """One model with its input.

    Args:
        make: builds it with random weights.
        shape: of the input without the batch.
        num_words: integers below this are the input, where it is not images.
        channels_last: whether every arm gets this layout.
        needs: packages.
        compile: how the engine compiles it; where "max-autotune" is among the arms, it competes with that.
        autotuned: whether torch.compile's max-autotune is an arm.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_words: int = 0
    channels_last: bool = False
    needs: tuple[str, ...] = ()
    compile: str | tuple[bool | str, ...] = "measure"
    autotuned: bool = False


AUTOTUNED = "max-autotune-no-cudagraphs"  # the engine captures graphs itself

MODELS = {
    "cuda": {
        "resnet50": Model(resnet50, (3, 224, 224), channels_last=True, needs=("torchvision",)),
        "vit_b_16": Model(vit, (3, 224, 224), needs=("torchvision",)),
        "yolo11n": Model(yolo11n, (3, 640, 640), channels_last=True, needs=("ultralytics", "torchvision")),
        "transformer": Model(
            lambda: Blocks(512, 6, 128),
            (128,),
            num_words=8192,
            compile=(True, AUTOTUNED, False),
            autotuned=True,
        ),
    },
    "cpu": {
        "convolutions": Model(convolutions, (3, 64, 64), compile=(False,)),
        "patches": Model(Patches, (3, 64, 64), compile=(False,)),
        "transformer": Model(lambda: Blocks(128, 2, 32, 512), (32,), num_words=512, compile=(False,)),
    },
}


def calibrated(model: nn.Module, batches: list[torch.Tensor]) -> nn.Module:
    """`model` in eval mode, its BatchNorm statistics those of `batches`: as made, activations shrink to
    nothing."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if norms:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean
        model.train()
        with torch.no_grad():
            for batch in batches:
                model(batch)
    return model.eval()
