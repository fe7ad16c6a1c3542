"""Six trainings as people write them: a net, its samples, a batch size, an optimizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset

PICTURES = "pictures"


class Training(NamedTuple):
    """A batch is a mapping of what the net takes, labels among it, or a pair of inputs and labels.

    Args:
        workers: of the loader, as written.
    """

    net: nn.Module
    samples: Dataset[Any]
    batch_size: int
    workers: int
    optimizer: str
    lr: float


class Tokens(Dataset[Any]):
    """Pieces of one long text, at random places."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.text = torch.randint(50_000, (1_000_000,), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = random.randrange(len(self.text) - self.length)
        piece = self.text[start : start + self.length]
        return {"input_ids": piece, "labels": piece}


class Sentences(Dataset[Any]):
    """Of all lengths, each padded to the longest there may be."""

    def __init__(self, longest: int) -> None:
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(longest // 8, longest, (4096,), generator=draw)
        self.sentences = [torch.randint(1000, 30_000, (int(length),), generator=draw) for length in lengths]
        self.longest = longest

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sentence = self.sentences[index % len(self.sentences)]
        padding = torch.zeros(self.longest - len(sentence), dtype=torch.long)
        mask = torch.cat([torch.ones_like(sentence), padding])
        return {
            "input_ids": torch.cat([sentence, padding]),
            "attention_mask": mask,
            "labels": sentence[0] % 2,
        }


class Photographs(Dataset[Any]):
    """JPEG files of the folder `pictures`, decoded and then changed at random by `change`."""

    def __init__(self, change: Callable[[Any], torch.Tensor]) -> None:
        self.files = sorted(Path(PICTURES).glob("*.jpg"))
        self.change = change

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        with Image.open(self.files[index % len(self.files)]) as file:
            return self.change(file.convert("RGB")), index % 100


class InMemory(Dataset[Any]):
    """Pictures of bytes, made floats when they are drawn."""

    def __init__(self, size: int) -> None:
        self.pictures = torch.randint(256, (256, 3, size, size), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.pictures[index % 256].float() / 128 - 1, "labels": index % 100}


class Rows(Dataset[Any]):
    """Rows of a table in memory."""

    def __init__(self) -> None:
        self.rows, self.labels = torch.randn(100_000, 64), torch.randint(10, (100_000,))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index], self.labels[index]


class Augment:
    """A crop, a flip and noise, written with what lies at hand."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, picture: Any) -> torch.Tensor:
        import numpy as np

        left, top = random.randrange(picture.width // 2), random.randrange(picture.height // 2)
        box = (left, top, left + picture.width // 2, top + picture.height // 2)
        values = np.asarray(picture.resize((self.size, self.size), box=box), dtype=np.float32) / 255
        if random.random() < 0.5:
            values = values[:, ::-1]
        values = values + np.random.normal(0, 0.02, values.shape).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1)))


def gpt(large: bool) -> Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, length = (12, 768, 512) if large else (2, 128, 64)
    config = GPT2Config(n_positions=length, n_embd=width, n_layer=layers, n_head=width // 64)
    return Training(GPT2LMHeadModel(config), Tokens(length), 8 if large else 4, 0, "adamw", 3e-4)


def bert(large: bool) -> Training:
    from transformers import BertConfig, BertForSequenceClassification

    layers, width, longest = (12, 768, 256) if large else (2, 128, 64)
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=width // 64,
    )
    return Training(
        BertForSequenceClassification(config), Sentences(longest), 32 if large else 8, 0, "adamw", 2e-5
    )


def resnet50(large: bool) -> Training:
    """ResNet-50 from JPEG files; ResNet-18 and small pictures where it is small."""
    import torchvision
    from torchvision.transforms import v2

    change = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(224 if large else 64),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    net = torchvision.models.get_model("resnet50" if large else "resnet18", num_classes=100)
    return Training(net, Photographs(change), 64 if large else 8, 4 if large else 1, "sgd", 0.01)


def vit(large: bool) -> Training:
    from transformers import ViTConfig, ViTForImageClassification

    if large:
        config = ViTConfig(num_labels=100)  # ViT-B/16
    else:
        config = ViTConfig(
            num_labels=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
            image_size=64,
        )  # fmt: skip
    return Training(
        ViTForImageClassification(config),
        InMemory(config.image_size),
        128 if large else 8,
        4 if large else 0,
        "adamw",
        3e-4,
    )


def starved(large: bool) -> Training:
    """A small net whose pictures the training process makes itself."""
    width = 64 if large else 8
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1), nn.ReLU()]
    for _ in range(4 if large else 2):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))
    return Training(net, Photographs(Augment(128 if large else 32)), 16 if large else 8, 0, "sgd", 0.01)


def mlp(large: bool) -> Training:
    width = 256 if large else 64
    layers: list[nn.Module] = [nn.Linear(64, width), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return Training(nn.Sequential(*layers, nn.Linear(width, 10)), Rows(), 64, 0, "adamw", 1e-3)


TRAININGS: dict[str, Callable[[bool], Training]] = {
    "gpt": gpt,
    "bert": bert,
    "resnet50": resnet50,
    "vit": vit,
    "starved": starved,
    "mlp": mlp,
}
