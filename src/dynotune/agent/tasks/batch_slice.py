"""Gives a program the first samples of a batch: the same containers, with each tensor cut along its first dimension."""

from __future__ import annotations

import copy
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_DEPTH = 6


def sliced(torch: Any, value: Any, full: int, kept: int, depth: int = 0) -> tuple[Any, int]:
    """`value` with `kept` of its `full` samples, and how many tensors were cut."""
    if isinstance(value, torch.Tensor):
        whole = value.dim() > 0 and value.shape[0] == full
        return (value[:kept], 1) if whole else (value, 0)
    if depth >= _MOST_DEPTH:
        return value, 0
    kind = type(value)
    if kind in (list, tuple) and len(value) == full and not isinstance(value[0], torch.Tensor):
        return kind(value[:kept]), 0  # names, say, one a sample
    if kind in (list, tuple) or hasattr(value, "_make"):
        pairs = [sliced(torch, item, full, kept, depth + 1) for item in value]
        items = [item for item, _ in pairs]
        return (kind._make(items) if hasattr(value, "_make") else kind(items)), sum(num for _, num in pairs)
    if isinstance(value, Mapping):
        made, total = copy.copy(value), 0
        for key in list(value):
            made[key], num = sliced(torch, value[key], full, kept, depth + 1)  # type: ignore[index]
            total += num
        return made, total
    return value, 0
