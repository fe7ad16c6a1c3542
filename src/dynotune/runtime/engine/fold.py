"""Folding BatchNorm into the convolution before it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd


class Folding:
    """What `fold` changed, to be undone.

    `model`: the changed model. `names`: the convolutions that took a BatchNorm in.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.names: list[str] = []
        self._model = model
        self._weights: list[tuple[_ConvNd, torch.nn.Parameter, torch.nn.Parameter | None]] = []
        self._norms: list[tuple[str, _BatchNorm]] = []

    def take(
        self, name: str, convolution: _ConvNd, norm: _BatchNorm, aliases: list[str], product: list[torch.Tensor]
    ) -> None:
        """Replace the weights of one convolution, and its BatchNorm under every name it has."""
        self.names.append(name)
        self._weights.append((convolution, convolution.weight, convolution.bias))
        convolution.weight, convolution.bias = (torch.nn.Parameter(tensor, requires_grad=False) for tensor in product)
        for alias in aliases:
            self._norms.append((alias, norm))
            self._place(alias, torch.nn.Identity())

    def undo(self) -> None:
        for convolution, weight, bias in self._weights:
            convolution.weight, convolution.bias = weight, bias
        for alias, norm in self._norms:
            self._place(alias, norm)
        self.names, self._weights, self._norms = [], [], []

    def _place(self, name: str, module: torch.nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        setattr(self._model.get_submodule(parent), child, module)


def fold(model: torch.nn.Module, pairs: Iterable[tuple[str, str]]) -> Folding:
    """Fold each BatchNorm of `pairs` into its convolution, in place.

    The product is formed in float64 and rounded once, to the convolution's dtype. A pair is left alone where BatchNorm
    uses the batch's own statistics, or where the product does not fit the dtype.

    `model`: changed; in eval mode. `pairs`: names of a convolution and of the BatchNorm that alone reads its output.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    folding = Folding(model)
    for name, norm_name in pairs:
        convolution, norm = modules[name], modules[norm_name]
        assert isinstance(convolution, _ConvNd)
        assert isinstance(norm, _BatchNorm)
        if norm.training or norm.running_mean is None or norm.running_var is None:
            continue
        with torch.no_grad():
            product = _product(convolution, norm, norm.running_mean, norm.running_var)
        if all(bool(torch.isfinite(tensor).all()) for tensor in product):
            # A shared module stands under several names, and all of them must change.
            folding.take(name, convolution, norm, [alias for alias, m in modules.items() if m is norm], product)
    return folding


def _product(convolution: _ConvNd, norm: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor) -> list[torch.Tensor]:
    scale = torch.rsqrt(variance.double() + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -mean.double() * scale
    if convolution.bias is not None:
        shift = shift + convolution.bias.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    weight = convolution.weight.double() * scale.view(-1, *[1] * (convolution.weight.dim() - 1))
    # empty_like keeps the layout, which may be channels_last.
    return [torch.empty_like(convolution.weight).copy_(weight), shift.to(convolution.weight.dtype)]
