"""Handle batches as loaders make them: tensors in dicts, tuples, dataclasses and objects with their own `to`
method."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from dynotune.runtime.errors import InputError


def has_own_to(batch: Any) -> bool:
    """Return whether `batch` is not a tensor but has its own `to` (PackedSequence, BatchEncoding, graph
    batches)."""
    return not isinstance(batch, (torch.Tensor, type)) and callable(getattr(batch, "to", None))


def moved_by_itself(batch: Any, device: torch.device) -> Any:
    """Return `batch.to(device)`, without waiting for the copy if the method allows that."""
    try:
        parameters = inspect.signature(batch.to).parameters
    except (TypeError, ValueError):
        return batch.to(device)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return (
        batch.to(device, non_blocking=True) if takes_any or "non_blocking" in parameters else batch.to(device)
    )


def mapped(batch: Any, leaf: Callable[[Any], Any]) -> Any:
    """Return `batch` rebuilt, with `leaf` applied to its tensors and to objects that have their own `to`.

    Containers are copied, never changed; all other objects are passed on as they are.

    Raises InputError if a mapping cannot be rebuilt.
    """
    if isinstance(batch, torch.Tensor) or has_own_to(batch):
        return leaf(batch)
    if isinstance(batch, Mapping):
        return _mapped_mapping(batch, leaf)
    if isinstance(batch, tuple) and not isinstance(batch, torch.Size):
        values = [mapped(value, leaf) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if isinstance(batch, list):
        copied = copy.copy(batch)
        copied[:] = [mapped(value, leaf) for value in batch]
        return copied
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        replaced: Any = copy.copy(batch)
        for field in dataclasses.fields(batch):
            # Past a frozen class's own refusal: the copy is ours.
            object.__setattr__(replaced, field.name, mapped(getattr(batch, field.name), leaf))
        return replaced
    return batch


def _mapped_mapping(batch: Mapping[Any, Any], leaf: Callable[[Any], Any]) -> Any:
    if not isinstance(batch, MutableMapping):
        raise InputError(
            f"A batch holds a {type(batch).__name__}, which cannot be rebuilt with tensors on the device.",
            hint="Let the collate function return a dict.",
        )
    copied = copy.copy(batch)
    for key, value in batch.items():
        copied[key] = mapped(value, leaf)
    return copied


def readers(batch: Any, _seen: set[int] | None = None) -> Iterator[Any]:
    """Return the objects that must know their readers' streams: tensors, and objects with a
    `record_stream`."""
    seen = set() if _seen is None else _seen
    if id(batch) in seen or isinstance(batch, (str, bytes, int, float, complex, type, type(None))):
        return
    seen.add(id(batch))
    if callable(getattr(batch, "record_stream", None)):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from readers(value, seen)
    elif isinstance(batch, (list, tuple, set, frozenset)):
        for value in batch:
            yield from readers(value, seen)
    elif dataclasses.is_dataclass(batch) or has_own_to(batch):
        for value in _attributes(batch):
            yield from readers(value, seen)


def _attributes(batch: Any) -> Iterator[Any]:
    yield from getattr(batch, "__dict__", {}).values()
    for kind in type(batch).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(batch, name):
                yield getattr(batch, name)
