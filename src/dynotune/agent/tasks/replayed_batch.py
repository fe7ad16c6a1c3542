"""Give the program the same batch again: copies that share its tensors, and a check for changes in place."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from ..core.tensors import tensors_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_DEPTH = 6
_NUM_VALUES = 256


def alias(torch: Any, value: Any, depth: int = 0) -> Any:
    """Return a copy of `value` with shared tensors.

    Unpacking the copy, or reshaping in place, leaves `value` unchanged. The copy shares the tensors' data, so
    a program that changes data in place changes the data of every step.
    """
    kind = type(value)
    if kind is torch.Tensor:
        return value if value.requires_grad else value.detach()
    if depth >= _MOST_DEPTH or isinstance(value, torch.Tensor):
        return value
    if kind is list or kind is tuple:
        return kind(alias(torch, item, depth + 1) for item in value)
    if kind is dict:
        return {key: alias(torch, item, depth + 1) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return kind._make(alias(torch, item, depth + 1) for item in value)
    if isinstance(value, (list, Mapping)) or hasattr(value, "__dict__"):
        return _shallow(value)
    return value


def _shallow(value: Any) -> Any:
    try:
        return copy.copy(value)
    except Exception:  # its own code may refuse
        return value


def values(torch: Any, batch: Any) -> str:
    """Return some of the values in each tensor of the batch, to detect changes in place.

    A tensor's own version counter would not help, because reshaping in place also increments that counter.
    """
    found = []
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors_in(torch, batch):
            try:
                flat = tensor.detach().reshape(-1)
                found.append(flat[:: max(1, flat.numel() // _NUM_VALUES)].tolist())
            except Exception:  # its layout or class has no such operation
                pass
    # As text, because NaN does not equal itself.
    return repr(found)
