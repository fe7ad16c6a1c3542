"""Gives a batch to the program once more: the same tensors in containers of their own."""

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
    """`value` such that taking it apart, or changing a tensor's shape in place, leaves the original as it is.

    What is in the tensors is shared: a program that changes that in place changes it for every step.
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
    """Some of the values in each tensor of the batch: what is changed in place differs.

    A tensor's own count of changes would do, but that reshaping in place counts, too, and changes no value.
    """
    found = []
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors_in(torch, batch):
            try:
                flat = tensor.detach().reshape(-1)
                found.append(flat[:: max(1, flat.numel() // _NUM_VALUES)].tolist())
            except Exception:  # of a layout or a class that has no such thing
                pass
    # In words: what is not a number equals nothing, itself neither.
    return repr(found)
