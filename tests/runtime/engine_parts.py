"""Small models for the engine's tests, and graphs that replay on the CPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils import _pytree as pytree

from dynotune.runtime.engine.graphs import CapturedGraph


class Residual(nn.Module):
    """Two foldable pairs, and a convolution whose output is also added: not foldable."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.used_twice = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Sequential(nn.Conv2d(8, 4, 1, groups=2), nn.BatchNorm2d(4))

    def forward(self, images):
        hidden = self.used_twice(self.stem(images))
        return self.last(self.norm(hidden) + hidden).mean((2, 3))


class Tokens(nn.Module):
    """Integers in, a dictionary with a tuple and a constant out."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

    def forward(self, tokens, scale):
        hidden = self.layer(self.embedding(tokens)) * scale
        return {"hidden": hidden, "more": (hidden.argmax(-1), "constant", None)}


class Anchored(nn.Module):
    """Keeps what it works out of the input's shape, as YOLO heads keep their anchors."""

    def __init__(self):
        super().__init__()
        self.shape = None
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        if self.shape != x.shape:
            self.shape, self.anchors = x.shape, [torch.arange(x.shape[-1], device=x.device).to(x.dtype)]
        return x * self.weight + self.anchors[0]


class DataDependent(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # the host has to wait for this
            return x + 1
        return x - 1


class Mean(nn.Module):
    """Rows depend on each other: padding the batch changes them."""

    def forward(self, x):
        return x - x.mean(0)


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2


def seeded(model, seed=0):
    """`model` in eval mode with weights and statistics that do something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for tensor, low in (
                    (module.running_mean, -1),
                    (module.running_var, 0.5),
                    (module.weight, 0.5),
                    (module.bias, -1),
                ):
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + low)
            elif isinstance(module, (nn.Conv2d, nn.Linear, nn.Embedding)):
                module.weight.copy_(torch.randn(module.weight.shape, generator=generator) * 0.2)
    return model.eval()


class EagerCapturer:
    """Stands in for `Capturer` on the CPU: a replay computes anew from the static inputs into the static
    outputs.

    Args:
        before_replay: called before each replay computes.
        fails: called with the inputs before a capture; raises what the capture is to raise.
        stale: replays leave the outputs as they are, as where a graph has captured the wrong thing.
    """

    def __init__(self, before_replay=None, fails=None, stale=False, seconds=()):
        self.num_captures = 0
        self.graphs = []
        self._before_replay, self._fails, self._stale = before_replay, fails, stale
        self._seconds = seconds

    def __call__(self, forward, inputs, kept):
        self.num_captures += 1
        if self._fails is not None:
            self._fails(inputs)
        graph = CapturedGraph(self, inputs, forward(*inputs), kept())

        def replay():
            if self._before_replay is not None:
                self._before_replay()
            if not self._stale:
                fresh = forward(*graph.inputs)
                for into, leaf in zip(
                    pytree.tree_leaves(graph.outputs), pytree.tree_leaves(fresh), strict=True
                ):
                    if isinstance(into, torch.Tensor):
                        into.copy_(leaf)

        graph.replay = replay
        self.graphs.append(graph)
        return graph

    def reset(self):
        """As the graph that it hands to `CapturedGraph`."""

    def pool_bytes(self):
        return 7

    def replay_s(self, graphs):
        return list(self._seconds)


def install_capturer(monkeypatch, capturer):
    monkeypatch.setattr("dynotune.runtime.engine.engine._capturer", lambda device: capturer)
    return capturer
