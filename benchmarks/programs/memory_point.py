"""Trains or runs one model on synthetic data, for what it holds on the GPU: `memory_point.py MODEL BATCH
[options]`.

Random weights, nothing is downloaded. `--hold FILE` writes what is reserved, now and at most, to the
file after the last step and waits until it is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 512


class UNet(nn.Module):
    """Four levels, a pair of convolutions at each."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 128, 256, 512]
        self.down = nn.ModuleList(self._pair(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(self._pair(a + b, b) for a, b in pairwise(widths[:0:-1]))
        self.head = nn.Conv2d(64, 2, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width in (inputs, outputs):
            layers += [
                nn.Conv2d(width, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for at, block in enumerate(self.down):
            x = block(x if at == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for block, skip in zip(self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2), skip], 1))
        return self.head(x)


class GraphNet(nn.Module):
    """Rounds of messages over padded graphs: 256 nodes, 2,048 edges."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.into = nn.Linear(32, width)
        self.rounds = nn.ModuleList(nn.Sequential(nn.Linear(2 * width, width), nn.ReLU()) for _ in range(6))
        self.out = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nodes = x.shape[1]
        edges = torch.arange(2048, device=x.device)
        source, target = edges % nodes, (edges * 7) % nodes
        h = self.into(x)
        for one in self.rounds:
            message = one(torch.cat([h[:, source], h[:, target]], -1))
            h = h.index_add(1, target, message)
        return self.out(h.mean(1))


def _image_model(name: str) -> nn.Module:
    if name == "unet":
        return UNet()
    if name.startswith("timm-"):
        import timm

        return timm.create_model(name.removeprefix("timm-"), pretrained=False)
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def _text_model(name: str, checkpoint: bool) -> nn.Module:
    import transformers

    if name == "bert-base":
        model = transformers.BertForMaskedLM(transformers.BertConfig())
    else:
        sizes = {"gpt2-small": (12, 12, 768), "gpt2-medium": (24, 16, 1024)}[name]
        layers, heads, width = sizes
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=layers, n_head=heads, n_embd=width)
        )
    if checkpoint:
        model.gradient_checkpointing_enable()
    return model


class Samples(Dataset[Any]):
    """The same sample again and again."""

    def __init__(self, sample: Any, num: int) -> None:
        self.sample, self.num = sample, num

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, at: int) -> Any:
        return self.sample


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--hold", type=Path)
    given = parser.parse_args()
    is_text = given.model.startswith(("gpt2", "bert"))
    if is_text:
        model = _text_model(given.model, given.checkpoint)
        sample: Any = torch.randint(0, 1000, (LENGTH,))
    elif given.model == "gnn":
        model, sample = GraphNet(), torch.randn(256, 32)
    else:
        model, sample = _image_model(given.model), torch.randn(3, 224, 224)
    model = model.cuda().train(not given.infer)
    optimizer = None
    if not given.infer:
        optimizer = getattr(torch.optim, given.optimizer)(model.parameters(), lr=1e-4)
    called: Any = torch.compile(model) if given.compile else model
    precision = torch.autocast("cuda", torch.bfloat16) if given.bf16 else contextlib.nullcontext()
    grad = torch.inference_mode() if given.infer else contextlib.nullcontext()
    loader = DataLoader(Samples(sample, given.steps * given.batch), given.batch)
    for batch in loader:
        inputs = batch.cuda(non_blocking=True)
        with grad, precision:
            if is_text:
                loss = called(input_ids=inputs, **({} if given.infer else {"labels": inputs}))
                loss = loss.logits.float().mean() if given.infer else loss.loss
            else:
                loss = called(inputs).float().square().mean()
        if optimizer is not None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    if given.hold is not None:
        held = given.hold.with_suffix(".partial")
        held.write_text(f"{torch.cuda.memory_reserved()} {torch.cuda.max_memory_reserved()}")
        held.rename(given.hold)
        while given.hold.exists():
            time.sleep(0.02)


if __name__ == "__main__":
    main()
