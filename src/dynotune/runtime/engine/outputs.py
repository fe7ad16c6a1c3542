"""Nested outputs of a model: cut, copied, counted."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["cloned", "cut", "num_bytes", "tensors_of"]


def cut(outputs: Any, rows: int | None, batch: int | None) -> Any:
    if rows is None:
        return outputs
    return pytree.tree_map(
        lambda leaf: leaf[:rows] if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == batch else leaf,
        outputs,
    )


def cloned(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs.clone()
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, outputs)


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def num_bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
