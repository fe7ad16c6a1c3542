"""Describe a data set and its collate function, and what a first batch of it contains."""

from __future__ import annotations

import functools
import os

from ..core.tensors import length_of, name_of, tensors_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NUM_VALUES = 4096
_MAX_DEPTH = 3


def data_set_facts(torch: Any, dataset: Any, collate: Any) -> dict[str, Any]:
    """Describe a data set and its collate function: names, places and contents.

    No reference to either is kept.
    """
    kind = type(_innermost(dataset))
    is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    return {
        "dataset": name_of(dataset),
        "collate": name_of(collate),
        "num_items": None if is_iterable else length_of(dataset),
        "items_at": _place(getattr(kind, "__getitem__", None) or getattr(kind, "__iter__", None)),
        "collate_at": _place(collate),
        "num_objects": _num_objects(dataset),
    }


def num_distinct(torch: Any, batch: Any) -> int | None:
    """Count distinct values in the first part of one plane of a batch's largest image.

    An image is a floating-point tensor of 3 or more axes.
    """
    on_host = (each for each in tensors_in(torch, batch) if each.device.type == "cpu" and each.numel())
    found = [each for each in on_host if each.dim() >= 3 and each.is_floating_point()]
    if not found:
        return None
    plane = max(found, key=lambda each: int(each.numel()))
    while plane.dim() > 2:
        plane = plane[0]
    return len(set(plane.reshape(-1)[:_NUM_VALUES].tolist()))


def _innermost(dataset: Any) -> Any:
    """Return the data set inside a Subset or a similar wrapper."""
    for _ in range(_MAX_DEPTH):
        inner = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
        if inner is None:
            break
        dataset = inner
    return dataset


def _place(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = getattr(function, "__func__", None) or getattr(type(function), "__call__", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    return "%s(%d): %s" % (os.path.basename(code.co_filename), code.co_firstlineno, code.co_name)


def _num_objects(dataset: Any, depth: int = _MAX_DEPTH) -> int:
    """Estimate the number of objects in a data set's containers.

    The estimate is the container's length times the number of objects in the first element.
    """
    total = 0
    for value in list(vars(dataset).values()) if hasattr(dataset, "__dict__") else []:
        if isinstance(value, (list, tuple, dict, set)):
            total += _num_inside(value, depth)
        elif depth and hasattr(value, "__dict__") and hasattr(type(value), "__getitem__"):
            total += _num_objects(value, depth - 1)  # a data set inside a Subset
    return total


def _num_inside(value: Any, depth: int) -> int:
    if not value:
        return 0
    first = next(iter(value.values() if isinstance(value, dict) else value))
    inside = _num_inside(first, depth - 1) if depth and isinstance(first, (list, tuple, dict, set)) else 0
    return len(value) * (1 + inside)
